"""`gossamer paper`: published beside measured, at three scales; what comes with it is sound."""

import csv
import io
import re
import shlex
import statistics
import tomllib
from pathlib import Path

import pytest

import gossamer as package
from gossamer import fields
from gossamer.cli import main
from gossamer.config import PAPERS
from gossamer.reproduce.comparison import listed
from gossamer.reproduce.published import Cell
from gossamer.reproduce.published_text import measured_words
from gossamer.reproduce.tables import SCALES, Published, Row, Table, find, load, names

from .conftest import Outcome, events
from .test_compare import STOPS
from .test_stopping import Command

ROOT = Path(__file__).parents[2]
MUST = ("quick", "here", "full")
"""Scales that every table has."""
RUN = """method = "{method}"
[experiment]
data = "synthetic"
pool = 6
rounds = {rounds}
[settings]
clients = 2
"""
TABLE = """title = "A table"
source = "Somebody: A paper. 2020"
notes = ["a note"]

[column.kbit]
title = "sent"
figure = "paper"
unit = "Gbit"
whole = true

[column.accuracy]
title = "accuracy"
figure = "global"
unit = "%"

[column.best]
title = "best accuracy"
figure = "clients"
at = "best"
unit = "%"

[column.share]
title = "of dense"
figure = "flops"
relative = "share"

[column.saving]
title = "times less"
figure = "up"
relative = "saving"

[row.dense]
title = "dense"
run = "dense.toml"
published = { kbit = 0.002, accuracy = [50, 1.5] }

[row.sparse]
title = "sparse"
run = "runs/sparse.toml"
set = { density = 0.5 }
reference = "dense"
published = { share = 0.7, saving = 1.5 }

[row.other]
title = "another's"
published = { kbit = 7 }

[scale.quick]
about = "a check"
set = { rounds = 2, eval_every = 1 }

[scale.quick.row]
dense = { lr = 0.02 }

[scale.here]
about = "half"
rows = ["dense"]
part = 0.5

[scale.full]
about = "all"
seeds = 2
"""


@pytest.fixture
def table(gossamer: Command) -> Command:
    """Writes a table of two tiny runs; asking for it is `table(...)`."""
    Path("runs").mkdir()
    Path("dense.toml").write_text(RUN.format(method="fedavg", rounds=8))
    Path("runs/sparse.toml").write_text(RUN.format(method="spdst", rounds=9))
    Path("mine.toml").write_text(TABLE)

    def call(*words: str) -> Outcome:
        return gossamer("paper", "mine.toml", "--workers", "1", *words)

    return call


def shown(table: Command, *words: str) -> Outcome:
    found = table(*words)
    assert found.code == 0, found.err
    return found


def figures(found: Outcome) -> dict[tuple[str, str], dict[str, float]]:
    return {(line["row"], line["column"]): line for line in found.json["figures"]}


def last(run: str, name: str, kind: str = "round-finished") -> float:
    """A figure of the last event of a kind."""
    found = [float(event[name]) for event in events(run) if event["event"] == kind]
    return found[-1]


def test_published_stands_beside_measured_with_the_difference(table: Command) -> None:
    found = shown(table, "--seeds", "2", "--out", "a", "--json")
    cells = figures(found)
    dense = [f"a/dense/seed-{seed}" for seed in (0, 1)]
    # Two of the paper's eight rounds, so four times as much.
    bits = [4 * (last(run, "paper_up") + last(run, "paper_down")) / 1e9 for run in dense]
    sent = cells["dense", "kbit"]
    assert sent["measured"] == pytest.approx(bits[0]) == pytest.approx(bits[1])
    assert sent["difference"] == pytest.approx(bits[0] - 0.002) and sent["rounds"] == 2
    accuracies = [100 * last(run, "global_accuracy", "evaluated") for run in dense]
    accuracy = cells["dense", "accuracy"]
    assert accuracy["measured"] == pytest.approx(statistics.fmean(accuracies))
    assert accuracy["measured_std"] == pytest.approx(statistics.stdev(accuracies))
    assert (accuracy["published"], accuracy["published_std"], accuracy["seeds"]) == (50, 1.5, 2)
    ratios = [
        [last(f"a/sparse/seed-{seed}", name) / last(dense[seed], name) for seed in (0, 1)]
        for name in ("flops", "up")
    ]
    assert cells["sparse", "share"]["measured"] == pytest.approx(statistics.fmean(ratios[0]))
    saving = statistics.fmean(1 / each for each in ratios[1])
    assert cells["sparse", "saving"]["measured"] == pytest.approx(saving)
    assert cells["other", "kbit"]["measured"] is None and ("other", "accuracy") not in cells

    lines = [" ".join(line.split()) for line in found.out.splitlines()]
    assert f"dense 0.002 {bits[0]:.5g} ± 0 2 {100 * (bits[0] / 0.002 - 1):+.1f} %" in lines
    mean = accuracy["measured"]
    error = accuracy["measured_std"] / 2**0.5
    assert accuracy["measured_se"] == pytest.approx(error)
    assert f"dense 50 ± 1.5 {mean:.2f} ± {error:.2g} 2 {mean - 50:+.2f}" in lines
    assert "another's 7 – – –" in lines
    whole = found.out.rpartition("(4/4)")[2].partition("\n\n")[2].rpartition("csv: ")[0]
    assert max(map(len, whole.splitlines())) <= 80
    page = Path(found.json["report"]).read_text()
    cells = ["dense", "50 ± 1.5", f"{mean:.2f} ± {error:.2g}", "2", f"{mean - 50:+.2f}"]
    assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in page
    assert "<h2>Published and measured</h2>" in page and "<li>a note</li>" in page
    assert "<td>another&#39;s</td><td>7</td><td>–</td><td>–</td><td>–</td>" in page
    assert "- scale quick: a check" in lines and "- a note" in lines
    assert any("extrapolated from the rounds" in line for line in lines)


def test_files_have_the_figures_of_the_table(table: Command) -> None:
    found = shown(table, "--out", "a", "--json")
    whole = found.json
    lines = list(csv.DictReader(io.StringIO(Path(whole["csv"]).read_text())))
    for line, figure in zip(lines, whole["figures"], strict=True):
        assert {key: value for key, value in line.items() if value} == {
            key: str(value) for key, value in figure.items() if value not in (None, "")
        }
    latex = Path(whole["latex"]).read_text()
    assert r"dense & 50 $\pm$ 1.5 &" in latex and r"another's & 7 & -- & -- & -- \\" in latex
    assert latex.count(r"\begin{tabular}{lrrrr}") == latex.count(r"\end{tabular}") == 5
    assert latex.endswith("% a note\n")
    page = Path(whole["report"]).read_text()
    assert "A table" in page and "Somebody: A paper. 2020" in page
    assert "\ndense " in found.out and "report: a/report.html" in found.out
    quiet = table("--out", "a", "--quiet").out
    assert "\ndense " in quiet and "report: a/report.html" in quiet and "runs" not in quiet


def test_scales_have_their_rows_rounds_seeds_and_settings(table: Command) -> None:
    found = {
        scale: [
            (run["row"], run["seed"], run["rounds"])
            for run in shown(table, "--scale", scale, "--dry", "--json").json["runs"]
        ]
        for scale in MUST
    }
    # A round that only probes comes on top of those that train.
    assert found["quick"] == [("dense", 0, 2), ("sparse", 0, 3)]
    assert found["here"] == [("dense", 0, 4)]
    assert found["full"] == [("dense", 0, 8), ("sparse", 0, 9), ("dense", 1, 8), ("sparse", 1, 9)]
    assert not Path("runs/paper-mine-quick").exists()
    mine = load(Path("mine.toml"))
    dense, sparse = (plan.config for plan in mine.plans(mine.scales["quick"], Path("a")))
    assert dense.settings["lr"] == 0.02 and "lr" not in sparse.settings
    assert sparse.settings["density"] == 0.5 and "density" not in dense.settings


def test_the_same_command_goes_on_and_rows_come_one_by_one(table: Command) -> None:
    first = shown(table, "--only", "sparse", "--json")
    assert first.json["out"] == "runs/paper-mine-quick" and "1 run\n" in first.out
    assert figures(first)["dense", "kbit"]["measured"] is None
    # There is nothing yet to have a share of.
    assert figures(first)["sparse", "share"]["measured"] is None
    whole = shown(table, "--json")
    assert "2 runs, 1 of them finished already" in whole.out
    log = Path("runs/paper-mine-quick/dense/seed-0/events.jsonl").read_bytes()
    again = shown(table, "--only", "sparse", "--json")
    assert again.json == whole.json
    assert Path("runs/paper-mine-quick/dense/seed-0/events.jsonl").read_bytes() == log
    Path("mine.toml").write_text(TABLE.replace("lr = 0.02", "lr = 0.03"))
    found = table()
    assert found.code == 2 and "(lr 0.02, not 0.03); another --out starts a new one" in found.err
    # A row of other settings is not taken for this one.
    assert figures(shown(table, "--only", "sparse", "--json"))["dense", "kbit"]["measured"] is None


def test_a_stopped_table_goes_on_to_the_same_figures(table: Command, gossamer: Command) -> None:
    assert gossamer("cp", "fedavg", "mine.py").code == 0
    source, head = Path("mine.py").read_text(), "\n    def merge("
    Path("mine.py").write_text(source.replace(head, STOPS.format(how="SIGINT")))
    Path("dense.toml").write_text(RUN.format(method="mine.py:FedAvg", rounds=8))
    whole = shown(table, "--scale", "here", "--out", "whole", "--json").json
    Path("stop").touch()
    cut = table("--scale", "here", "--out", "cut")
    assert cut.code == 130
    command = "gossamer paper mine.toml --workers 1 --scale here --out cut"
    assert f"after round 2; continue with: {command}" in cut.err
    assert not Path("cut/table.csv").exists()
    assert (
        shown(table, "--scale", "here", "--out", "cut", "--json").json["figures"]
        == whole["figures"]
    )


def test_kept_runs_are_printed_without_folders_and_scales_keep_apart(table: Command) -> None:
    for scale in ("here", "quick"):
        shown(table, "--scale", scale, "--out", scale, "--results", "kept", "--only", "dense")
    assert sorted(path.name for path in Path("kept/mine").iterdir()) == [
        "dense-seed-0-quick.json",
        "dense-seed-0.json",
    ]
    first = shown(table, "--scale", "here", "--out", "here", "--json")
    again = shown(table, "--scale", "here", "--out", "new", "--results", "kept", "--json")
    before, after = (
        {at: line["measured"] or 0 for at, line in figures(one).items()} for one in (first, again)
    )
    assert before == pytest.approx(after, rel=1e-5) and not list(Path("new").glob("dense*"))


def test_kept_results_are_printed_and_nothing_is_run(table: Command) -> None:
    refused = table("--kept", "--results", "results")
    assert refused.code == 2 and "no run of mine is kept in results" in refused.err
    table("--scale", "here", "--results", "results", "--out", "a")
    found = table("--kept", "--results", "results", "--json")
    assert found.code == 0 and found.json["scale"] == "here"
    told = {(each["row"], each["column"]): each["seeds"] for each in found.json["figures"]}
    assert told["dense", "accuracy"] == 1 and told["sparse", "share"] == 0
    assert not list(Path("runs").glob("paper-*"))


def test_papers_servers_accept_every_reply_and_say_what_was_lost(table: Command) -> None:
    table("--scale", "here", "--results", "results", "--out", "a", "--quiet")
    (kept,) = Path("results").rglob("*.json")
    content = kept.read_text()
    assert "reply_limit = 0" in Path("a/dense/seed-0/config.toml").read_text()
    kept.write_text(content.replace('"failed": 0', '"failed": 3'))
    found = table("--kept", "--results", "results")
    assert "dense: 3 replies lost in its run" in " ".join(found.out.split())
    # A run with a limit that refused nobody stands for one without; otherwise it does not.
    limited = content.replace('"reply_limit": 0.0', '"reply_limit": 50.0')
    assert limited != content
    kept.write_text(limited)
    assert table("--kept", "--results", "results").code == 0
    kept.write_text(limited.replace('"failed": 0', '"failed": 3'))
    assert table("--kept", "--results", "results").code == 2


def test_what_clients_hold_out_is_said(table: Command) -> None:
    plain = Path("dense.toml").read_text()
    Path("dense.toml").write_text(plain.replace("pool = 6", "pool = 6\nvalid = 0.25"))
    found = table("--scale", "here", "--out", "a")
    said = " ".join(found.out.split())
    assert "clients hold out 25 % of their training data in: all rows" in said


@pytest.mark.parametrize(
    ("over", "measured", "mean", "std", "words"),
    [
        ("mean", 4.0, 4.0, statistics.stdev([1, 2, 4, 9]), "4.0 ± 1.8"),
        ("max", 9.0, 4.0, statistics.stdev([1, 2, 4, 9]), "9.0 (4.0 ± 1.8)"),
        ("middle", 3.0, 3.0, 2**0.5, "3.0 ± 1.8"),
    ],
)
def test_seeds_are_joined_as_the_paper_does(
    over: str, measured: float, mean: float, std: float, words: str
) -> None:
    cell = Cell(Published(3.0), (1.0, 9.0, 2.0, 4.0), over)
    assert (cell.measured, cell.mean, cell.difference) == (measured, mean, measured - 3)
    assert cell.std == std and measured_words(cell, ".1f") == words
    assert Cell(Published(3.0), (1.0, 9.0), "middle").measured == 5.0
    assert measured_words(Cell(None, (9.0,), "max"), ".1f") == "9.0"


REFUSED = {
    "spafl-tabel1": "no table 'spafl-tabel1'; did you mean 'spafl-table1'? `gossamer paper` lists",
    "none.toml": "there is no configuration file none.toml",
    "mine.toml --scale huge": "invalid choice: 'huge'",
    "few.toml --scale full": "few has no scale full, only quick",
    "mine.toml --only dens": "no row 'dens' in mine; did you mean 'dense'? rows: dense, sparse",
    "mine.toml --only other": "row other has published figures only; no method here can run it",
    "mine.toml --only sparse --scale here": "not run at scale here; use --scale quick",
    "mine.toml --kept --only dense": "--kept runs nothing, so --only has no effect; leave it out",
    "mine.toml --kept --seeds 2": "--kept runs nothing, so --seeds has no effect; leave it out",
    "mine.toml --dry --pictures x": "--dry runs nothing, so --pictures has no effect",
    "mine.toml --claims": "mine has no claims",
    "mine.toml --claims --only dense": "--claims runs nothing, so --only has no effect",
    "--claims --results nowhere": "there is no folder nowhere with kept results",
    "--kept": "the list of tables runs nothing, so --kept has no effect",
    "few.toml --kept --results .": "no run of few is kept in",
    "pffdst-table1 --scale here --results r": "run `gossamer data get cifar10`, or put",
    "mine.toml --seeds -1": "--seeds must be at least 1",
    "mine.toml --workers x": "--workers is a whole number, not 'x'",
    "mine.toml --ony dense": "no option '--ony' of `gossamer paper`; did you mean '--only'?",
    "pffdst-table1 --scale here": "run `gossamer data get cifar10`, or put",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_is_wrong_is_said_before_anything_is_run(
    table: Command, gossamer: Command, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOSSAMER_DATA", str(Path("nothing").resolve()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("nothing").resolve()))
    head, _, rest = TABLE.partition("[scale.quick]")
    Path("few.toml").write_text(f"{head}[scale.quick]{rest.partition('[scale.here]')[0]}")
    found = gossamer("paper", *words.split())
    assert found.code == 2 and REFUSED[words] in found.err, found.err
    assert not list(Path("runs").glob("paper-*"))


def test_without_data_nothing_is_run_even_if_results_are_kept(
    table: Command, gossamer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last row lacks its data: the rows before it are not trained first."""
    monkeypatch.setenv("GOSSAMER_DATA", str(Path("nothing").resolve()))
    monkeypatch.setenv("XDG_CACHE_HOME", str(Path("nothing").resolve()))
    text = Path("mine.toml").read_text()
    more = text.replace("set = { density = 0.5 }", 'set = { density = 0.5, data = "cifar10" }')
    Path("other.toml").write_text(more)
    found = gossamer("paper", "other.toml", "--results", "r", "--out", "o")
    assert found.code == 2 and "gossamer data get cifar10" in found.err
    assert not Path("o").exists() and not Path("r").exists()


def test_runs_that_are_kept_are_all_in_the_list_of_the_folder(table: Command) -> None:
    table("--scale", "quick", "--results", "r", "--out", "o", "--quiet")
    assert len(list(Path("r").rglob("*.json"))) == len(listed(Path("o"))) == 2


WRONG = {
    ("title =", "titel ="): "no entry of a table is called 'titel'; did you mean 'title'?",
    ('source = "Somebody: A paper. 2020"\n', ""): "the table has no source",
    ('figure = "paper"', 'figure = "papers"'): "no figure is called 'papers'; did you mean 'paper'",
    ('unit = "Gbit"', 'unit = "Tbit"'): "no unit is called 'Tbit'",
    ('at = "best"', 'at = "first"'): "no moment is called 'first'",
    (
        'figure = "clients"',
        'figure = "up"',
    ): "best applies to accuracies, and up is none",
    ('figure = "paper"', 'figure = "density"'): "does not accumulate; leave out whole",
    ('figure = "clients"', 'reaching = 50\nfigure = "clients"'): "leave out reaching",
    (
        'figure = "paper"',
        'reaching = 50\nfigure = "paper"',
    ): "is not for all rounds",
    ('figure = "up"', 'reaching = 50.5\nfigure = "up"'): "reaching is a whole percent, not 50.5",
    ('figure = "paper"', 'by = "local"\nfigure = "paper"'): "say how much with reaching",
    ("runs/sparse.toml", "none.toml"): "row sparse: there is no configuration file",
    ("density = 0.5", "densty = 0.5"): "no setting for row sparse is called 'densty'; did you mean",
    ("kbit = 7", "mbit = 7"): "no column is called 'mbit'",
    ('reference = "dense"', 'reference = "dens"'): "no row is called 'dens'; did you mean 'dense'?",
    ('reference = "dense"\n', ""): "row sparse: share is relative; name its reference",
    ('rows = ["dense"]', 'rows = ["other"]'): "scale here: row other names no run",
    ("part = 0.5", "part = 1.5"): "part is above 0 and at most 1",
    ("{ lr = 0.02 }", "{ alpha = 1 }"): "no setting for scale quick, row dense is called 'alpha'",
    ("rounds = 2, eval", "round = 2, eval"): "no setting for scale quick is called 'round'",
    ("[scale.full]", "[scale.huge]"): "no scale is called 'huge'",
    ("kbit = 7", "kbit = [7, 8, 9]"): "is not a table of a paper",
    ("kbit = 7", "kbit ="): "mine.toml is not valid TOML",
    ("set = { rounds = 2", "set = { lr = -1, rounds = 2"): "--lr must be above 0, not -1",
}


@pytest.mark.parametrize("change", WRONG)
def test_what_is_wrong_in_a_table_is_named(table: Command, change: tuple[str, str]) -> None:
    assert TABLE.count(change[0]) >= 1
    Path("mine.toml").write_text(TABLE.replace(*change, 1))
    found = table("--dry")
    assert found.code == 2 and WRONG[change] in found.err, found.err


# what comes with the package ----------------------------------------------------------------------


def rows(table: Table) -> list[Row]:
    return [row for row in table.rows.values() if row.config]


@pytest.mark.parametrize("name", names())
def test_every_table_can_be_run_at_every_scale(name: str) -> None:
    table = find(name)
    text = (PAPERS / f"{name}.toml").read_text()
    assert text.startswith(f"# gossamer paper {name} --scale quick\n")
    assert list(table.scales) == [each for each in SCALES if each in (*MUST, *table.scales)]
    blank = any("published figures are not in this file" in note for note in table.notes)
    assert blank != any(row.published for row in rows(table))
    assert all(row.published for row in table.rows.values() if not row.config)
    quick, here, full = (table.plans(table.scales[name], Path("out")) for name in MUST)
    assert here
    assert "a check that everything runs" in table.scales["quick"].about
    for plan in quick:
        wish = plan.config.experiment
        assert (
            wish.data == "fmnist-mini"
            and fields.value(plan.config.build_method(), "clients") <= wish.pool
        )
    assert table.runs(table.scales["full"]) == rows(table)
    for row, plan in zip(rows(table), full, strict=False):
        assert row.config == plan.config


def test_all_tables_are_listed(gossamer: Command) -> None:
    found = gossamer("paper", "--json")
    assert found.code == 0
    assert {path.stem for path in PAPERS.glob("*.toml")} == set(names())
    assert [each["name"] for each in found.json["tables"]] == names()
    for name in names():
        assert f"\n{name} " in f"\n{found.out}"


def test_the_guide_names_all_tables_and_its_commands_work(gossamer: Command) -> None:
    text = (ROOT / "docs" / "papers.md").read_text()
    part = text.partition("## The tables")[2].partition("##")[0]
    first = [line.split("|")[1] for line in part.splitlines() if line.startswith("| `")]
    assert sorted(re.findall(r"`(\S+?)`", " ".join(first))) == names()
    commands = re.findall(r"^gossamer (paper.*)$", text, re.MULTILINE)
    assert len(commands) == 5
    for words in map(shlex.split, commands):
        dry = [] if words == ["paper"] or "--dry" in words else ["--dry"]
        assert gossamer(*words, *dry).code == 0


def test_a_wheel_has_every_file_of_the_papers() -> None:
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    inside = Path(package.__file__).parent
    packed = {
        path for pattern in setup["package-data"]["gossamer"] for path in inside.glob(pattern)
    }
    files = list(PAPERS.rglob("*.toml"))
    assert len(files) > 90
    assert {path.relative_to(PAPERS) for path in files} == {
        path.relative_to(inside / "papers") for path in packed if path.suffix == ".toml"
    }


def test_a_file_of_a_paper_has_the_same_name_everywhere(gossamer: Command) -> None:
    assert not Path("papers").exists()
    by_path = gossamer("paper", "papers/spafl-table1.toml", "--dry", "--json")
    assert (
        by_path.code == 0
        and by_path.json == gossamer("paper", "spafl-table1", "--dry", "--json").json
    )
    Path("papers/spafl").mkdir(parents=True)
    Path("papers/spafl/fmnist.toml").write_text(RUN.format(method="fedavg", rounds=1))
    found = gossamer("run", "papers/spafl/fmnist.toml", "--out", "mine", "--json")
    assert found.code == 0 and found.json["method"] == "fedavg"  # the working folder comes first


def test_help_tells_of_the_scales(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["paper", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--scale {quick,costs,here,full}" in text and "--only ROW" in text and "--dry" in text
