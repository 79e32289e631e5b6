"""`gossamer cp` gives a file that runs as the method does, to the bit, for every name there is."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from gossamer import METHODS, fields
from gossamer.accounting import Accounting
from gossamer.config import find_method
from gossamer.conformance.fingerprints import fingerprint, small
from gossamer.engine.client import AnyMethod
from gossamer.fields import option
from gossamer.methods.fedavg import FedAvg
from gossamer.optim import Training
from gossamer.standalone import sources, standalone

ROUNDS = 4


def copied(method: AnyMethod, folder: Path) -> AnyMethod:
    """The method as it comes back from a file of its own."""
    copy = standalone(method)
    path = folder / "mine.py"
    path.write_text(copy.source)
    return find_method(f"{path}:{copy.member}")


def values(method: AnyMethod) -> list[tuple[tuple[str, ...], str]]:
    return [(item.path, repr(item.default)) for item in fields.settings(method)]


@pytest.mark.parametrize("name", METHODS)
def test_a_copy_runs_as_the_method_does(name: str, tmp_path: Path) -> None:
    method = METHODS[name]
    copy = copied(method, tmp_path)
    assert type(copy).__module__ != type(method).__module__
    assert values(copy) == values(method)
    less = small(method)
    ours = fingerprint(fields.replace(copy, less), "mlp", ROUNDS)
    assert ours == fingerprint(fields.replace(method, less), "mlp", ROUNDS)


def test_a_method_with_nothing_to_change_is_copied_as_it_stands() -> None:
    source = Path(sys.modules[FedAvg.__module__].__file__ or "").read_text()
    assert standalone(METHODS["fedavg"]).source == source


def test_a_preset_is_copied_without_the_functions_that_make_presets(tmp_path: Path) -> None:
    source = standalone(METHODS["fedyogi"]).source
    assert "def reddi" not in source and '"yogi"' in source
    assert "ENTRIES" not in standalone(METHODS["feddst-code"]).source
    assert max(map(len, source.splitlines())) <= 100


def test_modules_that_one_method_imports_are_copied_and_shared_ones_imported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "mine_parts", PARTS)
    write(tmp_path, "mine_more", MORE)
    write(tmp_path, "mine_shared", "def shared(value):\n    return value\n")
    write(tmp_path, "mine_method", METHOD)
    imported = {
        "mine_method": frozenset({"mine_parts", "mine_more", "mine_shared"}),
        "mine_more": frozenset({"mine_parts"}),
        "mine_other": frozenset({"mine_shared"}),
        "mine_parts": frozenset(),
    }
    monkeypatch.setattr(sources, "_imported", lambda: imported)
    method = find_method("mine_method:Mine")
    copy = standalone(method)
    assert "import mine_shared" in copy.source or "from mine_shared" in copy.source
    assert "mine_parts import" not in copy.source and "import mine_parts" not in copy.source
    assert "def unused" not in copy.source
    assert copied(method, tmp_path).merge(3) == method.merge(3) == 3 * 2 + 1 + 10
    # A local variable has the name of a function: that module stays an import.
    write(
        tmp_path,
        "mine_method",
        METHOD.replace("result =", "double =").replace("return result", "return double"),
    )
    del sys.modules["mine_method"]
    copy = standalone(find_method("mine_method:Mine"))
    assert "from mine_more import one" not in copy.source and "mine_parts" in copy.source


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))


PARTS = '''
    """Parts."""

    TEN = 10
    """A number with a docstring."""


    def double(value):
        return 2 * value


    def unused(value):
        return value
'''
MORE = '''
    """More parts."""

    from mine_parts import TEN as MANY


    def one(value):
        return value + 1, MANY
'''
METHOD = '''
    """A method."""

    from __future__ import annotations

    from dataclasses import dataclass

    import mine_parts as parts
    from mine_more import one as single
    from mine_shared import shared


    @dataclass(frozen=True)
    class Mine:
        number: int = 1

        def merge(self, value):
            result = single(parts.double(shared(value)))
            return sum(result)
'''


@dataclass(frozen=True)
class Fielded:
    """A record with fields of every form."""

    plain: int = 1
    helped: float = option(
        1.0, "help so long that a longer value will not fit on the line", least=0
    )
    nested: Accounting = Accounting()
    training: Training = Training()
    name: str = "a"
    many: tuple[int, ...] = (1,)

    def merge(self) -> None:
        """Makes it a method, as far as loading goes."""


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"plain": 2, "helped": 123456.5, "name": 'a "word"'},
        {"nested": Accounting(uncharged="budget"), "many": (1, 2), "helped": float("inf")},
        {
            "training": Training(
                lr=0.5, epochs=3, batch=7, momentum=0.25, weight_decay=0.125, clip=9.0
            )
        },
    ],
)
def test_every_form_of_a_default_is_rewritten(changed: dict[str, object], tmp_path: Path) -> None:
    method = Fielded(**changed)  # type: ignore[arg-type]
    copy = copied(method, tmp_path)  # type: ignore[arg-type]
    assert values(copy) == values(method)  # type: ignore[arg-type]
    helps = [item.help for item in fields.settings(method)]
    assert [item.help for item in fields.settings(copy)] == helps


def test_a_value_that_no_source_has_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        standalone(Fielded(name=object()))  # type: ignore[arg-type]
