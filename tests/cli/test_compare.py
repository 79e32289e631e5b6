"""`gossamer compare`: the same federation for all, nothing run twice, one table in four forms."""

import csv
import io
import re
import signal
import tomllib
from pathlib import Path

import pytest

from gossamer.accounting import Cost
from gossamer.cli import main
from gossamer.cli.comparison_progress import ComparisonProgress
from gossamer.config import Config, Experiment, find_method
from gossamer.engine import Summary, replay
from gossamer.engine.summary import UNKNOWN
from gossamer.reproduce.plans import Plan, probes

from .conftest import SMALL, Outcome, events
from .test_progress import CLOCK, FAILED, evaluated, finished
from .test_stopping import PATIENCE, Command, start

TINY = ["--data", "synthetic", "--pool", "6", "--clients", "2", "--workers", "1", "--rounds", "2"]


def compare(gossamer: Command, *words: str) -> Outcome:
    found = gossamer("compare", *words)
    assert found.code == 0, found.err
    return found


def configuration(run: str) -> dict[str, dict[str, object]]:
    return tomllib.loads(Path(run, "config.toml").read_text())


def test_seeds_of_all_methods_are_runs_on_the_same_federations(gossamer: Command) -> None:
    found = compare(gossamer, "fedavg", "spafl", *TINY, "--seeds", "2", "--seed", "3", "--json")
    out = found.json["out"]
    runs = [run["run"] for run in found.json["runs"]]
    assert [run.removeprefix(out) for run in runs] == [
        "/fedavg/seed-3",
        "/spafl/seed-3",
        "/fedavg/seed-4",
        "/spafl/seed-4",
    ]
    facts = [events(run)[0]["data"] for run in runs]
    assert facts[0] == facts[1] and facts[2] == facts[3] and facts[0] != facts[2]
    alone = gossamer("run", f"{runs[1]}/config.toml", "--out", "alone", "--quiet", "--json").json
    assert alone["state_hash"] == found.json["runs"][1]["state_hash"]
    typed = Path(runs[1], "config.toml").read_text().partition("\n")[0]
    assert re.fullmatch("# gossamer compare fedavg spafl .* --seeds 2 --seed 3 --json.*", typed)
    page = Path(found.json["report"]).read_text()
    assert f"<code>{typed[2:]}</code>, or this run only: <code>gossamer run {runs[1]}/con" in page


def test_table_csv_latex_and_page_have_the_same_figures(gossamer: Command) -> None:
    found = compare(gossamer, "fedavg", "spafl", "fedavg:lr=1e-9", *TINY, "--seeds", "2", "--json")
    whole = found.json
    rows = {row["run"]: row for row in whole["rows"]}
    assert list(rows) == ["fedavg · lr 0.05", "spafl", "fedavg · lr 1e-09"]
    points = [(row["mean"]["accuracy"], -row["mean"]["sent"]) for row in rows.values()]
    best = [not any(a >= x and b >= y and (a, b) != (x, y) for a, b in points) for x, y in points]
    assert [row["pareto_best"] for row in rows.values()] == best
    # As many bits as FedAvg, and nothing learned; nothing needs fewer bits than SpaFL.
    assert best[1] and not best[2]
    first, page = rows["fedavg · lr 0.05"], Path(whole["report"]).read_text()
    each = [run for run in whole["runs"] if "/fedavg/" in run["run"]]
    accuracies = [run["accuracy"]["global"] for run in each]
    mean = sum(accuracies) / 2
    assert first["mean"]["global_accuracy"] == pytest.approx(mean)
    assert first["std"]["global_accuracy"] == pytest.approx(
        abs(accuracies[0] - accuracies[1]) / 2**0.5
    )
    assert first["mean"]["up"] == each[0]["bits"]["up"]
    assert first["mean"]["seconds"] == pytest.approx(sum(run["seconds"] for run in each) / 2)
    error = abs(accuracies[0] - accuracies[1]) / 2
    assert first["se"]["global_accuracy"] == pytest.approx(error)
    accuracy = f"{mean:.4f} ± {error:.2g}"
    # Too wide for 80 columns: accuracies, and costs below them.
    lines = found.out.partition("\nrun ")[2].partition("\ncsv: ")[0].splitlines()
    assert max(map(len, lines)) <= 80
    high, low = (line for line in lines if line[2:].startswith("fedavg · lr 0.05 "))
    assert accuracy in high and " 2  " in high
    assert " 100 % " in low and f"{each[0]['bits']['up'] / 1e6:.4g}" in low
    marked = [line[2:].split("  ")[0] for line in lines if re.match(r"\* \S+  ", line)]
    assert marked == 2 * [name for name, row in rows.items() if row["pareto_best"]]
    assert "means ± one standard error over n seeds" in " ".join(lines)
    assert "no difference shown" in " ".join(" ".join(lines).split())
    (difference,) = [each for each in whole["differences"] if "1e-09" in each["other"]]
    assert difference["seeds"] == 2 and difference["p"] > 0.05 and not difference["shown"]
    assert f"{mean:.4f} <small>± {error:.2g}</small>" in page and "n = 2 seeds" in page
    assert page.count("Pareto-optimal</span>") == sum(best)

    table = list(csv.DictReader(io.StringIO(Path(whole["csv"]).read_text())))
    assert [row["run"] for row in table] == list(rows)
    assert [row["pareto_best"] for row in table] == [str(int(each)) for each in best]
    assert table[0]["seeds"] == "0 1" and float(table[0]["global_accuracy"]) == pytest.approx(mean)
    assert float(table[0]["up"]) == each[0]["bits"]["up"]
    assert float(table[0]["global_accuracy_se"]) == pytest.approx(error)
    assert table[0]["device_seconds"] == ""

    latex = Path(whole["latex"]).read_text()
    assert accuracy.replace("±", r"$\pm$") in latex
    assert r"\textbf{spafl}$^\ast$ &" in latex and r"100 \% &" in latex
    columns = latex.partition("{tabular}{")[2].partition("}")[0]
    assert {line.count("&") for line in latex.splitlines() if "&" in line.replace(r"\&", "")} == {
        len(columns) - 1
    }


def test_a_finished_comparison_is_shown_again_and_not_run_again(gossamer: Command) -> None:
    words = ["fedavg", "fedprox", *TINY, "--out", "a"]
    first = compare(gossamer, *words, "--json").json
    logs = {run["run"]: Path(run["run"], "events.jsonl").read_bytes() for run in first["runs"]}
    # How many work on it is no setting of what is compared.
    again = compare(gossamer, *words, "--workers", "2", "--json")
    resumed = compare(gossamer, "--resume", "a", "--json")
    assert again.json == resumed.json == first
    assert all(Path(run, "events.jsonl").read_bytes() == log for run, log in logs.items())
    assert "2 runs, 2 of them finished already" in again.out


def test_more_seeds_and_methods_leave_what_is_there(gossamer: Command) -> None:
    compare(gossamer, "fedavg", *TINY, "--out", "a")
    log = Path("a/fedavg/seed-0/events.jsonl").read_bytes()
    more = compare(gossamer, "spafl", "fedavg", *TINY, "--seeds", "2", "--out", "a", "--json")
    assert "4 runs, 1 of them finished already" in more.out
    assert [row["run"] for row in more.json["rows"]] == ["spafl", "fedavg"]
    assert Path("a/fedavg/seed-0/events.jsonl").read_bytes() == log


def test_other_settings_are_refused_in_a_folder_and_have_one_of_their_own(
    gossamer: Command,
) -> None:
    before = compare(gossamer, "fedavg", *TINY, "--out", "a", "--quiet", "--json").json
    found = gossamer("compare", "fedavg", *TINY, "--out", "a", "--lr", "0.5")
    assert found.code == 2 and "(lr 0.05, not 0.5)" in found.err
    assert "gossamer compare --resume a" in found.err and "another --out" in found.err
    assert compare(gossamer, "--resume", "a", "--quiet", "--json").json == before
    one = compare(gossamer, "fedavg", *TINY, "--quiet", "--json").json["out"]
    other = compare(gossamer, "fedavg", *TINY, "--lr", "0.5", "--quiet", "--json").json["out"]
    assert one != other
    assert compare(gossamer, "fedavg", *TINY, "--quiet", "--json").json["out"] == one


STOPS = """
    def merge(self, ctx: Ctx, state: Server, exchanges: Iterable[Exchange[Down, Up]]) -> Server:
        import os, pathlib, signal
        if ctx.round == 2 and pathlib.Path("stop").exists():
            pathlib.Path("stop").unlink()
            os.kill(os.getpid(), signal.{how})
        return self.merged(ctx, state, exchanges)

    def merged("""


@pytest.mark.parametrize("how", ["SIGINT", "SIGKILL"])
def test_a_stopped_comparison_goes_on_to_the_same_bits(gossamer: Command, how: str) -> None:
    assert gossamer("cp", "fedavg", "mine.py").code == 0
    source = Path("mine.py").read_text()
    head = "\n    def merge("
    assert source.count(head) == 1
    Path("mine.py").write_text(source.replace(head, STOPS.format(how=how)))
    words = ["fedavgm", "mine.py:FedAvg", "fedprox", *TINY, "--rounds", "3"]
    whole = compare(gossamer, *words, "--out", "whole", "--quiet", "--json").json
    Path("stop").touch()
    if how == "SIGINT":
        found = gossamer("compare", *words, "--out", "cut")
        assert found.code == 130, found.err
        assert "FedAvg seed 0 after round 2; continue with: gossamer compare --resume" in found.err
        rest = ["--resume", "cut"]
    else:
        process = start("compare", *words, "--out", "cut")
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -signal.SIGKILL
        rest = [*words, "--out", "cut"]
    first = Path("cut/fedavgm/seed-0/events.jsonl").read_bytes()
    assert not Path("cut/fedprox/seed-0/events.jsonl").exists()
    again = compare(gossamer, *rest, "--json")
    assert "3 runs, 1 of them finished already" in again.out
    hashes = [[run["state_hash"] for run in found["runs"]] for found in (whole, again.json)]
    assert hashes[0] == hashes[1]
    for name in ("fedavgm", "FedAvg", "fedprox"):
        assert events(f"cut/{name}/seed-0") == events(f"whole/{name}/seed-0")
    assert Path("cut/fedavgm/seed-0/events.jsonl").read_bytes() == first


def test_settings_are_for_all_that_have_them_or_for_one_alone(gossamer: Command) -> None:
    found = compare(
        gossamer,
        *("fedavg", "spdst:rounds=3,probe-clients=1", "spdst:density=0.5", *TINY),
        *("--density", "0.2", "--lr", "0.01", "--probe-epochs", "1", "--out", "a"),
    )
    assert "note: --density applies to spdst:rounds=3,probe-clients=1 only" in found.out
    dense = configuration("a/fedavg/seed-0")
    first = configuration("a/spdst,rounds=3,probe_clients=1/seed-0")
    second = configuration("a/spdst,density=0.5/seed-0")
    assert [each["settings"]["lr"] for each in (dense, first, second)] == [0.01] * 3
    assert "density" not in dense["settings"]
    assert (first["settings"]["density"], second["settings"]["density"]) == (0.2, 0.5)
    assert (first["experiment"]["rounds"], second["experiment"]["rounds"]) == (3, 2)


def test_rounds_that_only_probe_can_be_left_out_of_the_count(gossamer: Command) -> None:
    words = ["fedavg", "spdst:probe_epochs=1", "pdst", *TINY, "--equal", "training", "--out", "a"]
    runs = compare(gossamer, *words, "--quiet", "--json").json["runs"]
    assert [run["rounds"] for run in runs] == [2, 3, 2]
    assert probes(find_method("pfflash")) and not probes(find_method("pffdst"))


FILE = """method = "{method}"
[experiment]
data = "synthetic"
pool = 6
rounds = {rounds}
{more}
[settings]
clients = 2
[options]
workers = 1
"""


def test_files_and_classes_are_compared_too_and_names_take_over_from_files(
    gossamer: Command,
) -> None:
    assert gossamer("cp", "fedavg", "mine.py").code == 0
    Path("dense.toml").write_text(FILE.format(method="fedavgm", rounds=2, more=""))
    words = ["dense.toml", "dense.toml:lr=0.2", "mine.py:FedAvg", "--clients", "2", "--out", "a"]
    runs = compare(gossamer, *words, "--quiet", "--json").json["runs"]
    folders = ["a/dense/seed-0", "a/dense,lr=0.2/seed-0", "a/FedAvg/seed-0"]
    assert [run["run"] for run in runs] == folders
    settings = [configuration(run)["experiment"] for run in folders]
    assert settings[0] == settings[1] == settings[2] and settings[0]["data"] == "synthetic"


REFUSED = {
    "compare": "name methods first",
    "compare fedavg spalf": "did you mean 'spafl'?",
    "compare fedavg spafl --densty 0.1": "no option '--densty'",
    "compare fedavg fedprox --density 0.1": "no option '--density' of `gossamer compare fedavg",
    "compare fedavg fedavg": "fedavg is named twice",
    "compare fedavg spafl:alhpa=1": "spafl:alhpa=1: no setting is called 'alhpa'; did you mean",
    "compare fedavg spafl:lr=0": "spafl:lr=0: --lr must be above 0, not 0",
    "compare fedavg spafl:alpha=1,lr": "'lr' in 'spafl:alpha=1,lr' sets nothing",
    "compare fedavg:lr": "'lr' in 'fedavg:lr' has no value; write e.g. fedavg:lr=0.01",
    "compare fedavg:lr=0.1,lr=0.2": "'fedavg:lr=0.1,lr=0.2' sets lr twice",
    "compare fedavg --rounds 2 spafl": "takes no further 'spafl'",
    "compare fedavg spafl:pool=3": "pool is the same for all methods of a comparison; use --pool",
    "compare fedavg spafl:seed=3": "seed is the same for all",
    "compare fedavg spafl:lr=x": "spafl:lr=x: --lr is a number, not 'x'",
    "compare fedavg none.toml": "there is no configuration file none.toml",
    "compare fedavg a.toml b.toml": "has rounds 2, and b.toml 3; set --rounds for all of them",
    "compare a.toml c.toml": "has partition '', and c.toml 'iid'; set --partition for all of them",
    "compare fedavg --seeds 0": "--seeds must be at least 1, not 0",
    "compare fedavg --seeds x": "--seeds",
    "compare fedavg spdst --equal training": "--equal training needs --rounds",
    "compare fedavg spdst --rounds 1 --data synthetic": "spdst seed 0: ",
    "compare fedavg --clients 50 --pool 6 --data synthetic": "50 clients per round asked for",
    "compare --resume nowhere": "nowhere holds no comparison",
    "compare fedavg --resume nowhere": "continues the comparison in a folder; name no methods",
}


@pytest.mark.parametrize("command", REFUSED)
def test_what_is_wrong_is_said_before_anything_is_run(gossamer: Command, command: str) -> None:
    for name, rounds, more in (("a", 2, ""), ("b", 3, ""), ("c", 2, 'partition = "iid"')):
        text = FILE.format(method="fedavg", rounds=rounds, more=more)
        Path(f"{name}.toml").write_text(text)
    found = gossamer(*command.split())
    assert found.code == 2 and REFUSED[command] in found.err, found.err
    assert not Path("runs").exists()


def test_a_damaged_list_of_runs_is_named(gossamer: Command) -> None:
    Path("damaged").mkdir()
    Path("damaged/comparison.json").write_text('{"runs": [')
    found = gossamer("compare", "--resume", "damaged")
    assert found.code == 1 and "damaged/comparison.json is damaged; repeat the command" in found.err


def test_a_failing_client_stops_the_comparison_which_can_go_on(gossamer: Command) -> None:
    assert gossamer("cp", "fedavg", "mine.py").code == 0
    source = Path("mine.py").read_text()
    head = "    def finish(self, ctx: Ctx, work: Work)"
    assert head in source
    fault = (
        f"{head.replace('work: Work)', 'work: Work) -> None:')}\n        raise OSError('gone')\n"
    )
    Path("mine.py").write_text(source.replace(head, f"{fault}\n{head.replace('finish', 'rest')}"))
    found = gossamer("compare", "fedavg", "mine.py:FedAvg", *TINY, "--out", "a")
    assert found.code == 1 and "gossamer compare --resume a" in found.err and "gone" in found.err
    Path("mine.py").write_text(source)
    assert "2 runs, 1 of them finished already" in compare(gossamer, "--resume", "a").out


def test_help_lists_what_any_of_the_methods_has(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["compare", "fedprox", "spafl", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--mu X" in text and "--alpha X" in text and "--seeds N" in text and "--data" in text


def plan(name: str, rounds: int) -> Plan:
    return Plan(Path(name, "seed-0"), Config(name, {}, Experiment(rounds=rounds)))


SUMMARY = Summary(
    **{
        **dict.fromkeys(Summary.__dataclass_fields__),
        "scores": {**UNKNOWN, "global": 0.7654},
        "metric": "accuracy",
        "density": 0.25,
        "cost": Cost(),
        "seconds": 12.5,
    }
)


def shown(whole: ComparisonProgress, todo: list[Plan]) -> None:
    """A run of 20 rounds, one of them with a failure, and its end."""
    with whole:
        sink = whole.begin(todo[1])
        for number in range(1, 21):
            if number == 2:
                sink.emit(FAILED, CLOCK)
            sink.emit(finished(number), CLOCK)
            sink.emit(evaluated(number), CLOCK)
        sink.close()
        whole.end(todo[1], SUMMARY)


def test_a_pipe_gets_few_lines_of_a_run_and_one_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    kept = replay.path(Path("spafl/seed-0/rounds"), 2, 7)
    kept.parent.mkdir(parents=True)
    kept.touch()
    todo, stream = [plan("fedavg", 20), plan("spafl", 20), plan("spdst", 40)], io.StringIO()
    shown(ComparisonProgress(todo, todo[1:], stream=stream), todo)
    failed, *lines, end = stream.getvalue().splitlines()
    assert "gossamer replay spafl/seed-0 --round 2 --client 7" in failed
    assert len(lines) == 9 and lines[0].startswith(" 28 %  spafl seed 0  round 2/20  accuracy 0.81")
    assert re.search(r"left \d+:\d\d$", lines[0])
    assert end.startswith("spafl seed 0 finished (2/3)  accuracy 0.7654") and end.endswith("12.5 s")
    quiet = io.StringIO()
    shown(ComparisonProgress(todo, todo[1:], quiet=True, stream=quiet), todo)
    assert quiet.getvalue() == ""


def test_a_terminal_has_one_bar_over_all_rounds() -> None:
    console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    screen = console.Console(file=stream, force_terminal=True, width=100)
    todo = [plan("fedavg", 20), plan("spafl", 20), plan("spdst", 40)]
    shown(ComparisonProgress(todo, todo[1:], console=screen), todo)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())
    last = " ".join(text[text.rindex("spafl seed 0 (2/3)") :].split())
    assert "50 % · left" in last and "round 20/20 · accuracy 0.8123" in last
    assert "spafl seed 0 finished (2/3)" in text and "client 7 failed" in text


def test_validation_data_decide_which_is_best_where_rounds_are_selected_on_it(
    gossamer: Command,
) -> None:
    words = ["fedavg:lr=0.05", "fedavg:lr=0.3", *SMALL, "--valid", "0.3", "--select", "valid"]
    found = gossamer("compare", *words, "--out", "v", "--json")
    logs = [events(run["run"]) for run in found.json["runs"]]
    best = []
    for row, log in zip(found.json["rows"], logs, strict=True):
        tested = [event for event in log if event["event"] == "evaluated"]
        chosen = max(tested, key=lambda event: (event["valid_mean"], -event["round"]))
        assert row["mean"]["valid"] == chosen["valid_mean"]
        assert row["mean"]["best"] == chosen["global_accuracy"]
        best.append(chosen["valid_mean"])
    assert best[0] != best[1]  # both send as many bits, so the better one alone is marked
    marks = [row["pareto_best"] for row in found.json["rows"]]
    assert marks == [best[0] > best[1], best[1] > best[0]]
    assert "validation" in found.out and "no other run has a validation accuracy" in found.out
    with Path("v/comparison.csv").open() as file:
        assert [float(row["valid"]) for row in csv.DictReader(file)] == best
    page = Path("v/report.html").read_text()
    assert "<th>validation</th>" in page and "Highest validation accuracy" in page
    plain = gossamer("compare", "fedavg", *SMALL, "--out", "w")
    assert "validation" not in plain.out
    assert "<th>validation" not in Path("w/report.html").read_text()


def test_methods_are_compared_at_an_equal_budget(gossamer: Command) -> None:
    words = ["--until", "bits=4e6", "--rounds", "200", "--json"]
    found = compare(gossamer, "fedavg", "spafl", *TINY, *words)
    runs = found.json["runs"]
    for run in runs:
        sent = [e["up"] + e["down"] for e in events(run["run"]) if e["event"] == "round-finished"]
        assert sent[-1] >= 4e6 > sent[-2] and events(run["run"])[-1]["reached"] == "bits=4e+06"
    assert runs[0]["rounds"] < runs[1]["rounds"] < 200 and "rounds" in found.out
    assert "goal missed" not in found.out
    short = compare(gossamer, "fedavg", *TINY, "--until", "bits=1e12")
    assert "fedavg (goal missed)" in short.out


def test_goals_are_those_of_the_whole_comparison(gossamer: Command) -> None:
    found = gossamer("compare", "fedavg:until=bits=5", "spafl", *TINY)
    assert found.code == 2 and "until is the same for all methods" in found.err
