"""A configuration written to a file is the one that is read back, in any folder."""

import json
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gossamer import METHODS, FedAvg, fields
from gossamer.config import Config, Experiment, absolute_paths, read
from gossamer.engine.run_record import plain_settings
from gossamer.fields import option

WITH_NONE = """
from dataclasses import dataclass
from gossamer.methods.fedavg import *

@dataclass(frozen=True)
class Mine(FedAvg):
    limit: int | None = None
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_setting_that_is_none_survives_the_file() -> None:
    Path("mine.py").write_text(WITH_NONE)
    config = Config("mine.py:Mine", {"lr": 0.5})
    Path("config.toml").write_text(config.toml())
    method = read(Path("config.toml")).build_method()
    assert getattr(method, "limit", 0) is None
    assert {s.name: s.default for s in fields.settings(method)}["lr"] == 0.5


@pytest.mark.parametrize(
    "name", ["plain.npz", "ünïcode.npz", "\N{GRINNING FACE}.npz", 'a"b\\c.npz']
)
def test_any_file_name_survives_the_file(name: str) -> None:
    config = Config("fedavg", {}, replace(Experiment(), data=f"npz:{name}"))
    assert tomllib.loads(config.toml(f"gossamer run {name}"))["experiment"]["data"] == f"npz:{name}"


def test_files_are_named_so_that_every_folder_finds_them() -> None:
    here = Path.cwd()
    wish = replace(Experiment(), data="csv:table.csv", model="my.py:build:width=3")
    found = absolute_paths(wish)
    assert (found.data, found.model) == (f"csv:{here}/table.csv", f"{here}/my.py:build:width=3")
    assert absolute_paths(found) == found


@pytest.mark.parametrize(
    ("data", "model"),
    [("fmnist-mini", "mlp:hidden=16"), ("synthetic:1,1", ""), ("npz:", "package.module:build")],
)
def test_names_that_are_no_files_stay_as_they_are(data: str, model: str) -> None:
    wish = replace(Experiment(), data=data, model=model)
    assert absolute_paths(wish) == wish


def test_a_file_of_budgets_is_named_so_that_every_folder_finds_it() -> None:
    wish = replace(Experiment(), budgets="budgets.csv")
    assert absolute_paths(wish).budgets == f"{Path.cwd()}/budgets.csv"
    assert absolute_paths(absolute_paths(wish)) == absolute_paths(wish)


@pytest.mark.parametrize("budgets", ["", "0.2:40%,0.1:60%", "0.2:1"])
def test_shares_of_budgets_stay_as_they_are_and_survive_the_file(budgets: str) -> None:
    wish = replace(Experiment(), budgets=budgets)
    assert absolute_paths(wish) == wish
    Path("config.toml").write_text(Config("fedavg", {}, wish).toml())
    assert read(Path("config.toml")).experiment == wish


def test_a_file_from_before_there_were_budgets_gives_everyone_everything() -> None:
    Path("config.toml").write_text('method = "fedavg"\n[experiment]\ndata = "synthetic"\n')
    federation = read(Path("config.toml")).build_federation()
    assert {client.budget for client in federation.pool} == {1.0}


def test_budgets_are_dealt_by_the_seed_of_the_data() -> None:
    def dealt(seed: int, data_seed: int) -> list[float]:
        wish = Experiment("synthetic", pool=20, budgets="0.2:50%,0.1:50%")
        wish = replace(wish, seed=seed, data_seed=data_seed)
        return [each.budget for each in Config("fedavg", {}, wish).build_federation().pool]

    assert dealt(1, -1) == dealt(1, 1) == dealt(2, 1) != dealt(2, -1)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    @dataclass(frozen=True)
    class Record:
        rate: float = option(1.0, "any number")

    with pytest.raises(ValueError, match=f"`rate=` must be finite, not {value}"):
        fields.check(Record(value))
    fields.check(Record(-1.0))


def test_a_method_is_not_run_with_an_infinite_rate() -> None:
    with pytest.raises(ValueError, match="`lr=` must be finite, not inf"):
        Config("fedavg", {"lr": float("inf")}).build_method()
    assert isinstance(Config("fedavg", {"lr": 1.0}).build_method(), FedAvg)


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_the_same_to_the_letter_when_read_back(name: str, tmp_path: Path) -> None:
    """Else a run could not be resumed from its own configuration."""
    path = tmp_path / "config.toml"
    path.write_text(Config(name).toml(), encoding="utf-8")
    again = plain_settings(read(path).build_method())
    assert json.dumps(again) == json.dumps(plain_settings(METHODS[name]))
