"""Round directories are whole or absent; a run that cannot be kept is refused before it starts."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from gossamer import FedAvg, Options, Summary
from gossamer.accounting import Cost
from gossamer.engine import Run, Stop, checkpoint, events, run, start
from gossamer.engine.checkpoint import Checkpoint, Progress, newest, ready, save, write_atomically
from gossamer.engine.files import Damaged, seal_json, unseal_json
from helpers import Toy, fedavg, lines, normed

STATEFUL = replace(fedavg(), buffers="local")
EVERY = Options(workers=1, checkpoint_every=1)


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    progress = Progress(
        7, Cost(1, 2, 3, 4, 5, 6), 0.25, {"global": 0.1 + 0.2, "personal_mean": None}, 1.5
    )
    save(tmp_path, Checkpoint(progress, b"server", 123, "chain", {5: 7, 3: 2}, "run"))
    found = newest(tmp_path)
    assert found is not None
    assert (found.progress, found.server, found.events) == (progress, b"server", 123)
    assert (found.chain, found.states, found.run) == ("chain", {3: 2, 5: 7}, "run")


def test_there_is_no_newest_in_an_empty_or_absent_folder(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    assert newest(tmp_path / "absent") is None


def test_two_checkpoints_are_kept(tmp_path: Path) -> None:
    kept = [
        save(tmp_path, Checkpoint(Progress(round), b"x", 0, "", {}, "run")) for round in range(4)
    ]
    assert kept == [[0], [0, 1], [1, 2], [2, 3]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000002", "000003"]


def test_dropping_a_checkpoint_leaves_the_client_states_beside_it(tmp_path: Path) -> None:
    state = tmp_path / "000000/local/3.bin"
    state.parent.mkdir(parents=True)
    state.write_bytes(b"kept")
    for round in range(3):
        save(tmp_path, Checkpoint(Progress(round), b"x", 0, "", {}, "run"))
    assert [path.name for path in (tmp_path / "000000").rglob("*")] == ["local", "3.bin"]


@pytest.mark.parametrize("name", ["server.bin", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "zeros", "gone", "changed"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    tmp_path: Path, name: str, damage: str
) -> None:
    for round in (1, 2):
        server = b"server of round %d" % round
        save(tmp_path, Checkpoint(Progress(round), server, round, "", {}, "run"))
    path = tmp_path / "000002" / name
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[: len(data) // 2])
        case "empty":
            path.write_bytes(b"")
        case "zeros":
            path.write_bytes(bytes(len(data)))
        case "gone":
            path.unlink()
        case "changed":
            path.write_bytes(b"!" + data[1:])
    found = newest(tmp_path)
    assert found is not None and found.progress.round == 1
    assert found.server == b"server of round 1"


def test_a_checkpoint_of_another_version_is_refused_and_not_skipped(tmp_path: Path) -> None:
    save(tmp_path, Checkpoint(Progress(1), b"x", 0, "", {}, "run"))
    path = tmp_path / "000001/meta.json"
    meta = unseal_json(path)
    path.write_bytes(seal_json({**meta, "version": 3}))
    with pytest.raises(checkpoint.Unusable, match="version 3 of the checkpoint format"):
        newest(tmp_path)
    first = {**meta, "version": 1, "server": "fingerprint"}  # it had no checksum
    path.write_text(json.dumps(first))
    with pytest.raises(checkpoint.Unusable, match="version 1 of the checkpoint format"):
        newest(tmp_path)


def test_a_file_that_could_not_be_written_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"


# refusals ---------------------------------------------------------------------------------------


class Usage(NamedTuple):
    total: int
    used: int
    free: int


class Unread(Toy):
    """A federation that fails the test when training starts."""

    def client(self, id: int) -> None:  # type: ignore[override]
        raise AssertionError("training has begun")


def test_a_folder_below_a_file_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError, match=r"cannot write to .*file/run .*Not a directory.*`out=`"):
        run(fedavg(), normed(), Unread(), rounds=1, out=tmp_path / "file" / "run")
    with pytest.raises(OSError, match=r"cannot write to .*file .*`out=`"):
        run(fedavg(), normed(), Unread(), rounds=1, out=tmp_path / "file")


def test_a_full_disk_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(2**40, 2**40, 1000))
    with pytest.raises(OSError, match=r"has 0 MiB free, but the run needs about 1 MiB.*`out=`"):
        run(fedavg(), normed(), Unread(), rounds=1, out=tmp_path)


def test_a_disk_with_room_is_accepted_and_left_clean(tmp_path: Path) -> None:
    ready(tmp_path / "new" / "run", 2**20)
    assert list((tmp_path / "new" / "run").iterdir()) == []


# runs -------------------------------------------------------------------------------------------


def stopped_after(round: int, out: Path, options: Options = EVERY, rounds: int = 6) -> Summary:
    """A run that somebody stops when a round is over."""
    stop = Stop()

    class At:
        def emit(self, event: events.Event, clock: events.Clock) -> None:
            if isinstance(event, events.RoundFinished) and event.round == round:
                stop.request()

        def close(self) -> None:
            pass

    return start(
        Run(STATEFUL, normed(), Toy(), rounds=rounds, out=out, options=options),
        sinks=[At()],
        stop=stop,
    )


def resumed(out: Path, method: FedAvg = STATEFUL, rounds: int = 6) -> Summary:
    return start(Run(method, normed(), Toy(), rounds=rounds, out=out, options=EVERY), resume=True)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """Hash and events of a run that nothing interrupts."""
    out = tmp_path_factory.mktemp("whole")
    summary = run(STATEFUL, normed(), Toy(), rounds=6, out=out, options=EVERY)
    return summary.state_hash, lines(out / "events.jsonl")


@pytest.mark.parametrize("round", [1, 3, 5])
@pytest.mark.parametrize("every", [0, 1, 2])
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(
    tmp_path: Path, whole: tuple[str, list[str]], round: int, every: int
) -> None:
    options = Options(workers=2, checkpoint_every=every)
    first = stopped_after(round, tmp_path, options)
    assert first.interrupted and first.rounds == round
    assert len(lines(tmp_path / "events.jsonl")) < len(whole[1])
    last = resumed(tmp_path)
    assert not last.interrupted and last.rounds == 6
    assert (last.state_hash, lines(tmp_path / "events.jsonl")) == whole


@pytest.mark.parametrize("name", ["server.bin", "meta.json"])
def test_a_run_whose_newest_checkpoint_is_damaged_resumes_from_the_one_before(
    tmp_path: Path, whole: tuple[str, list[str]], name: str
) -> None:
    """Also the clients' states must be those of the older checkpoint."""
    stopped_after(4, tmp_path)
    path = tmp_path / "rounds/000004" / name
    path.write_bytes(path.read_bytes()[:-5])
    last = resumed(tmp_path)
    assert (last.state_hash, lines(tmp_path / "events.jsonl")) == whole


def test_resuming_a_finished_run_changes_nothing(
    tmp_path: Path, whole: tuple[str, list[str]]
) -> None:
    run(STATEFUL, normed(), Toy(), rounds=6, out=tmp_path, options=EVERY)
    again = resumed(tmp_path)
    assert (again.state_hash, lines(tmp_path / "events.jsonl")) == whole


def test_resuming_where_nothing_was_saved_starts_at_the_beginning(
    tmp_path: Path, whole: tuple[str, list[str]]
) -> None:
    last = resumed(tmp_path)
    assert (last.state_hash, lines(tmp_path / "events.jsonl")) == whole


def test_a_new_run_in_an_old_folder_takes_nothing_from_it(
    tmp_path: Path, whole: tuple[str, list[str]]
) -> None:
    run(STATEFUL, normed(), Toy(), rounds=8, seed=5, out=tmp_path, options=EVERY)
    last = run(STATEFUL, normed(), Toy(), rounds=6, out=tmp_path, options=EVERY)
    assert (last.state_hash, lines(tmp_path / "events.jsonl")) == whole


def test_a_run_keeps_two_checkpoints_and_no_client_state_that_neither_needs(
    tmp_path: Path,
) -> None:
    run(STATEFUL, normed(), Toy(), rounds=12, out=tmp_path, options=EVERY)
    saved = sorted(path.parent.name for path in tmp_path.rglob("meta.json"))
    assert saved == ["000011", "000012"]
    states = [path.stem for path in tmp_path.rglob("local/*.bin")]
    assert set(states) == {str(id) for id in range(6)}
    assert len(states) <= 6 + STATEFUL.clients  # those replaced in the last round are there twice
    assert not list(tmp_path.rglob("*.partial"))


def test_checkpoints_are_written_every_so_many_rounds(tmp_path: Path) -> None:
    run(
        STATEFUL,
        normed(),
        Toy(),
        rounds=7,
        out=tmp_path,
        options=Options(workers=1, checkpoint_every=3),
    )
    assert sorted(path.parent.name for path in tmp_path.rglob("meta.json")) == ["000006", "000007"]
    assert checkpoint.KEPT == 2


def test_a_run_whose_client_states_are_gone_is_not_resumed(tmp_path: Path) -> None:
    run(STATEFUL, normed(), Toy(), rounds=6, out=tmp_path, options=EVERY)
    saved = newest(tmp_path / "rounds")
    assert saved is not None
    client = next(client for client, number in saved.states.items() if number < 5)
    path = tmp_path / f"rounds/{saved.states[client]:06d}/local/{client}.bin"
    path.unlink()  # neither of the two checkpoints can do without it
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(Damaged, match=rf"client {client} kept in round .*{path} is missing"):
        resumed(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_stray_file_among_the_rounds_does_no_harm(tmp_path: Path) -> None:
    first = run(fedavg(), normed(), Toy(), rounds=2, out=tmp_path)
    (tmp_path / "rounds/000099").write_text("not a folder")
    again = start(Run(fedavg(), normed(), Toy(), rounds=2, out=tmp_path), resume=True)
    assert again.state_hash == first.state_hash


def test_a_run_that_goes_on_is_not_run_by_another_process(tmp_path: Path) -> None:
    pytest.importorskip("fcntl", reason="the system has no such locks")

    def go(resume: bool) -> Summary:
        return start(
            Run(fedavg(), normed(), Toy(), rounds=2, out=tmp_path, options=EVERY), resume=resume
        )

    first = go(resume=False)
    log = lines(tmp_path / "events.jsonl")
    program = (
        "import sys\nfrom pathlib import Path\nfrom gossamer.engine.checkpoint import held\n"
        "with held(Path(sys.argv[1])):\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(checkpoint.Unusable, match="is being run by another process"):
            go(resume=True)
        other.kill()
    assert lines(tmp_path / "events.jsonl") == log
    assert go(resume=True).state_hash == first.state_hash
