"""Commands on damaged runs: what was asked for, or exit 1 and a sentence that names the file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from damage import DAMAGES, contents, damaged, files
from gossamer.cli import main

from .conftest import SMALL, Outcome

Command = Callable[..., Outcome]
JOB = [*SMALL, "--checkpoint-every", "1", "--quiet"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one with another seed, and one with a client that failed."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "faulty.py").write_text(
        "from dataclasses import dataclass\n\n"
        "from gossamer import Ctx, FedAvg, Result\n"
        "from gossamer.methods.as_published.delegation import variants_of\n"
        "from gossamer.methods.parts.dense_model import Local, Up, Work\n\n\n"
        "@variants_of(FedAvg)\n"
        "@dataclass(frozen=True)\n"
        "class Faulty:\n"
        "    pure: FedAvg = FedAvg()\n\n"
        "    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:\n"
        "        if ctx.round == 2:\n"
        "            raise ZeroDivisionError('no batch was full')\n"
        "        return self.pure.finish(ctx, work)\n"
    )
    assert main(["run", "fedavg", *JOB, "--out", str(folder / "run")]) == 0
    assert main(["run", "fedavg", *JOB, "--seed", "2", "--out", str(folder / "other")]) == 0
    older = [*JOB, "--rounds", "2", "--out", str(folder / "older")]
    assert main(["run", "fedavg", *older]) == 0
    faulty = f"{folder / 'faulty.py'}:Faulty"
    assert main(["run", faulty, *JOB, "--clients", "1", "--out", str(folder / "failed")]) == 1
    return folder


@pytest.fixture
def copy(home: Path, gossamer: Command) -> Callable[[str], Path]:
    """Copies a folder into the working folder."""

    def copied(name: str = "run") -> Path:
        shutil.copytree(home / name, name, dirs_exist_ok=True)
        return Path(name)

    return copied


def result(home: Path) -> Any:
    log = (home / "run/events.jsonl").read_text().splitlines()
    return json.loads(log[-1])["state_hash"]


@pytest.mark.parametrize("how", DAMAGES)
def test_resume_gives_the_right_bits_or_names_the_file(
    gossamer: Command, home: Path, tmp_path: Path, how: str
) -> None:
    for place, name in enumerate(files(home / "run")):
        folder = tmp_path / f"{place}"
        shutil.copytree(home / "run", folder)
        if not damaged(folder, name, how, home / "older", home / "other"):
            continue
        checked = gossamer("verify", str(folder))
        assert checked.code == 1 or "ignored" in checked.err or how == "remove", checked.out
        found = gossamer("resume", str(folder), "--quiet", "--json")
        if found.code == 0:
            assert found.json["state_hash"] == result(home)
        else:
            assert found.code == 1 and str(folder) in found.err
            assert name.name in found.err and "Traceback" not in found.err


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe\n", b"{}\n"])
def test_cost_of_a_damaged_log_is_partial_and_says_so(
    gossamer: Command, copy: Callable[..., Path], damage: bytes
) -> None:
    log = copy() / "events.jsonl"
    data = log.read_bytes().splitlines(keepends=True)
    whole = gossamer("cost", "run", "--by", "round")
    assert whole.code == 0 and not whole.err
    place = next(at for at, line in enumerate(data) if b'"round":3' in line)
    rest = data[place + 1 :] if damage else []
    log.write_bytes(b"".join([*data[:place], damage, *rest]))
    found = gossamer("cost", "run", "--by", "round")
    assert found.code == 1 and "events.jsonl" in found.err
    assert found.err.endswith("these are the costs up to round 2 only\n")
    assert found.out.splitlines() == whole.out.splitlines()[:-1]


def test_cost_without_a_log_says_what_is_missing(
    gossamer: Command, copy: Callable[..., Path]
) -> None:
    folder = copy()
    (folder / "events.jsonl").write_bytes(b"")
    found = gossamer("cost", "run", "--json")
    assert found.code == 1 and "events.jsonl is cut: it has 0 bytes" in found.err
    (folder / "events.jsonl").unlink()
    found = gossamer("cost", "run")
    assert found.code == 1 and "events.jsonl is missing" in found.err


def test_a_line_that_is_being_written_is_no_damage(
    gossamer: Command, copy: Callable[..., Path]
) -> None:
    log = copy() / "events.jsonl"
    log.write_bytes(log.read_bytes()[:-7])  # in the middle of `finished`, after all rounds
    assert gossamer("cost", "run").code == 0
    found = gossamer("report", "run")
    assert found.code == 0 and "ends in the middle of a line" in found.err


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("events.jsonl", "line 5 of run/events.jsonl is damaged"),
        ("config.toml", "run/config.toml was changed since the run began, or is damaged"),
    ],
)
def test_a_report_of_a_damaged_run_says_so(
    gossamer: Command, copy: Callable[..., Path], name: str, said: str
) -> None:
    path = copy() / name
    data = path.read_bytes().splitlines(keepends=True)
    data[4] = data[4].upper()
    path.write_bytes(b"".join(data))
    found = gossamer("report", "run", "--json")
    assert found.code == 1 and said in found.err and Path("report.html").exists()
    assert any(said in text for text in found.json["notices"])


@pytest.mark.parametrize("name", ["server.bin", "meta.json"])
def test_an_older_model_is_exported_with_a_word_and_exit_1(
    gossamer: Command, copy: Callable[..., Path], name: str
) -> None:
    pytest.importorskip("safetensors", reason="the format needs it")
    folder = copy()
    assert gossamer("export", "run").code == 0
    path = folder / "rounds/000003" / name
    path.write_bytes(path.read_bytes()[:-9])
    found = gossamer("export", "run", "--json")
    assert found.code == 1 and found.json["facts"]["round"] == 2
    assert f"{path} is damaged" in found.err and "older model, that of round 2" in found.err
    for meta in folder.rglob("meta.json"):
        meta.write_bytes(b"")
    found = gossamer("export", "run")
    assert found.code == 1 and "has no checkpoint that can be read" in found.err


def test_a_configuration_of_another_run_is_noticed(
    gossamer: Command, copy: Callable[..., Path], home: Path
) -> None:
    text = (home / "run/config.toml").read_text()
    other = text.replace("eval_every = 1", "eval_every = 3")
    assert other != text
    from gossamer.engine.files import seal_text

    folder = copy()
    (folder / "config.toml").write_text(seal_text(other.partition("# checksum")[0]))
    for command in ("resume", "export", "verify"):
        found = gossamer(command, "run")
        assert found.code == 1
        assert "run/config.toml is not the file that the run began with" in found.err


def test_a_run_whose_configuration_is_gone_is_not_overwritten(
    gossamer: Command, copy: Callable[..., Path]
) -> None:
    folder = copy()
    (folder / "config.toml").unlink()
    before = contents(folder)
    found = gossamer("run", "fedavg", *JOB, "--out", "run")
    assert found.code == 2 and "files of a run without config.toml" in found.err
    found = gossamer("resume", "run")
    assert found.code == 1 and "run/config.toml is missing" in found.err
    assert contents(folder) == before


@pytest.mark.parametrize("how", ["flip", "truncate", "zero", "empty"])
def test_a_damaged_capsule_is_not_replayed(
    gossamer: Command, copy: Callable[..., Path], home: Path, how: str
) -> None:
    folder = copy("failed")
    (path,) = (folder / "rounds/failed").iterdir()
    client = path.stem.rpartition("-")[2]
    damaged(folder, path.relative_to(folder), how, home / "older", home / "other")
    found = gossamer("replay", "failed", "--round", "2", "--client", client)
    assert found.code == 1 and f"{path} is damaged" in found.err
    assert gossamer("verify", "failed").code == 1
    path.unlink()
    found = gossamer("replay", "failed", "--round", "2", "--client", client)
    assert found.code == 2 and f"{path} was removed" in found.err


def test_verify_lists_all_files_and_counts_states(
    gossamer: Command, copy: Callable[..., Path]
) -> None:
    copy()
    found = gossamer("verify", "run", "--json")
    assert found.code == 0 and not found.err and found.json["damaged"] == 0
    listed = {Path(each["path"]).relative_to("run") for each in found.json["files"]}
    assert listed == set(files(Path("run")))
    assert "events.jsonl" in found.out and "all ok" in found.out


def test_verify_refuses_other_folders(gossamer: Command) -> None:
    assert gossamer("verify", "absent").code == 2
    Path("empty").mkdir()
    found = gossamer("verify", "empty")
    assert found.code == 2 and "neither the folder of a run nor that of a node" in found.err
