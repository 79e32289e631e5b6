"""The page needs nothing but itself, believes nothing of what it shows, and stays small."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from run_folders import write_run

from gossamer.cli import main
from gossamer.report import report

ECHARTS = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"
"""SHA-256 of dist/echarts.min.js as version 6.1.0 was published."""
CHARTS = [
    *("rounds", "sent", "device_seconds", "flops", "ledger", "histogram", "worst"),
    *("density", "mismatch", "client_mismatch", "layers", "partition"),
]
EVIL = '"><img src=x onerror=alert(1)></script><script>alert(2)</script>{{7*7}}'


class Reader(HTMLParser):
    """What a page is made of: tags with attributes, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._tag = tag

    def handle_data(self, data: str) -> None:
        if self._tag in ("script", "style"):
            self.inside.append((self._tag, data))

    def handle_endtag(self, tag: str) -> None:
        self._tag = ""

    def charts(self) -> list[str | None]:
        return [found["data-chart"] for _, found in self.tags if "data-chart" in found]

    def data(self) -> Any:
        return json.loads(next(text for tag, text in self.inside if text.startswith('{"score"')))


def test_a_run_with_everything_has_every_chart(tmp_path: Path) -> None:
    page = Reader(report([write_run(tmp_path / "a")]).html)
    assert page.charts() == CHARTS


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"network": ""}, {"device_seconds"}),
        ({"histogram": False}, {"histogram"}),
        ({"config": False}, {"partition"}),
        (
            {"masks": False, "density": 1.0},
            {"density", "mismatch", "client_mismatch", "layers"},
        ),
    ],
    ids=["no network", "an old log", "no configuration", "no masks"],
)
def test_what_a_run_lacks_has_no_chart(
    tmp_path: Path, settings: dict[str, Any], missing: set[str]
) -> None:
    page = Reader(report([write_run(tmp_path / "a", **settings)]).html)
    assert page.charts() == [name for name in CHARTS if name not in missing]


def test_the_partition_is_that_of_the_run_or_told_to_be_missing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", data="fmnist-mini", partition="dirichlet:0.3")
    found = report([folder])
    (drawn,) = Reader(found.html).data()["partitions"]
    assert drawn["title"] == "fmnist-mini · dirichlet:0.3 · 20 clients · seed 1"
    assert len(drawn["counts"]) == 20 and sum(map(sum, drawn["counts"])) == 10_000
    log = folder / "events.jsonl"
    log.write_text(log.read_text().replace('"pool":20}', '"pool":20,"smallest":1}'))
    other = report([folder])
    assert "partition" not in Reader(other.html).charts()
    assert other.notices == [
        f"{folder}: the partition cannot be shown: the data here differ from those of the run "
        "(smallest)"
    ]
    lost = write_run(tmp_path / "b", data="npz:/nowhere/at/all.npz")
    assert "the partition cannot be shown" in report([lost]).notices[0]


def test_nothing_of_the_page_is_elsewhere(tmp_path: Path) -> None:
    text = report([write_run(tmp_path / "a")]).html
    page = Reader(text)
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "href", "background", "poster", "action"} & set(attributes), (
            tag
        )
    for tag, inside in page.inside:
        if tag == "style":
            assert "url(" not in inside and "@import" not in inside
    policy = next(found["content"] for _, found in page.tags if "http-equiv" in found)
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_only_scripts_that_the_policy_names_are_in_the_page(tmp_path: Path) -> None:
    page = Reader(report([write_run(tmp_path / "a")]).html)
    policy = next(found["content"] or "" for _, found in page.tags if "http-equiv" in found)
    scripts = [text for tag, text in page.inside if tag == "script"]
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in scripts]
    assert re.findall(r"'sha256-(.*?)'", policy) == [each.decode() for each in hashes[1:]]
    assert len(scripts) == 7


def test_the_plotting_library_is_as_it_was_published() -> None:
    import gossamer.report

    folder = Path(gossamer.report.__file__).parent / "assets" / "echarts"
    assert hashlib.sha256((folder / "echarts.min.js").read_bytes()).hexdigest() == ECHARTS
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "Apache Software Foundation" in (folder / "NOTICE").read_text()


def evil(folder: Path) -> Path:
    """A run of which every name and text would be a page of its own."""
    write_run(folder, "spdst")
    words = ("spdst", "conv1.weight", "Update", "values", "2.13.0", "hash-1")
    log = (folder / "events.jsonl").read_text()
    for word in words:
        log = log.replace(f'"{word}"', json.dumps(f"{EVIL}{word}"))
    (folder / "events.jsonl").write_text(log)
    config = (folder / "config.toml").read_text()
    config = config.replace('"spdst"', json.dumps(EVIL)).replace("--seed", EVIL)
    (folder / "config.toml").write_text(config.replace("lr = 0.1", f'lr = 0.1\n"{EVIL[2:]}" = 1'))
    return folder


def test_nothing_that_a_run_says_becomes_part_of_the_page(tmp_path: Path) -> None:
    whole = Reader(report([write_run(tmp_path / "a"), write_run(tmp_path / "b", density=0.2)]).html)
    folder = evil(tmp_path / '<b onclick="x()">&amp;')
    found = report([folder, write_run(tmp_path / "c", density=0.2)], EVIL, EVIL)
    page = Reader(found.html)
    assert {tag for tag, _ in page.tags} == {tag for tag, _ in whole.tags}
    known = {name for _, attributes in whole.tags for name in attributes}
    assert {name for _, attributes in page.tags for name in attributes} <= known
    assert len([text for tag, text in page.inside if tag == "script"]) == 7
    assert page.data()["groups"][0]["label"].startswith(EVIL)


def test_settings_command_seed_and_environment_are_in_the_page(tmp_path: Path) -> None:
    text = report([write_run(tmp_path / "a", seed=7)], "A title", "An introduction").html
    for word in (
        *("A title", "An introduction", "gossamer run spdst --seed 7", "2.13.0", "hash-7"),
        *("Linux x86_64", "density = 0.1", "430500", str(tmp_path / "a")),
    ):
        assert word in text
    plain = report([write_run(tmp_path / "b", config=False)]).html
    assert "settings.density = 0.1" in plain


def test_ten_runs_of_five_hundred_rounds_are_below_five_megabytes(ten: list[Path]) -> None:
    found = report(ten)
    assert len(found.groups) == 10 and len(found.html.encode()) < 2.5e6
    points = [len(group["evaluated"]["round"]) for group in Reader(found.html).data()["groups"]]
    assert points == [501] * 10


# the command --------------------------------------------------------------------------------------

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def gossamer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def test_the_command_writes_one_page_of_several_runs(gossamer: Command) -> None:
    write_run(Path("runs/a"))
    write_run(Path("runs/b"), seed=2)
    assert gossamer("report", "runs/a", "runs/b", "runs/a") == (
        0,
        "report of 2 runs: report.html\n",
        "",
    )
    assert Path("report.html").read_text().startswith("<!doctype html>")
    code, out, _ = gossamer("report", "runs/a", "-o", "deep/er/page.html", "--json")
    told = json.loads(out.splitlines()[-1])
    assert code == 0 and told["bytes"] == Path("deep/er/page.html").stat().st_size
    assert told["groups"] == {"spdst": ["runs/a"]} and told["notices"] == []


def test_what_is_no_run_is_told_in_the_page_where_others_are(gossamer: Command) -> None:
    write_run(Path("a"), ended=False)
    Path("empty").mkdir()
    code, _, errors = gossamer("report", "a", "empty", "nowhere")
    assert code == 0 and len(errors.splitlines()) == 3
    page = Path("report.html").read_text()
    for text in (
        "empty is not a run: it has neither events.jsonl nor config.toml",
        "there is no folder nowhere",
        "a: the run is at round 6 of 6: it is still running, or was stopped",
    ):
        assert text in page and text in errors


def test_nothing_to_show_is_refused_in_a_line(gossamer: Command) -> None:
    write_run(Path("runs/a"))
    code, out, errors = gossamer("report", "runs")
    assert (code, out) == (2, "") and not Path("report.html").exists()
    assert errors == (
        "gossamer: runs is not a run: it has neither events.jsonl nor config.toml; "
        "for the runs inside it, use: gossamer report runs/*/\n"
    )
    code, _, errors = gossamer("report")
    assert code == 2 and "name the folder of a run" in errors
    code, _, errors = gossamer("report", "runs/a", "-o", "runs/a/config.toml/page.html")
    assert code == 2 and len(errors.splitlines()) == 1
