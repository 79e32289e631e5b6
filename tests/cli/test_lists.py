"""`ls`, `data`, `partition`, `check`, `cp`, `demo`, and help."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gossamer.cli import COMMANDS
from gossamer.cli.parsing import Parser, add_settings
from gossamer.config import Experiment
from gossamer.engine import Options
from gossamer.methods import ALGORITHMS, METHODS, PUBLISHED
from gossamer.models import MODELS

from .conftest import SMALL, Outcome

Command = Callable[..., Outcome]


def test_ls_names_everything(gossamer: Command) -> None:
    found = gossamer("ls", "--json").json
    assert set(found["methods"]) == set(ALGORITHMS) and set(found["models"]) == set(MODELS)
    assert "fmnist-mini" in found["data sets"] and "dirichlet" in found["partitions"]
    plain = gossamer("ls").out
    assert all(name in plain for names in found.values() for name in names)
    assert all(text for names in found.values() for text in names.values())


def test_ls_all_adds_published_codes_and_variants_in_groups_of_their_own(
    gossamer: Command,
) -> None:
    found = gossamer("ls", "methods", "--all", "--json").json
    assert set(found.pop("methods")) == set(ALGORITHMS)
    assert {name for group in found.values() for name in group} == set(PUBLISHED)
    codes = found.pop("published codes")
    assert codes and not any(name.endswith("-variants") for name in codes)
    assert all(name.endswith("-variants") for group in found.values() for name in group)
    plain = gossamer("ls", "--all").out
    assert all(f"  {name} " in plain for name in METHODS)
    assert not any(f"  {name} " in gossamer("ls").out for name in PUBLISHED)


@pytest.mark.parametrize(
    ("kind", "title", "name"),
    [
        ("methods", "methods", "spafl"),
        ("models", "models", "lenet5"),
        ("data", "data sets", "mnist"),
        ("partitions", "partitions", "iid"),
        ("devices", "devices", "phone-2024"),
    ],
)
def test_ls_lists_one_kind(gossamer: Command, kind: str, title: str, name: str) -> None:
    found = gossamer("ls", kind, "--json").json
    assert list(found) == [title] and name in found[title]
    refused = gossamer("ls", "method")
    assert refused.code == 2 and "'method'" in refused.err


def test_ls_names_what_has_no_files(gossamer: Command) -> None:
    names = gossamer("ls", "--json").json["data sets"]
    assert {"synthetic", "npz:FILE", "csv:FILE", "folder:FOLDER"} <= names.keys()
    assert all(names.values())


def test_data_ls_says_what_is_here_and_how_to_get_the_rest(gossamer: Command) -> None:
    rows = {row["name"]: row for row in gossamer("data", "ls", "--json").json["data"]}
    assert rows["fmnist-mini"]["found"]
    missing = [name for name, row in rows.items() if row["found"] is None]
    told = gossamer("data", "ls").out
    assert all(f"\n{name}: " in told for name in missing)


def test_partition_gives_figures_and_a_picture(gossamer: Command) -> None:
    words = ["--data", "fmnist-mini", "--partition", "dirichlet:0.2", "--pool", "30"]
    found = gossamer("partition", *words, "--picture", "out.png", "--json")
    assert found.code == 0 and found.json["pool"] == 30
    assert sum(found.json["sizes"]) == 10_000
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")


def test_a_copied_method_runs_and_passes_the_check(gossamer: Command) -> None:
    said = gossamer("cp", "fedprox", "mine.py")
    assert said.code == 0 and "gossamer run mine.py:FedProx\n" in said.out
    assert "gossamer check mine.py:FedProx\n" in said.out
    assert gossamer("cp", "fedprox", "mine.py").code == 2
    assert ".py" in gossamer("cp", "fedprox", "mine.txt").err
    original = gossamer("run", "fedprox", *SMALL, "--out", "a", "--json").json
    copied = gossamer("run", "mine.py:FedProx", *SMALL, "--out", "b", "--json").json
    assert copied["state_hash"] == original["state_hash"]
    checked = gossamer("check", "mine.py:FedProx", "--json")
    assert checked.code == 0 and checked.json["checks"] > 5 and not checked.json["failed"]


NOISE = """

def noise(work: Work) -> None:
    import torch

    for tensor in work.params.values():
        tensor.add_(torch.rand(()) * 0.01)
"""


def test_check_fails_a_method_that_draws_from_the_global_generator(gossamer: Command) -> None:
    gossamer("cp", "fedavg", "mine.py")
    path = Path("mine.py")
    source = path.read_text()
    call = "return dense_model.step("
    assert call in source
    changed = source.replace(call, f"noise(work)\n        {call}") + NOISE
    path.write_text(changed)
    found = gossamer("check", "mine.py:FedAvg", "--json")
    assert found.code == 1 and found.json["failed"]


@pytest.mark.parametrize("command", [*COMMANDS, "data get", "run fedavg", "run fedopt"])
def test_every_command_explains_itself(gossamer: Command, command: str) -> None:
    with pytest.raises(SystemExit) as ended:
        gossamer(*command.split(), "--help")
    assert ended.value.code == 0


def test_help_lists_every_field_of_the_method(
    gossamer: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        gossamer("run", "fedopt", "--help")
    text = capsys.readouterr().out
    for option in ("--server-lr", "--beta2", "--bias-correction", "--lr", "--eval-every", "--pool"):
        assert option in text


@pytest.mark.parametrize("name", METHODS)
def test_settings_of_methods_are_options_that_mean_nothing_else(name: str) -> None:
    parser = Parser("gossamer run")
    for record in (Experiment(), Options(), METHODS[name]):
        add_settings(parser, "options", record)


def test_a_demo_too_short_for_its_methods_is_refused_in_a_sentence(gossamer: Command) -> None:
    found = gossamer("demo", "--rounds", "1")
    assert found.code == 2 and "use --rounds 2 or more" in found.err
