"""Damage to any file of a run's folder: the right bits, or a sentence that names the file."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from damage import DAMAGES, contents, damaged, files, random_damage
from gossamer import Options, Summary, run
from gossamer.conformance.toys import Tiny, plain_task
from gossamer.core import Key
from gossamer.engine import Run, Stop, checkpoint, events, start
from gossamer.engine.events import LogReader
from gossamer.engine.files import (
    Damaged,
    append,
    check_text,
    opened,
    private_files,
    seal,
    seal_json,
    seal_text,
    unseal,
    unseal_json,
)
from gossamer.engine.integrity import run_files
from gossamer.methods.flash import Flash
from gossamer.optim import Training
from helpers import Toy, fedavg, lines, normed, same

ROUNDS = 6
STATEFUL = replace(fedavg(), buffers="local")
EVERY = Options(workers=1, checkpoint_every=1, eval_every=3)
TASK = normed()


class Stopper:
    """Stops a run when a round is over."""

    def __init__(self, stop: Stop, round: int) -> None:
        self.stop, self.round = stop, round

    def emit(self, event: events.Event, clock: events.Clock) -> None:
        if isinstance(event, events.RoundFinished) and event.round == self.round:
            self.stop.request()

    def close(self) -> None:
        pass


def job(out: Path, seed: int = 0, until: int = ROUNDS, resume: bool = False) -> Summary:
    """A run with a configuration beside it, stopped after a round."""
    stop = Stop()
    what = Run(STATEFUL, TASK, Toy(), rounds=ROUNDS, key=Key(seed), out=out, options=EVERY)
    return start(what, sinks=[Stopper(stop, until)], stop=stop, resume=resume)


class Folders(NamedTuple):
    stopped: Path
    """After round 4."""
    older: Path
    """The same folder after round 3."""
    other: Path
    """A run with another seed."""
    hash: str
    log: list[str]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    home = tmp_path_factory.mktemp("runs")
    for name, seed in (("stopped", 0), ("other", 5), ("whole", 0)):
        (home / name).mkdir()
        text = seal_text(f"# a configuration\nseed = {seed}\n")
        (home / name / "config.toml").write_text(text)
    job(home / "stopped", until=3)
    shutil.copytree(home / "stopped", home / "older")
    job(home / "stopped", until=4, resume=True)
    job(home / "other", seed=5, until=4)
    whole = job(home / "whole")
    log = lines(home / "whole/events.jsonl")
    return Folders(home / "stopped", home / "older", home / "other", whole.state_hash, log)


def settled(folder: Path, name: Path, folders: Folders) -> str:
    """Resumes a damaged folder: it ends with the right bits, or names the file and changes nothing.

    Returns:
        Which of both.
    """
    before = contents(folder)
    try:
        summary = job(folder, resume=True)
    except Damaged as problem:
        assert str(folder / name) in str(problem) or str((folder / name).parent) in str(problem)
        assert contents(folder) == before
        return "refused"
    assert (summary.state_hash, lines(folder / "events.jsonl")) == (folders.hash, folders.log)
    return "cured"


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_to_any_file_of_a_run_is_cured_or_named(
    tmp_path: Path, folders: Folders, how: str
) -> None:
    outcomes: dict[Path, str] = {}
    for place, name in enumerate(files(folders.stopped)):
        folder = tmp_path / str(place)
        shutil.copytree(folders.stopped, folder)
        if damaged(folder, name, how, folders.older, folders.other):
            noticed = [each.problem or each.what for each in run_files(folder) if not _fine(each)]
            assert noticed, f"verify finds nothing wrong after {how} of {name}"
            outcomes[name] = settled(folder, name, folders)
    newest = Path("rounds/000004")
    cured = {name for name, outcome in outcomes.items() if outcome == "cured"}
    if how != "swap":  # which damages two files
        assert cured >= {name for name in outcomes if newest in name.parents}
    config = Path("config.toml")
    assert outcomes.get(config, "refused") == "refused"
    assert len(outcomes) > 3 or how == "age"


def _fine(finding: object) -> bool:
    return not getattr(finding, "problem", "") and not getattr(finding, "ignored", False)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 120), marks=pytest.mark.slow)])
def test_random_damage_never_gives_another_result(
    tmp_path: Path, folders: Folders, seeds: range
) -> None:
    for seed in seeds:
        folder = tmp_path / str(seed)
        shutil.copytree(folders.stopped, folder)
        name = random_damage(seed, folder)
        settled(folder, name, folders)
        shutil.rmtree(folder)


def test_a_damaged_log_between_two_checkpoints_costs_a_round(
    tmp_path: Path, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    log = tmp_path / "run/events.jsonl"
    data = log.read_bytes().splitlines(keepends=True)
    data[-2] = data[-2].replace(b"4", b"5", 1)
    log.write_bytes(b"".join(data))
    with caplog.at_level(logging.WARNING):
        assert settled(tmp_path / "run", Path("events.jsonl"), folders) == "cured"
    assert f"line {len(data) - 1} of {log} is damaged" in caplog.text
    assert "cut back to the checkpoint of round 3" in caplog.text


def test_a_log_that_is_damaged_before_both_checkpoints_is_refused(
    tmp_path: Path, folders: Folders
) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    log = tmp_path / "run/events.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"round":1', b'"round":2', 1))
    with pytest.raises(Damaged, match=rf"line \d+ of {log} is damaged.*nothing was changed"):
        job(tmp_path / "run", resume=True)


def test_strays_are_ignored_with_a_word_and_stay(
    tmp_path: Path, folders: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    strays = ["rounds/notes.txt", "rounds/000004/x.bin", "rounds/000004/local/notes.bin"]
    strays += ["rounds/000004/local/007.bin", "rounds/000099/local/y.bin", "notes.txt"]
    for name in strays:
        (tmp_path / "run" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "run" / name).write_bytes(b"mine")
    with caplog.at_level(logging.WARNING):
        assert settled(tmp_path / "run", Path("notes.txt"), folders) == "cured"
    assert "not files of the run, and ignored" in caplog.text and "notes.txt" in caplog.text
    assert [(tmp_path / "run" / name).read_bytes() for name in strays] == [b"mine"] * len(strays)


def test_a_state_newer_than_its_checkpoint_says_is_not_used(
    tmp_path: Path, folders: Folders
) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    saved = checkpoint.newest(tmp_path / "run/rounds")
    assert saved is not None
    client, written = next(each for each in saved.states.items() if each[1] < 4)
    source = tmp_path / f"run/rounds/{written:06d}/local/{client}.bin"
    shutil.copy(source, tmp_path / f"run/rounds/000004/local/{client}.bin")
    assert settled(tmp_path / "run", Path("rounds"), folders) == "cured"


# lock, check, then roll back ----------------------------------------------------------------------


@pytest.mark.parametrize("left", ["events", "rounds"])
def test_a_run_without_a_readable_checkpoint_is_not_begun_again(
    tmp_path: Path, folders: Folders, left: str
) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    for path in (tmp_path / "run/rounds").rglob("meta.json"):
        path.write_bytes(b"{")
    if left == "rounds":
        (tmp_path / "run/events.jsonl").unlink()
    before = contents(tmp_path / "run")
    with pytest.raises(Damaged, match=r"cannot be continued: .*meta.json is damaged"):
        job(tmp_path / "run", resume=True)
    for path in (tmp_path / "run/rounds").rglob("meta.json"):
        path.unlink()
    with pytest.raises(Damaged, match=r"cannot be continued: .*no checkpoint"):
        job(tmp_path / "run", resume=True)
    after = contents(tmp_path / "run")
    assert after == {name: before[name] for name in after}


def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
    tmp_path: Path, folders: Folders
) -> None:
    first = (folders.stopped / "events.jsonl").read_bytes().splitlines(keepends=True)[:2]
    for kept in (b"", b'{"eve', first[0], b"".join(first)[:-9]):
        folder = tmp_path / str(len(kept))
        (folder / "rounds/000000").mkdir(parents=True)
        (folder / "rounds/000000/server.bin").write_bytes(b"half")
        (folder / "events.jsonl").write_bytes(kept)
        assert settled(folder, Path("events.jsonl"), folders) == "cured"


def test_zeros_in_place_of_the_log_are_not_taken_for_a_beginning(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(bytes(4096))
    with pytest.raises(Damaged, match=r"events.jsonl cannot be read, and there is no checkpoint"):
        job(tmp_path, resume=True)


def test_a_folder_of_another_run_is_left_as_it_was(tmp_path: Path, folders: Folders) -> None:
    shutil.copytree(folders.stopped, tmp_path / "run")
    (tmp_path / "run/rounds/000099/local").mkdir(parents=True)
    (tmp_path / "run/rounds/000099/local/3.bin").write_bytes(b"later")
    before = contents(tmp_path / "run")
    with pytest.raises(checkpoint.Unusable, match="other settings, rounds, seed or first weights"):
        job(tmp_path / "run", seed=1, resume=True)
    assert contents(tmp_path / "run") == before


def test_nothing_is_read_or_changed_while_another_process_has_the_run(
    tmp_path: Path, folders: Folders
) -> None:
    pytest.importorskip("fcntl", reason="the system has no such locks")
    shutil.copytree(folders.stopped, tmp_path / "run")
    (tmp_path / "run/rounds/000004/meta.json").write_bytes(b"being written")
    before = contents(tmp_path / "run")
    with (
        checkpoint.held(tmp_path / "run"),
        pytest.raises(checkpoint.Unusable, match="is being run by another process"),
    ):
        job(tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    assert job(tmp_path / "run", resume=True).state_hash == folders.hash


def test_other_arithmetic_of_the_processor_is_told(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom test_integrity import job\n"
        "job(Path(sys.argv[1]), until=2, resume=len(sys.argv) > 2)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run(command, check=True, env=environment, capture_output=True)
    plain = {**environment, "ATEN_CPU_CAPABILITY": "default"}
    told = subprocess.run(
        [*command, "again"], check=True, env=plain, capture_output=True, text=True
    ).stderr
    assert "continues with cpu DEFAULT" in told and "results may differ" in told


# states that can be sent again --------------------------------------------------------------------

FLASH = Flash(clients=6, training=Training(batch=8, lr=0.05), density=0.5, allocation="erk")


def flash(out: Path, rounds: int, resume: bool = False) -> Summary:
    stop = Stop()
    what = Run(FLASH, plain_task(), Tiny(), rounds=5, out=out, options=EVERY)
    return start(what, sinks=[Stopper(stop, rounds)], stop=stop, resume=resume)


def test_a_client_whose_state_is_lost_asks_again_and_the_log_says_so(tmp_path: Path) -> None:
    whole = flash(tmp_path / "whole", 5)
    flash(tmp_path / "run", 4)
    saved = checkpoint.newest(tmp_path / "run/rounds")
    assert saved is not None
    client, written = min(saved.states.items(), key=lambda each: each[1])
    assert written < 3, "both checkpoints need the state"
    path = tmp_path / f"run/rounds/{written:06d}/local/{client}.bin"
    path.write_bytes(path.read_bytes()[:-1])
    summary = flash(tmp_path / "run", 5, resume=True)
    log = events.read(tmp_path / "run/events.jsonl")
    (lost,) = [event for event in log if event["event"] == "state-lost"]
    assert (lost["round"], lost["client"]) == (4, client) and str(path) in lost["reason"]
    assert summary.rounds == 5
    assert same(summary.state.params, whole.state.params)  # what was lost was sent again


# permissions and durability -----------------------------------------------------------------------


def test_only_the_owner_can_read_a_run(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        run(STATEFUL, TASK, Toy(), rounds=2, out=tmp_path / "runs/one", options=EVERY)
    finally:
        os.umask(before)
    for path in (tmp_path / "runs/one", *(tmp_path / "runs/one").rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_what_other_libraries_write_can_be_private_too(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        with private_files():
            (tmp_path / "private").touch()
        (tmp_path / "public").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("private", "public")]
    assert modes == [0o600, 0o644]


def test_a_rename_is_on_disk_before_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").resolve().name)
        real(descriptor)

    if not Path("/proc/self/fd").exists():
        pytest.skip("the system does not name open files")
    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.write_atomically(tmp_path / "file", b"content")
    assert synced == ["file.partial", tmp_path.name]


# parts --------------------------------------------------------------------------------------------


def test_a_sealed_file_is_read_only_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(seal(b"content", {"client": 3, "round": 7}))
    assert unseal(path, {"client": 3}) == b"content"
    assert opened(path) == (b"content", {"client": 3, "round": 7})
    with pytest.raises(Damaged, match=rf"{path} is not in its place: it is of client 3, not of 4"):
        unseal(path, {"client": 4})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(Damaged, match=str(path)):
            opened(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=str(path)):
            opened(path)


def test_an_object_with_a_changed_value_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(seal_json({"b": {9: [1], 10: [2]}, "a": 0.1}))
    assert unseal_json(path) == {"b": {"9": [1], "10": [2]}, "a": 0.1}
    path.write_bytes(path.read_bytes().replace(b"0.1", b"0.2"))
    with pytest.raises(Damaged, match="checksum does not match"):
        unseal_json(path)
    for text in (b"[]", b"{}", b"\xff", b"[" * 10**5):
        path.write_bytes(text)
        with pytest.raises(Damaged, match=str(path)):
            unseal_json(path)


@pytest.mark.parametrize("change", [("lr", "lx"), ("\n# ch", " \n# ch"), ("checksum", "checksun")])
def test_a_changed_configuration_is_noticed(tmp_path: Path, change: tuple[str, str]) -> None:
    path = tmp_path / "config.toml"
    path.write_text(seal_text("lr = 0.1\n"))
    check_text(path)
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(Damaged, match=str(path)):
        check_text(path)


def test_a_journal_continues_behind_a_line_that_was_cut_short(tmp_path: Path) -> None:
    path = tmp_path / "messages.jsonl"
    append(path, {"round": 1, "reason": "}"})
    append(path, {"round": 2})
    path.write_bytes(path.read_bytes()[:-3])
    append(path, {"round": 3})
    reader = LogReader(path)
    assert [event["round"] for _, event in reader] == [1, 3]
    assert reader.chained and not reader.problem and not reader.torn


def test_a_log_that_lacks_a_line_is_damaged_there(tmp_path: Path, folders: Folders) -> None:
    data = (folders.stopped / "events.jsonl").read_bytes().splitlines(keepends=True)
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(data[:4] + data[5:]))
    reader = LogReader(path)
    assert len(list(reader)) == 4 and reader.problem == f"line 5 of {path} is damaged"
    with pytest.raises(Damaged, match="line 5 of"):
        events.read(path)
