"""Claims of papers: what is reproduced, what is not, and what the runs leave open."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.report import Run
from gossamer.report.kept import Shelf, keep
from gossamer.reproduce import claims
from gossamer.reproduce.published import Cell, Measured, measure, value_of
from gossamer.reproduce.published_text import fewer_clients
from gossamer.reproduce.tables import Claim, Column, Published, Row, Scale, Table, find, load, names

COLUMNS = {
    "accuracy": Column("accuracy", "accuracy", "clients", "%", "best"),
    "gbit": Column("gbit", "sent", "paper", "Gbit", whole=True),
}
ABOVE = Claim("above", "ours is above theirs", "accuracy", "ours", "theirs")
LEVEL = replace(ABOVE, name="level", within=1.0)
VALUE = Claim("value", "ours is as printed", "accuracy", "ours", within=1.0)
COST = Claim("cost", "ours sends 1 Gbit", "gbit", "ours", within=0.01)


def judged(claim: Claim, ours: Any, theirs: Any = (), column: str = "accuracy", **more: Any) -> Any:
    """A claim with the figures of seeds 0, 1, ... of two rows, printed as 90 and 88, or 1."""
    rows = {name: Row(name, name.upper()) for name in ("ours", "theirs")}
    table = Table("t", "T", "S", COLUMNS, rows, {"full": Scale("full", "")}, (), {"c": claim})
    printed = {"ours": 90.0, "theirs": 88.0} if column == "accuracy" else {"ours": 1.0}
    cells = {
        (row, column): Cell(
            Published(printed[row]) if row in printed else None,
            tuple(values),
            seeds=tuple(range(len(values))),
        )
        for row, values in (("ours", ours), ("theirs", theirs))
    }
    (found,) = claims.judge(Measured(table, cells, {}, **more), "full")
    return found


@pytest.mark.parametrize(
    ("claim", "ours", "theirs", "verdict", "reason"),
    [
        (ABOVE, (), (), "undecided", "not run yet"),
        (ABOVE, (91,), (89,), "undecided", "one seed"),
        (ABOVE, (91, 92, 90.1), (89, 90, 88), "reproduced", "p = "),
        (ABOVE, (88, 89, 87), (90, 91.1, 89), "not reproduced", "p = "),
        (ABOVE, (91, 88, 90), (89, 90, 89), "undecided", "no difference shown"),
        (LEVEL, (90.1, 91, 89.9), (90, 91.1, 90), "reproduced", "wanted 0 ± 1"),
        (LEVEL, (95, 96, 95.1), (90, 91, 90), "not reproduced", "wanted 0 ± 1"),
        (LEVEL, (91, 88, 90), (89, 90, 89), "undecided", "wanted 0 ± 1"),
        (VALUE, (90.2, 89.9, 90.1), (), "reproduced", "95 % interval"),
        (VALUE, (80.2, 80, 80.1), (), "not reproduced", "95 % interval"),
        (VALUE, (90.2,), (), "undecided", "one seed"),
    ],
)
def test_verdicts(claim: Claim, ours: Any, theirs: Any, verdict: str, reason: str) -> None:
    found = judged(claim, ours, theirs)
    assert found.verdict == verdict and reason in found.reason


def test_differences_are_printed_with_errors_and_seeds() -> None:
    found = judged(ABOVE, (91, 92, 90.3), (89, 90, 88))
    assert (found.expected, found.unit) == ("+2", "points")
    assert found.found == "+2.1 ± 0.1 (3 seeds)"
    (line,) = claims.text([found])
    assert line.startswith(
        "claim: ours is above theirs: printed +2 points, measured +2.1 ± 0.1 (3 seeds): reproduced"
    )
    assert claims.plain([found])[0]["seeds"] == 3


def test_costs_need_one_run() -> None:
    assert judged(COST, (1.005,), column="gbit").verdict == "reproduced"
    assert judged(COST, (1.2,), column="gbit").verdict == "not reproduced"


@pytest.mark.parametrize(
    ("column", "early", "verdict"),
    [
        ("accuracy", None, "undecided"),
        ("accuracy", True, "reproduced"),
        ("gbit", None, "reproduced"),
        ("gbit", False, "undecided"),
    ],
)
def test_fewer_rounds_settle_only_sums_unless_the_claim_says_so(
    column: str, early: bool | None, verdict: str
) -> None:
    config = find("spafl-table1").rows["fmnist-spafl"].config
    rows = {"ours": Row("ours", "OURS", config), "theirs": Row("theirs", "THEIRS", config)}
    claim = replace(ABOVE, column=column, early=early)
    table = Table("t", "T", "S", COLUMNS, rows, {}, (), {"c": claim})
    cells = {
        (row, column): Cell(None, values, seeds=(0, 1, 2))
        for row, values in (("ours", (91, 92, 90.1)), ("theirs", (89, 90, 88)))
    }
    (found,) = claims.judge(Measured(table, cells, {"ours": 50}), "here")
    assert found.verdict == verdict
    assert ("50 of 500 rounds" in found.reason) == (verdict == "undecided")


def test_runs_with_other_settings_than_the_papers_decide_nothing() -> None:
    ours, theirs = (91, 92, 90.1), (89, 90, 88)
    rows = {name: Row(name, name) for name in ("ours", "theirs")}
    cells = {
        (row, "accuracy"): Cell(None, values, seeds=(0, 1, 2))
        for row, values in (("ours", ours), ("theirs", theirs))
    }
    for settings, verdict in (({"model": "small"}, "undecided"), ({"rounds": 9}, "reproduced")):
        scales = {"here": Scale("here", "", settings=settings)}
        table = Table("t", "T", "S", COLUMNS, rows, scales, (), {"c": ABOVE})
        (found,) = claims.judge(Measured(table, cells, {}), "here")
        assert found.verdict == verdict
        assert verdict != "undecided" or found.reason.startswith("model small; so far it would be")


SENT = {
    "global_score": {10: 0.3, 20: 0.6, 30: 0.5, 40: 0.7},
    "paper_up": {10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0},
    "paper_down": {10: 1.0, 20: 2.0, 30: 3.0, 40: 4.0},
}


@pytest.mark.parametrize(("reaching", "sent"), [(30, 2.0), (55, 4.0), (65, 8.0), (0, 8.0)])
def test_traffic_is_read_where_an_accuracy_is_first_reached(reaching: int, sent: float) -> None:
    assert measure(Run("a", curves=SENT), Column("c", "C", "paper", reaching=reaching)) == sent


def test_an_accuracy_that_was_never_reached_has_no_traffic() -> None:
    column = Column("gbit", "sent", "paper", reaching=80)
    run = Run("a", curves=SENT)
    assert measure(run, column) is None
    rows = {"ours": Row("ours", "OURS", published={"gbit": Published(4)})}
    table = Table("t", "T", "S", {"gbit": column}, rows, {}, (), {"c": COST})
    cells = {("ours", "gbit"): Cell(Published(4))}
    (found,) = claims.judge(Measured(table, cells, {}, runs={"ours": (run,)}), "full")
    assert (found.verdict, found.reason) == ("undecided", "not every row reached 80 %")
    (found,) = claims.judge(Measured(table, cells, {}), "full")
    assert (found.verdict, found.reason) == ("undecided", "not run yet")


def test_traffic_to_an_accuracy_depends_on_chance_and_needs_seeds() -> None:
    column = Column("gbit", "sent", "paper", "Gbit", reaching=80)
    rows = {"ours": Row("ours", "OURS")}
    claim = replace(COST, within=0.5)
    table = Table("t", "T", "S", {"gbit": column}, rows, {}, (), {"c": claim})
    for values, verdict in (((1.0,), "undecided"), ((1.0, 1.1, 0.9), "reproduced")):
        cells = {("ours", "gbit"): Cell(Published(1), values, seeds=tuple(range(len(values))))}
        (found,) = claims.judge(Measured(table, cells, {}), "full")
        assert found.verdict == verdict


def test_seeds_that_never_reach_an_accuracy_leave_a_claim_undecided() -> None:
    column = Column("gbit", "sent", "paper", "Gbit", reaching=80)
    rows = {"ours": Row("ours", "OURS")}
    claim = replace(COST, within=0.5)
    table = Table("t", "T", "S", {"gbit": column}, rows, {}, (), {"c": claim})
    runs = {"ours": tuple(Run("a", {"seed": seed}) for seed in range(4))}
    cells = {("ours", "gbit"): Cell(Published(1), (1.0, 1.1, 0.9), seeds=(0, 1, 3))}
    (found,) = claims.judge(Measured(table, cells, {}, runs=runs), "full")
    assert found.verdict == "undecided"
    assert found.reason.startswith("3 of 4 seeds reached 80 %; so far it would be reproduced")


def test_runs_that_diverged_leave_a_claim_undecided() -> None:
    found = judged(ABOVE, (91, 92, 90.1), (89, 90, 88), diverged={"theirs": 2})
    assert found.verdict == "undecided"
    assert found.reason.startswith("2 runs of THEIRS diverged; so far it would be reproduced")


def test_what_a_row_is_compared_with_must_be_the_papers_too() -> None:
    config = find("spafl-table1").rows["fmnist-spafl"].config
    rows = {"ours": Row("ours", "OURS", config), "theirs": Row("theirs", "T", config, pool=3550)}
    scale = Scale("here", "", row={"theirs": {"model": "small"}})
    table = Table("t", "T", "S", COLUMNS, rows, {"here": scale}, (), {"c": ABOVE})
    cells = {
        (row, "accuracy"): Cell(None, values, seeds=(0, 1, 2))
        for row, values in (("ours", (91, 92, 90.1)), ("theirs", (89, 90, 88)))
    }
    runs = {"ours": (Run("a"),), "theirs": (Run("b", {"pool": 26}),)}
    (found,) = claims.judge(Measured(table, cells, {"ours": 500, "theirs": 5}, runs=runs), "here")
    assert found.verdict == "undecided"
    assert found.reason.startswith("model small, 5 of 500 rounds, 26 of 3550 clients; so far")


@pytest.mark.parametrize(
    ("ours", "verdict"), [((2.0,), "reproduced"), ((2.0, 2.0), "reproduced"), ((0.5,), "not repro")]
)
def test_costs_without_spread_are_compared_directly(ours: Any, verdict: str) -> None:
    more = replace(COST, than="theirs", within=0.0)
    assert judged(more, ours, [1.0] * len(ours), column="gbit").verdict.startswith(verdict)


def test_costs_with_spread_are_tested() -> None:
    more = replace(COST, than="theirs", within=0.0)
    assert judged(more, (2.0, 1.5), (1.0, 1.6), column="gbit").verdict == "undecided"


def test_a_relative_claim_alone_finds_its_reference(tmp_path: Path) -> None:
    """Rows that no claim names are left out when claims are judged, but for references."""
    table = find("spafl-table1")
    alone = replace(table, claims={"traffic": table.claims["traffic"]})
    for name in ("fmnist-spafl", "fmnist-fedavg"):
        (run,) = [
            Run(
                "a",
                {"method": plan.config.method, "seed": 0},
                {"round": 500, "state_hash": "", "accuracy": {}, "clock": {"seconds": 1.0}},
                {"paper_up": {500: 1.0}, "paper_down": {500: 1.0}},
                config=tomllib.loads(plan.config.toml()),
            )
            for plan in alone.plans(alone.scales["full"], Path(), 1)
            if plan.folder.parent.name == name
        ]
        keep(run, tmp_path / f"{name}.json")
    (found,) = claims.judge_kept(Shelf(tmp_path), [alone])
    assert found.measured.values == (100.0,)


def test_fewer_clients_than_the_data_set_has_decide_nothing() -> None:
    rows = {"ours": Row("ours", "OURS", pool=3550)}
    table = Table("t", "T", "S", COLUMNS, rows, {}, (), {"c": replace(VALUE, early=True)})
    cells = {("ours", "accuracy"): Cell(Published(90), (90.2, 89.9, 90.1), seeds=(0, 1, 2))}
    for pool, verdict in ((260, "undecided"), (3550, "reproduced")):
        runs = {"ours": (Run("a", {"pool": pool}),)}
        (found,) = claims.judge(Measured(table, cells, {}, runs=runs), "here")
        assert found.verdict == verdict
        assert pool == 3550 or found.reason.startswith("260 of 3550 clients; so far it would be")


def test_tables_say_which_rows_have_fewer_clients_than_the_data_set() -> None:
    rows = {name: Row(name, name.upper(), pool=3550) for name in ("ours", "theirs", "whole")}
    table = Table("t", "T", "S", COLUMNS, rows, {}, (), {})
    pools = {"ours": 260, "theirs": 260, "whole": 3550}
    runs = {name: (Run(name, {"pool": pool}),) for name, pool in pools.items()}
    (note,) = fewer_clients(Measured(table, {}, {}, runs=runs))
    assert note == "260 of the data set's 3550 clients in: OURS; THEIRS"


def test_lost_replies_leave_a_claim_undecided() -> None:
    runs = {"ours": (Run("a", failed=2), Run("b"))}
    found = judged(ABOVE, (91, 92, 90.1), (89, 90, 88), runs=runs)
    assert found.verdict == "undecided"
    assert found.reason.startswith("2 replies of OURS lost; so far it would be reproduced")


def test_runs_that_diverged_are_the_reason() -> None:
    found = judged(ABOVE, (), (88,), diverged={"ours": 2})
    assert found.verdict == "undecided" and found.reason == "runs of OURS diverged"


def test_claims_of_all_four_papers_can_be_judged_without_any_result(tmp_path: Path) -> None:
    found = claims.judge_kept(Shelf(tmp_path))
    assert {each.verdict for each in found} == {"undecided"}
    assert {each.table.name.split("-")[0] for each in found} == {
        "spafl",
        "flash",
        "fedsparse",
        "pffdst",
    }
    assert all(each.expected != "–" or each.claim.than for each in found)
    assert len(found) == sum(len(find(name).claims) for name in names()) >= 15


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ('text = "x"\ncolumn = "nothing"\nrow = "a"\nthan = "b"', "no column is called 'nothing'"),
        ('text = "x"\ncolumn = "c"\nrow = "a"\nthan = "z"', "no row is called 'z'"),
        ('text = "x"\ncolumn = "c"\nrow = "a"', "name the row that it is above"),
        ('text = "x"\ncolumn = "c"\nrow = "a"\nover = 1', "no entry of claim it is called 'over'"),
    ],
)
def test_a_claim_that_cannot_be_judged_is_refused(entry: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'title = "t"\nsource = "s"\n[column.c]\ntitle = "c"\nfigure = "clients"\n'
        '[row.a]\ntitle = "a"\n[row.b]\ntitle = "b"\n[scale.full]\nabout = "all"\n'
        f"[claim.it]\n{entry}\n"
    )
    with pytest.raises(ValueError, match=said):
        load(path)


def test_the_largest_scale_that_was_run_judges_a_claim(tmp_path: Path) -> None:
    table = find("fedsparse-table1")
    for scale, score in (("here", 0.5), ("full", 0.7)):
        plans = table.plans(table.scales[scale], tmp_path, 3)
        for name in ("cifar10-skewed-high", "cifar10-skewed-feddrop"):
            seeds = [plan for plan in plans if plan.folder.parent.name == name]
            for plan in seeds[: 1 if scale == "full" else None]:
                own = score + (0.1 if name.endswith("high") and scale == "full" else 0.0)
                run = Run("a", {"pool": 100}, {"state_hash": "0"}, {"local_mean": {10: own}})
                run = replace(run, config=tomllib.loads(plan.config.toml()), text="# gossamer\n")
                keep(run, tmp_path / f"{scale}-{name}-{plan.folder.name}.json")
    found = {each.claim.name: each for each in claims.judge_kept(Shelf(tmp_path), [table])}
    judged = found["pareto-accuracy"]
    assert judged.scale == "full" and judged.measured.mean == pytest.approx(10)


def test_a_few_rounds_settle_what_is_sent_and_nothing_else(tmp_path: Path) -> None:
    table = find("spafl-table1")
    (plan,) = [
        plan
        for plan in table.plans(table.scales["costs"], tmp_path)
        if plan.folder.parent.name == "fmnist-spafl"
    ]
    run = Run(
        "a",
        {"method": "spafl", "pool": 100},
        {"state_hash": "0", "clock": {"seconds": 1.0}},
        {
            "personal_mean": {2: 0.5},
            "paper_up": {2: 0.5 * 2 * 1.0208e9 / 500},
            "paper_down": {2: 0.5 * 2 * 1.0208e9 / 500},
        },
        config=tomllib.loads(plan.config.toml()),
        text="# gossamer paper spafl-table1 --scale costs\n",
    )
    keep(run, tmp_path / "a.json")
    found = {each.claim.name: each for each in claims.judge_kept(Shelf(tmp_path), [table])}
    assert found["bits"].verdict == "reproduced" and found["bits"].scale == "costs"
    assert found["accuracy"].reason == "not run yet" and not found["accuracy"].measured.values


@pytest.mark.parametrize(("sent", "verdict"), [(0.9, "reproduced"), (1.1, "not reproduced")])
def test_a_figure_may_be_claimed_to_be_below_a_bound(sent: float, verdict: str) -> None:
    found = judged(replace(COST, within=0.0, below=1.0), (sent,), column="gbit")
    assert (found.verdict, found.reason) == (verdict, "wanted less than 1")
    assert found.expected == "below 1"


def test_costs_that_depend_on_what_is_learned_need_seeds() -> None:
    learned = replace(COST, early=False)
    assert judged(learned, (1.0,), column="gbit").reason == "one seed"
    assert judged(learned, (1.0, 1.001, 1.0), column="gbit").verdict == "reproduced"


def test_a_probe_is_not_multiplied_up_with_the_rounds_that_train() -> None:
    """SPDST sends 5 while it probes and 1 a round after it; FedAvg sends 10 a round."""
    table = find("flash-table4")
    scale = replace(table.scales["full"], part=0.01, rows=("cifar10-dense", "cifar10-0.1"))
    figures = {"cifar10-dense": {6: 60.0}, "cifar10-0.1": {1: 5.0, 7: 11.0}}
    for plan in table.plans(scale, Path("runs"), 1):
        row = table.rows[plan.folder.parent.name]
        run = Run("a", curves={"paper_up": figures[row.name]})
        column = Column("up", "up", "paper_up", whole=True)
        wanted = {"cifar10-dense": 6000.0, "cifar10-0.1": 605.0}
        assert value_of(plan, run, row, column) == wanted[row.name]
        unknown = Run("a", curves={"paper_up": {7: 11.0}})
        if row.name == "cifar10-0.1":
            assert value_of(plan, unknown, row, column) is None


def test_seeds_of_a_row_bound_those_that_are_asked_for() -> None:
    table = find("pffdst-table1")
    scale = replace(table.scales["full"], rows=("lenet-feddst-1",))
    assert len(table.plans(scale, Path())) == len(table.plans(scale, Path(), 30)) == 10
    free = replace(table, rows={"lenet-feddst-1": replace(table.rows["lenet-feddst-1"], seeds=0)})
    assert len(free.plans(scale, Path(), 30)) == 30
