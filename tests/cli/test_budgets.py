"""`--budgets`: clients that can afford different densities, in runs and in prices."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]

SHARES = ["--budgets", "0.2:40%,0.15:30%,0.1:30%"]
FILE = ["--budgets", "budgets.csv"]

BY_BUDGET = """
from gossamer import sample_by_budget
from gossamer.methods.fedavg import *


@dataclass(frozen=True)
class Own(FedAvg):
    def init(self, ctx):
        assert ctx.budgets == (0.1, 0.15, 0.2), ctx.budgets
        return super().init(ctx)

    def cohort(self, ctx, state, pool):
        chosen = sample_by_budget(ctx.key, pool, self.clients)
        # Of 20 clients with 6, 6 and 8, four are 1.2, 1.2 and 1.6.
        assert sorted(client.budget for client in chosen) == [0.1, 0.15, 0.2, 0.2]
        return chosen
"""


def write(order: int = 1) -> None:
    """A file with a budget for each of 20 clients; another order gives them to others."""
    budgets = [(0.05, 0.1, 0.2, 0.5)[id % 4] for id in range(20)][::order]
    lines = [f"{id},{budget}" for id, budget in enumerate(budgets)]
    Path("budgets.csv").write_text("\n".join(["client,budget", *lines]))


def test_a_run_with_shares_tells_them_and_repeats_itself(gossamer: Command) -> None:
    first = gossamer("run", "fedavg", *SMALL, *SHARES, "--rounds", "1", "--out", "a", "--json")
    assert first.code == 0
    assert events("a")[0]["data"]["budgets"] == {"0.1": 6, "0.15": 6, "0.2": 8}
    gossamer("run", "a/config.toml", "--out", "b", "--quiet")
    assert events("a") == events("b")
    plain = gossamer("run", "fedavg", *SMALL, "--rounds", "1", "--out", "c", "--json").json
    assert "budgets" not in events("c")[0]["data"]
    # FedAvg does not look at budgets, and dealing them disturbs nothing else.
    assert plain["state_hash"] == first.json["state_hash"]


def test_a_run_with_a_file_resumes_from_another_folder_but_not_with_another_file(
    gossamer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    first = gossamer("run", "fedavg", *SMALL, *FILE, "--rounds", "1", "--out", "a", "--json").json
    there = Path.cwd() / "a"
    with monkeypatch.context() as patch:
        Path("elsewhere").mkdir()
        patch.chdir("elsewhere")
        assert gossamer("resume", str(there), "--json").json["state_hash"] == first["state_hash"]
    write(order=-1)
    found = gossamer("resume", "a")
    assert found.code == 2 and "other settings" in found.err
    Path("budgets.csv").unlink()
    found = gossamer("resume", "a")
    assert found.code == 2 and "budgets.csv" in found.err and len(found.err.splitlines()) == 1


def test_a_price_honours_budgets_as_the_run_does(gossamer: Command) -> None:
    Path("own.py").write_text(BY_BUDGET)
    words = ["own.py:Own", *SMALL, *SHARES, "--rounds", "2"]
    price = gossamer("cost", *words, "--json")
    run = gossamer("run", *words, "--out", "a", "--json")
    assert price.code == run.code == 0
    assert price.json["bits"] == run.json["bits"]


def test_a_partition_tells_of_budgets(gossamer: Command) -> None:
    found = gossamer("partition", "--pool", "20", *SHARES, "--json").json
    assert found["budgets"] == {"0.1": 6, "0.15": 6, "0.2": 8}


@pytest.mark.parametrize("command", ["run", "cost"])
@pytest.mark.parametrize(
    ("budgets", "said"),
    [
        ("0.2:40%,0.1:50%", "add up to 90 %, not 100 %"),
        ("nowhere.csv", "nowhere.csv"),
        ("short.csv", "has no budget for client 1, and budgets for 1 of 20 clients"),
    ],
)
def test_wrong_budgets_are_refused_before_any_work(
    gossamer: Command, command: str, budgets: str, said: str
) -> None:
    Path("short.csv").write_text("0,0.5\n")
    found = gossamer(command, "fedavg", *SMALL, "--budgets", budgets)
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1
    assert not Path("runs").exists()
