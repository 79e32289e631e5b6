"""An option that a method lacks, but a published entry of its family has, is not just unknown."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gossamer.config import variants_with
from gossamer.fields import option, settings
from gossamer.methods import ALGORITHMS, METHODS, PUBLISHED
from gossamer.methods.fedavg import FedAvg

from .conftest import Outcome

Command = Callable[..., Outcome]


@dataclass(frozen=True)
class Variants:
    """Stands for a class with alternative readings."""

    pure: FedAvg = FedAvg()
    reading: str = option("text", "which reading")
    literal: bool = option(False, "as printed")


@pytest.fixture
def variants(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Entries of two families: one by its name, one by the module of its class."""
    monkeypatch.setitem(PUBLISHED, "fedavg-code", Variants())  # type: ignore[arg-type]
    monkeypatch.setitem(PUBLISHED, "fedavg-variants", Variants())  # type: ignore[arg-type]
    flash = type("FlashVariants", (Variants,), {"__module__": "gossamer.as_published.flash"})
    monkeypatch.setitem(PUBLISHED, "shared-variants", flash())
    yield


@pytest.mark.usefixtures("variants")
def test_the_family_is_found_by_name_or_by_module() -> None:
    assert variants_with("fedavg", "reading") == "fedavg-variants"
    assert variants_with("fedavg", "lr") is None and variants_with("fedavg", "nonsense") is None
    assert variants_with("jmwst", "reading") == variants_with("spdst", "literal")
    assert variants_with("jmwst", "reading") == "shared-variants"
    assert variants_with("fedprox", "reading") is None
    assert variants_with("mine.py:Mine", "reading") is None


@pytest.mark.usefixtures("variants")
@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (
            "run fedavg --rounds 2 --reading eq5",
            "--reading is an option of fedavg-variants; "
            "use gossamer run fedavg-variants --reading eq5",
        ),
        ("run fedavg --reading=eq5", "use gossamer run fedavg-variants --reading=eq5"),
        ("run jmwst --no-literal", "use gossamer run shared-variants --no-literal"),
        ("cost fedavg --literal --json", "use gossamer cost fedavg-variants --literal"),
        ("compare fedprox fedavg:reading=eq5", "reading is a setting of fedavg-variants"),
        ("run mine.toml", "reading is a setting of fedavg-variants"),
        ("run fedavg --raeding eq5", "no option '--raeding'"),
    ],
)
def test_the_refusal_names_the_entry(gossamer: Command, command: str, answer: str) -> None:
    Path("mine.toml").write_text('method = "fedavg"\n[settings]\nreading = "eq5"\n')
    found = gossamer(*command.split())
    assert found.code == 2 and answer in found.err, found.err
    assert len(found.err.splitlines()) == 1


def test_the_refusal_repeats_the_settings_of_a_preset(gossamer: Command) -> None:
    found = gossamer("run", "fedspa-static", "--own-start")
    assert "use gossamer run fedspa-variants --no-search --own-start" in found.err


def test_every_option_of_a_variants_entry_is_found_from_its_method() -> None:
    """NAME-variants is suggested for all of its options that NAME does not have."""
    for entry in PUBLISHED:
        name = entry.removesuffix("-variants")
        if name == entry or name not in ALGORITHMS:
            continue
        own = {item.name for item in settings(METHODS[name])}
        for item in settings(PUBLISHED[entry]):
            wanted = None if item.name in own else entry
            assert variants_with(name, item.name) == wanted, (name, item.name)
