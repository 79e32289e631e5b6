"""Synchronous rounds in virtual time: whose replies count, when rounds end, what is charged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer import Options, Summary, run
from gossamer.core import Client, Key
from gossamer.engine import Run, events
from gossamer.engine.events import ClientFinished
from gossamer.engine.expected import Reply
from gossamer.engine.virtual_time import Gathered, judged
from helpers import Toy, fedavg, mlp

UNIT = "up=1,down=1,latency=0,flops=1"
"""A device that needs a second for a bit or an operation."""
MIXTURE = "phone-2024:50%,mcu:50%"


def reply(client: int, down: int, flops: int, up: int) -> Reply:
    event = ClientFinished(
        1, client, 5, 1, 1.0, up, down, 0.0, 0.0, up, down, flops, None, {"loss": 1.0}, []
    )
    return Reply(Client(client, 5), None, 0.0, event=event)


def judge(replies: list[Reply], wanted: int, began: float = 0.0, **options: Any) -> Gathered:
    one = Run(
        fedavg(),
        mlp(),
        Toy(),
        rounds=1,
        key=Key(2),
        options=Options(**{"devices": UNIT, **options}),
    )
    return judged(one, 1, replies, wanted, began)


def outcomes(gathered: Gathered) -> dict[int, tuple[str, float]]:
    assert gathered.timed is not None
    return {each.client: (each.outcome, each.ended) for each in gathered.timed.clients}


THREE = [reply(0, 10, 20, 5), reply(1, 10, 4, 5), reply(2, 10, 50, 5)]  # 35, 19 and 65 seconds


def test_without_a_deadline_a_round_takes_as_long_as_its_slowest_client() -> None:
    found = judge(THREE, 3, began=100)
    assert outcomes(found) == {0: ("merged", 135), 1: ("merged", 119), 2: ("merged", 165)}
    assert found.timed is not None and not found.stopped
    assert (found.timed.began, found.timed.ended, found.timed.waited_for) == (100, 165, 2)
    assert [each.event and each.event.device_seconds for each in found.replies] == [35, 19, 65]


def test_after_the_deadline_a_client_is_late_and_charged_for_what_it_did() -> None:
    found = judge(THREE, 3, deadline="40s")
    assert outcomes(found) == {0: ("merged", 35), 1: ("merged", 19), 2: ("late", 40)}
    assert [each.client.id for each in found.replies] == [0, 1]
    assert found.timed is not None
    assert (found.timed.ended, found.timed.waited_for) == (40, None)
    (late,) = found.stopped
    # ten seconds of receiving, thirty of training; nothing was sent
    assert (late.client, late.reason, late.down, late.flops, late.up) == (2, "late", 10, 30, 0)
    assert late.device_seconds == 40 and late.paper_down == 10


def test_the_first_that_answer_count_and_the_others_are_stopped() -> None:
    found = judge(THREE, 2)
    assert outcomes(found) == {0: ("merged", 35), 1: ("merged", 19), 2: ("spare", 35)}
    assert found.timed is not None and found.timed.ended == 35 and found.timed.waited_for == 0
    assert (found.stopped[0].reason, found.stopped[0].flops) == ("spare", 25)


def test_a_client_that_was_sending_is_charged_for_the_part_that_was_sent() -> None:
    found = judge([reply(0, 10, 20, 5), reply(1, 10, 23, 10)], 1)
    assert [(each.client, each.flops, each.up) for each in found.stopped] == [(1, 23, 2)]


def test_equal_times_are_ordered_by_client() -> None:
    found = judge([reply(3, 1, 1, 1), reply(1, 1, 1, 1), reply(2, 1, 1, 1)], 2)
    assert sorted(each.client.id for each in found.replies) == [1, 2]
    assert found.timed is not None and found.timed.waited_for == 2


def test_a_deadline_that_ends_with_a_reply_still_counts_it() -> None:
    found = judge(THREE, 3, deadline="65s")
    assert [each.client.id for each in found.replies] == [0, 1, 2]
    assert found.timed is not None and found.timed.waited_for == 2


def test_a_round_without_replies_in_time_takes_its_deadline() -> None:
    found = judge(THREE, 3, deadline="5s")
    assert not found.replies and found.timed is not None and found.timed.ended == 5
    assert {each.flops for each in found.stopped} == {0}


def test_failing_clients_are_waited_for_until_they_fail() -> None:
    found = judge([reply(id, 10, 20, 5) for id in range(40)], 40, failures=0.5)
    assert found.timed is not None
    failed = {id: end for id, (how, end) in outcomes(found).items() if how == "failed"}
    assert 8 < len(failed) < 32 and all(0 <= end <= 35 for end in failed.values())
    assert len(found.replies) == 40 - len(failed)
    same = judge([reply(id, 10, 20, 5) for id in range(40)], 40, failures=0.5)
    assert outcomes(same) == outcomes(found)


def test_a_device_that_goes_away_takes_its_reply_with_it(tmp_path: Path) -> None:
    path = tmp_path / "traces.csv"
    path.write_text("client,from,until\n0,0,100\n1,0,15\n2,0,64.5\n")
    found = judge(THREE, 3, availability=str(path))
    assert outcomes(found) == {0: ("merged", 35), 1: ("left", 15), 2: ("left", 64.5)}
    assert [(each.flops, each.up) for each in found.stopped] == [(4, 1), (50, 4)]


# whole runs --------------------------------------------------------------------------------------


def trained(out: Path | None = None, rounds: int = 4, clients: int = 4, **options: Any) -> Summary:
    given = Options(**{"eval_every": 0, "devices": MIXTURE, **options})
    return run(fedavg(clients), mlp(), Toy(12), rounds=rounds, seed=3, out=out, options=given)


def of(out: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in events.read(out / "events.jsonl") if event["event"] == kind]


def test_devices_alone_change_nothing_but_the_clock() -> None:
    plain, timed = trained(devices=""), trained()
    assert plain.state_hash == timed.state_hash and plain.device_seconds is None
    assert timed.device_seconds is not None and timed.device_seconds > 0


def test_virtual_time_goes_on_from_round_to_round(tmp_path: Path) -> None:
    summary = trained(tmp_path)
    timed = of(tmp_path, "round-timed")
    assert [each["began"] for each in timed] == [0, *(each["ended"] for each in timed[:-1])]
    ends = [each["device_seconds"] for each in of(tmp_path, "round-finished")]
    assert ends == [each["ended"] for each in timed] and ends[-1] == summary.device_seconds


def test_oversampling_asks_more_clients_and_merges_as_many_as_the_method_wants(
    tmp_path: Path,
) -> None:
    trained(tmp_path, oversample=1.5)
    for timed, finished in zip(
        of(tmp_path, "round-timed"), of(tmp_path, "round-finished"), strict=True
    ):
        assert len(timed["clients"]) == 6 and len(finished["clients"]) == 4
        assert sum(each["outcome"] == "spare" for each in timed["clients"]) == 2


def test_what_was_in_vain_is_charged(tmp_path: Path) -> None:
    summary = trained(tmp_path, rounds=8, oversample=1.5, failures=0.2, deadline="0.1s")
    rows = of(tmp_path, "client-finished") + of(tmp_path, "client-stopped")
    assert {"late", "failed"} <= {each["reason"] for each in of(tmp_path, "client-stopped")}
    assert summary.cost.up == sum(row["up"] for row in rows)
    assert summary.cost.down == sum(row["down"] for row in rows)
    assert summary.cost.flops == sum(row["flops"] for row in rows)


def test_clients_short_of_time_send_what_they_have(tmp_path: Path) -> None:
    device = "up=1e6,down=1e6,latency=0,flops=2e5"
    whole = trained(tmp_path / "whole", devices=device)
    steps = [each["steps"] for each in of(tmp_path / "whole", "client-finished")]
    longest = max(each["device_seconds"] for each in of(tmp_path / "whole", "client-finished"))
    limit = f"{0.6 * longest}s"
    late = trained(tmp_path / "late", devices=device, deadline=limit)
    part = trained(tmp_path / "part", devices=device, deadline=limit, partial=True)
    fewer = [each["steps"] for each in of(tmp_path / "part", "client-finished")]
    assert len(fewer) == len(steps) and sum(fewer) < sum(steps) and min(fewer) >= 1
    assert not of(tmp_path / "part", "client-stopped") and of(tmp_path / "late", "client-stopped")
    assert len({whole.state_hash, late.state_hash, part.state_hash}) == 3
    spent = [each["device_seconds"] for each in of(tmp_path / "part", "client-finished")]
    assert max(spent) <= 0.6 * longest


def test_only_clients_that_are_there_are_asked(tmp_path: Path) -> None:
    path = tmp_path / "traces.csv"
    lines = [f"{id},{0 if id < 5 else 1000},5000" for id in range(12)]
    path.write_text("\n".join(["client,from,until", *lines]))
    trained(tmp_path / "run", availability=str(path))
    asked = {id for each in of(tmp_path / "run", "round-finished") for id in each["clients"]}
    assert asked <= set(range(5))


def test_the_server_waits_until_enough_clients_are_there(tmp_path: Path) -> None:
    path = tmp_path / "traces.csv"
    path.write_text("\n".join(["client,from,until", *(f"{id},{50 + id},500" for id in range(12))]))
    trained(tmp_path / "run", availability=str(path), rounds=1)
    (timed,) = of(tmp_path / "run", "round-timed")
    assert timed["began"] == 53 and {each["client"] for each in timed["clients"]} == {0, 1, 2, 3}


def test_a_run_that_nobody_comes_to_any_more_says_so(tmp_path: Path) -> None:
    path = tmp_path / "traces.csv"
    path.write_text("client,from,until\n0,0,0.001\n1,0,0.001\n")
    with pytest.raises(RuntimeError, match=r"no client comes any more.*@7d"):
        trained(availability=str(path))


def test_workers_change_nothing_of_a_round_with_deadlines(tmp_path: Path) -> None:
    options = {"deadline": "0.12s", "oversample": 1.5, "failures": 0.2, "spread": 0.5}
    hashes = {trained(workers=count, **options).state_hash for count in (1, 2, 3)}
    assert len(hashes) == 1


def test_measured_seconds_replace_operations(tmp_path: Path) -> None:
    one = trained(tmp_path, time_by="measured:1000", rounds=1)
    assert one.state_hash == trained(rounds=1).state_hash
    assert one.device_seconds is not None and one.device_seconds > 0.1
