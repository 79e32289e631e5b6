"""Prices a method without training: real messages and masks, no arithmetic on data.

A dry run calls every function of the method but `step`. Where the method says which messages are
alike (`gossamer.accounting.forecast`), one of each kind is made and multiplied. Otherwise it goes
through all rounds, or stops early if all rounds but the first cost the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gossamer.accounting.blank_data import Blank
from gossamer.accounting.forecast import Repeated
from gossamer.accounting.prices import Bits, Line, Price, add_up
from gossamer.accounting.rehearsal import Part, Rehearsal, rehearsing
from gossamer.core import AnyMethod, Client
from gossamer.data.inputs import Floats
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.task import Task

PROBE = 12
"""Rounds after the first that must cost the same before the rest is extrapolated."""

Progress = Callable[[int, int], None]
"""Is called with the rounds done so far, and with all."""


def price(
    method: AnyMethod,
    task: Task,
    *,
    classes: int,
    pool: int,
    examples: int,
    rounds: int,
    options: Options = Options(),
    budgets: Floats | None = None,
) -> Price:
    """Prices a method on blank data of the task's shape.

    Args:
        method: The method.
        task: The task.
        classes: Classes of the data.
        pool: Clients in all.
        examples: Training examples of each client.
        rounds: Rounds of communication.
        options: How operations and time are counted.
        budgets: The density that each client can afford; 1 unless given.
    """
    label = task.blank_labels(task.layout.input.blank(1))
    federation = Blank(task.layout.input, classes, pool, examples, budgets=budgets, label=label)
    return price_run(Run(method, task, federation, rounds=rounds, options=options))


def price_run(
    run: Run, every_round: bool = False, progress: Progress = lambda done, rounds: None
) -> Price:
    """Prices a run by going through it without training steps.

    Args:
        run: What is priced.
        every_round: Whether to go through all rounds, even those that the method says are alike.
        progress: Is told how far it has come.
    """
    with rehearsing(run) as stage:
        if stage.forecast.alike is not None and not every_round:
            try:
                return _by_kind(stage)
            except _Unlike:
                pass
    with rehearsing(run) as stage:
        return _round_by_round(stage, every_round, progress)


class _Unlike(Exception):
    """The rounds are not those that the plan was made for."""


# one of each kind --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """What the cost of one direction depends on."""

    label: Hashable
    budget: float
    amount: float
    """Examples of the client, or how many times the paper counts the message."""


@dataclass(frozen=True)
class _Talk:
    """A client's part in a round."""

    round: int
    client: Client
    last: int
    down: _Kind
    up: _Kind
    charged: float


@dataclass
class _Plan:
    """All conversations of a run, and those that represent the others."""

    cohorts: dict[int, list[_Talk]]
    chosen: dict[_Kind, _Talk] = field(default_factory=dict)
    clients: dict[int, dict[int, Client]] = field(default_factory=dict)
    """By round, the clients that it is held with."""
    merged: set[int] = field(default_factory=set)
    """The rounds whose replies are merged; the others change nothing that costs depend on."""

    @property
    def talks(self) -> Iterator[_Talk]:
        """All conversations, in the order of rounds."""
        return (talk for talks in self.cohorts.values() for talk in talks)

    def holds(self, talk: _Talk) -> bool:
        """Whether a conversation is planned."""
        return talk.client.id in self.clients.get(talk.round, {})

    def before(self, talk: _Talk) -> _Talk | None:
        """The client's conversation before this one."""
        own = (each for each in self.cohorts.get(talk.last, ()) if each.client == talk.client)
        return next(own, None)

    def add(self, talk: _Talk) -> None:
        """Plans a conversation and, so that the client is in its state, the one before."""
        self.clients.setdefault(talk.round, {})[talk.client.id] = talk.client
        if talk.last:
            self.clients.setdefault(talk.last, {})[talk.client.id] = talk.client
            self.merged.add(talk.last)


def _by_kind(stage: Rehearsal) -> Price:
    plan = _planned(stage)
    parts = dict(_played(stage, plan))
    counts = Counter(kind for talk in plan.talks for kind in (talk.down, talk.up))
    steps = _steps(counts)
    parts |= {kind: _grown(kind, steps, parts) for kind in counts if kind not in parts}
    slowest = (
        max(_seconds(stage, parts[talk.down], parts[talk.up]) for talk in each)
        for each in plan.cohorts.values()
        if each
    )
    totals = ((parts[kind], count) for kind, count in counts.items())
    return _price(stage, totals, len(plan.clients), sum(slowest))


def _played(stage: Rehearsal, plan: _Plan) -> Iterator[tuple[_Kind, Part]]:
    """Holds the conversations that represent the others, in the order of rounds."""
    for number in sorted(plan.clients):
        talks = {talk.client.id: talk for talk in plan.cohorts[number]}
        if [client.id for client in stage.cohort(number)] != list(talks):
            raise _Unlike
        clients = [plan.clients[number][id] for id in sorted(plan.clients[number])]
        charged, merges = talks[clients[0].id].charged, number in plan.merged
        held = stage.play(number, clients, charged, merges)
        for client, played in zip(clients, held, strict=True):
            talk = talks[client.id]
            for kind, part in ((talk.down, played.down), (talk.up, played.up)):
                if plan.chosen.get(kind) is talk:
                    yield kind, part


def _planned(stage: Rehearsal) -> _Plan:
    """Labels all conversations of the run, and chooses one of each kind where it occurs first."""
    plan = _Plan(dict(_labelled(stage)))
    steps = _steps({kind for talk in plan.talks for kind in (talk.down, talk.up)})
    replies: dict[_Kind, int] = {}
    for talk in plan.talks:
        replies.setdefault(talk.up, talk.round)
    for talks in plan.cohorts.values():
        for kind in dict.fromkeys(talk.down for talk in talks):
            repeated = isinstance(kind.label, Repeated)
            if kind in plan.chosen or (repeated and not _is_step(kind, steps)):
                continue
            able = [talk for talk in talks if talk.down == kind]
            plan.chosen[kind] = best = min(able, key=lambda talk: _extra(plan, replies, talk))
            plan.add(best)
            if (before := plan.before(best)) and replies[before.up] == before.round:
                plan.chosen.setdefault(before.up, before)
            if repeated:  # whoever counts rounds must not miss one
                plan.merged.update(range(1, best.round + 1))
    for kind, number in replies.items():
        able = [talk for talk in plan.cohorts[number] if talk.up == kind]
        plan.chosen.setdefault(kind, min(able, key=lambda talk: not plan.holds(talk)))
        client = plan.chosen[kind].client  # whatever it holds, its reply costs the same
        plan.clients.setdefault(number, {})[client.id] = client
        plan.merged.add(number)
    for number in plan.merged - plan.clients.keys():
        for talk in plan.cohorts[number][:1]:
            plan.clients[number] = {talk.client.id: talk.client}
    return plan


def _extra(plan: _Plan, replies: Mapping[_Kind, int], talk: _Talk) -> int:
    """How many conversations more a choice would take, counted twice."""
    before = plan.before(talk)
    if before is None or plan.holds(before):
        return 0
    useful = before.up not in plan.chosen and replies[before.up] == before.round
    return 1 if useful else 2


def _is_step(kind: _Kind, steps: Mapping[Hashable, list[int]]) -> bool:
    assert isinstance(kind.label, Repeated)
    return kind.label.times in steps[_family(kind)]


def _labelled(stage: Rehearsal) -> Iterator[tuple[int, list[_Talk]]]:
    """Every round with its clients and the kinds of their messages."""
    method, alike, first = stage.run.method, stage.forecast.alike, stage.state
    assert alike is not None
    last: dict[int, int] = {}
    for number in range(1, stage.run.rounds + 1):
        cohort, ctx = stage.cohort(number), stage.ctx(number)
        charged = stage.charged(cohort) if cohort else 1.0
        talks = []
        for client in cohort:
            before = last.get(client.id, 0)
            down, up = alike(method, ctx, before)
            label = down if isinstance(down, Repeated) else ("down", down)
            kinds = (
                _Kind(label, client.budget, charged),
                _Kind(("up", up), client.budget, client.examples),
            )
            talks.append(_Talk(number, client, before, *kinds, charged))
        last.update((client.id, number) for client in cohort)
        yield number, talks
        if number == 1 and cohort:  # who comes next may depend on the phase
            stage.play(1, cohort[:1], charged)
    stage.state = first


def _family(kind: _Kind) -> Hashable:
    label = kind.label
    assert isinstance(label, Repeated)
    return label.label, kind.budget, kind.amount


def _steps(kinds: Iterable[_Kind]) -> dict[Hashable, list[int]]:
    """The two smallest numbers of repetitions of each repeated label."""
    times: dict[Hashable, set[int]] = {}
    for kind in kinds:
        if isinstance(kind.label, Repeated):
            times.setdefault(_family(kind), set()).add(kind.label.times)
    return {family: sorted(numbers)[:2] for family, numbers in times.items()}


def _grown(kind: _Kind, steps: dict[Hashable, list[int]], parts: dict[_Kind, Part]) -> Part:
    """The part of a repeated label, from those with the fewest repetitions."""
    label = kind.label
    assert isinstance(label, Repeated)
    low, high = steps[_family(kind)]
    first, second = (
        parts[_Kind(Repeated(label.label, times), kind.budget, kind.amount)]
        for times in (low, high)
    )
    whole, rest = divmod(label.times - low, high - low)
    if rest:
        raise _Unlike
    return first.grown(second, whole)


# all rounds --------------------------------------------------------------------------------------


def _round_by_round(stage: Rehearsal, all_rounds: bool, progress: Progress) -> Price:
    """Goes through the rounds with all their clients."""
    rounds, watched = stage.run.rounds, hasattr(stage.run.method, "measures")
    held: list[list[Part]] = []
    seconds: list[float] = []
    for number in range(1, rounds + 1):
        cohort = stage.cohort(number)
        played = stage.play(number, cohort, stage.charged(cohort) if cohort else 1.0)
        held.append([part for each in played for part in (each.down, each.up)])
        seconds.append(max((_seconds(stage, each.down, each.up) for each in played), default=0.0))
        progress(number, rounds)
        # A method with masks at the server may act rarely.
        if all_rounds or watched or number != PROBE + 1:
            continue
        if all(sorted_parts(each) == sorted_parts(held[1]) for each in held[1:]):
            break
    rest = rounds - len(held)
    times = [1 + rest * (index == len(held) - 1) for index in range(len(held))]
    totals = ((part, count) for parts, count in zip(held, times, strict=True) for part in parts)
    took = sum(each * count for each, count in zip(seconds, times, strict=True))
    return _price(stage, totals, len(held), took)


def sorted_parts(parts: list[Part]) -> list[str]:
    """The parts of a round without the order of its clients."""
    return sorted(map(repr, parts))


def _seconds(stage: Rehearsal, down: Part, up: Part) -> float:
    fleet = stage.run.fleet
    return fleet.slowest.seconds(up.sent, down.sent, up.flops[2]) if fleet else 0.0


def _price(
    stage: Rehearsal, parts: Iterable[tuple[Part, int]], exact: int, seconds: float
) -> Price:
    """The sum of parts, each as often as it occurs."""
    lines: tuple[dict[Line, Bits], ...] = ({}, {}, {})
    flops = [0, 0, 0]
    for part, count in parts:
        for here, rows in zip(lines, part.rows, strict=True):
            for line, bits in rows.items():
                here[line] = here.get(line, Bits()) + bits * count
        flops = [have + count * more for have, more in zip(flops, part.flops, strict=True)]
    run = stage.run
    return Price(
        run.rounds,
        exact,
        lines[0],
        flops[0],
        seconds if run.fleet else None,
        stage.learned,
        lines[1],
        lines[2],
        (flops[1], flops[2]),
    )


__all__ = ["PROBE", "Bits", "Line", "Price", "add_up", "price", "price_run"]
