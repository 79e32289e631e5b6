"""Virtual time: how long clients take on their devices, and whose replies are in time.

Nothing here looks at a clock: all times follow from the key, from bits and from operations (with
`time_by='measured'`, from seconds that were measured here, and then nothing depends on them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gossamer.devices.availability import leaves
from gossamer.devices.device import Device
from gossamer.engine.events import ClientStopped, RoundTimed, Timed
from gossamer.engine.expected import Reply
from gossamer.engine.run_record import Run

MERGED, LATE, SPARE, FAILED, LEFT = "merged", "late", "spare", "failed", "left"


@dataclass(frozen=True)
class Part:
    """A client's part of a round on its device, if nobody stops it."""

    reply: Reply
    device: Device
    began: float
    downloading: float
    training: float
    uploading: float
    ended: float
    """When its reply arrives, or when it fails or leaves."""
    outcome: str = MERGED

    @property
    def id(self) -> int:
        return self.reply.client.id

    def timed(self, ended: float, outcome: str, staleness: int = 0) -> Timed:
        """What the log says of it."""
        return Timed(self.id, self.device.kind, self.began, ended, outcome, staleness)


def fails_at(run: Run, device: Device, number: int, client: int) -> float | None:
    """The share of its part of a round after which a client fails; None if it does not."""
    if not device.failure:
        return None
    draw, share = run.key.fold("devices", "failure", number, client).numpy().random(2).tolist()
    return share if draw < device.failure else None


def part_of(run: Run, reply: Reply, number: int, began: float) -> Part:
    """When a client's reply arrives, or how it is lost.

    Args:
        run: The run, which has devices.
        reply: A reply that came back in the simulation.
        number: The round for which the client began.
        began: When it was sent the request.
    """
    assert run.fleet is not None and reply.event is not None
    device, event = run.fleet.of(reply.client.id), reply.event
    training = device.training(event.flops)
    if (factor := run.conditions.measured) is not None:
        training = reply.seconds * factor * run.fleet.fastest / device.flops
    spans = (device.downloading(event.down), training, device.uploading(event.up))
    ended, outcome = began + sum(spans), MERGED
    share = fails_at(run, device, number, reply.client.id)
    if share is not None:
        ended, outcome = began + share * sum(spans), FAILED
    if (gone := leaves(device.availability, began)) < ended:
        ended, outcome = gone, LEFT
    reply = replace(reply, event=replace(event, device_seconds=sum(spans)))
    return Part(reply, device, began, *spans, ended, outcome)


def earliest(run: Run, device: Device, number: int, client: int, down: int, began: float) -> float:
    """A time before which nothing more is heard of a client, whatever it computes."""
    if fails_at(run, device, number, client) is not None:
        return began
    least = began + device.downloading(down) + device.uploading(0)
    return min(least, leaves(device.availability, began), began + run.conditions.deadline)


def stopped(part: Part, number: int, at: float, reason: str) -> ClientStopped:
    """What a client has cost that is stopped: all that was sent to it, and what it did until then.

    Args:
        part: What it would have done.
        number: The round.
        at: When it is stopped, or fails.
        reason: Why.
    """
    event = part.reply.event
    assert event is not None
    passed = at - part.began
    trained = _share(passed - part.downloading, part.training)
    sent = _share(
        passed - part.downloading - part.training - part.device.latency,
        part.uploading - part.device.latency,
    )
    return ClientStopped(
        round=number,
        client=part.id,
        reason=reason,
        up=round(sent * event.up),
        down=event.down,
        paper_down=event.paper_down,
        flops=round(trained * event.flops),
        device_seconds=passed,
    )


def _share(passed: float, whole: float) -> float:
    return min(max(passed / whole, 0.0), 1.0) if whole > 0 else float(passed >= 0)


@dataclass(frozen=True)
class Gathered:
    """What comes of the clients that were asked."""

    replies: list[Reply]
    """To be merged, in the order of client ids, and real failures."""
    stopped: list[ClientStopped] = field(default_factory=list)
    timed: RoundTimed | None = None
    """None without devices."""


def judged(run: Run, number: int, replies: Sequence[Reply], wanted: int, began: float) -> Gathered:
    """Whose replies count: the first `wanted` that arrive before the deadline.

    The round ends with the last of them, at its deadline, or when nothing more is to come.

    Args:
        run: The run, which has devices.
        number: The round.
        replies: All that came back in the simulation, in the order of client ids.
        wanted: How many replies are enough.
        began: The virtual time at which requests were sent.
    """
    parts = [part_of(run, reply, number, began) for reply in replies if reply.event is not None]
    order = sorted(parts, key=lambda part: (part.ended, part.id))
    arrivals = [part for part in order if part.outcome == MERGED]
    last = arrivals[wanted - 1] if len(arrivals) >= wanted else next(reversed(order), None)
    limit = began + run.conditions.deadline
    in_time = last is None or last.ended <= limit
    ended = began if last is None else min(last.ended, limit)
    merged = {part.id: part.reply for part in arrivals[:wanted] if part.ended <= ended}
    kept, rows, lost = [], [], []
    for part in parts:
        outcome, until = MERGED, part.ended
        if part.id not in merged:
            outcome = SPARE if in_time else LATE
            if part.outcome != MERGED and part.ended <= ended:
                outcome = part.outcome
            until = min(part.ended, ended)
            lost.append(stopped(part, number, until, outcome))
        rows.append(part.timed(until, outcome))
    for reply in replies:
        if reply.event is None:
            kept.append(reply)
        elif reply.client.id in merged:
            kept.append(merged[reply.client.id])
    waited = last.id if last is not None and in_time else None
    return Gathered(kept, lost, RoundTimed(number, began, ended, waited, rows))


def affordable(part: Part, steps: int, seconds: float) -> int:
    """How many steps a client can take so that its reply arrives within some seconds.

    Args:
        part: What it would do with all steps.
        steps: All of them.
        seconds: The deadline.
    """
    room = seconds - part.downloading - part.uploading
    if part.training <= room:
        return steps
    return max(0, math.floor(steps * room / part.training))
