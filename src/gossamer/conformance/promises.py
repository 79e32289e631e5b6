"""Conformance: what every method promises the engine, checked on a tiny federation.

    for finding in check(Mine()):
        print(finding)

The engine relies on these promises for resuming, parallel workers, replay and honest accounting; a
method that breaks one of them usually still trains, and is silently wrong. Every check is made with
a plain convolutional net, with one that has batch normalisation and dropout, and with one whose
first weights are its own and partly frozen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb

from gossamer import fields
from gossamer.conformance.bench import Bench, Broken, Round, whole_run
from gossamer.conformance.comparison import close, same_run, same_story
from gossamer.conformance.record_promises import (
    constants,
    encodable,
    foreseen,
    measures,
    named,
    travels,
)
from gossamer.conformance.story import Story, poison, story
from gossamer.conformance.toys import Tiny, normed_task, plain_task, pretrained_task, small
from gossamer.core import AnyMethod, Ensemble, Params
from gossamer.engine.client import batches
from gossamer.engine.processor import one_torch_thread
from gossamer.task import Task
from gossamer.task.randomness import untouched_generators
from gossamer.wire import (
    dump,
)

ROUNDS = 4


@dataclass(frozen=True)
class Finding:
    """One promise, whether it holds, and if not, why in one sentence."""

    name: str
    ok: bool
    detail: str = ""


Promise = Callable[[Bench], None]


def check(method: AnyMethod, rounds: int = ROUNDS) -> Iterator[Finding]:
    """Checks every promise, in a few seconds.

    Args:
        method: The method.
        rounds: Rounds to play; more than four for a method whose later phases begin after them.
    """
    basics = _finding("settings are sound", lambda: _settings(method))
    yield basics
    if not basics.ok:
        return
    tasks = (plain_task(), normed_task(), pretrained_task())
    benches = [Bench(small(method), task, Tiny(), rounds) for task in tasks]
    for name, promise in PROMISES.items():
        yield _finding(name, *(_attempt(promise, bench) for bench in benches))


def _attempt(promise: Promise, bench: Bench) -> Callable[[], None]:
    def attempt() -> None:
        with one_torch_thread(), untouched_generators():
            try:
                promise(bench)
            except Exception as error:
                if place := _place(error, bench.method):
                    error.add_note(place)
                if bench.task.layout.constants:
                    error.add_note("with first weights that are given and partly frozen")
                elif bench.task.layout.batch_norm:
                    error.add_note("with batch normalisation and dropout")
                raise

    return attempt


def _place(error: Exception, method: AnyMethod) -> str:
    """The line of the method's own file on which an error was raised, if it was there."""
    names = ("init", "cohort", "down", "merge", "begin", "step", "finish", "model")
    codes = (getattr(getattr(type(method), name), "__code__", None) for name in names)
    files = {code.co_filename for code in codes if code}
    own = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
    if isinstance(error, Broken) or not own:
        return ""
    return f"in {own[-1].name}, {Path(own[-1].filename).name} line {own[-1].lineno}"


def _finding(name: str, *attempts: Callable[[], None]) -> Finding:
    for attempt in attempts:
        try:
            attempt()
        except Exception as error:
            text = (str(error).splitlines() or ["no message"])[0]
            detail = text if isinstance(error, Broken) else f"{type(error).__name__}: {text}"
            where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            return Finding(name, False, detail + where)
    return Finding(name, True)


# the promises -----------------------------------------------------------------------------------


def _settings(method: AnyMethod) -> None:
    """A frozen dataclass whose settings are within bounds and have names of their own."""
    if not dataclasses.is_dataclass(method) or isinstance(method, type):
        raise Broken(f"{method!r} is not an instance of a dataclass; use @dataclass(frozen=True)")
    if not type(method).__dataclass_params__.frozen:
        raise Broken("the dataclass is not frozen; use @dataclass(frozen=True)")
    fields.check(method)
    names = [setting.name for setting in fields.settings(method)]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        raise Broken(f"two settings are called {doubles[0]!r}; the command line needs one of each")


def _repeatable(bench: Bench) -> None:
    """The same call twice gives the same record."""
    poison(1)
    first = Story(bench, twice=True).tell()
    again = story(bench, seed=1)
    same_story(first, again, "is another one when all is done again; keep no state but in records")


def _seeded(bench: Bench) -> None:
    """No result depends on a global generator."""
    one, two = story(bench, seed=1), story(bench, seed=2)
    same_story(one, two, "depends on the global seeds; draw from ctx.key or ctx.common instead")


def _untouched(bench: Bench) -> None:
    """No function changes what it was given, and training changes nothing but its work."""
    Story(bench, guard=True).tell()


def _cohorts(bench: Bench) -> None:
    """A cohort is a set of clients of the pool, each at most once."""
    for round in bench.history():
        ids = [client.id for client in bench.cohort(round.number, round.state)]
        if len(set(ids)) != len(ids):
            raise Broken(f"the cohort of round {round.number} names a client twice")
        if not all(exchange.client in bench.federation.pool for exchange in round.exchanges):
            raise Broken(f"the cohort of round {round.number} names somebody outside the pool")


def _empty_round(bench: Bench) -> None:
    """A round without replies leaves the state unchanged."""
    for round in bench.history():
        after = bench.method.merge(bench.server(round.number), round.state, iter(()))
        if dump(after) != dump(round.state):
            raise Broken(f"merging no exchanges in round {round.number} changes the server's state")


def _failures(bench: Bench) -> None:
    """A round continues without failed clients, and its model is complete."""
    for round in bench.history():
        ctx = bench.server(round.number)
        after = bench.method.merge(ctx, round.state, iter(round.exchanges[1:]))
        _whole(bench.task, bench.method.model(ctx, after, None), "without one of the clients")


def _arrival(bench: Bench) -> None:
    """Merging gives the same within rounding in any order of arrival."""
    for round in bench.history():
        ctx, merged = bench.server(round.number), round.merged
        once = bench.method.merge(ctx, round.state, iter(round.exchanges))
        if dump(once) != dump(merged):
            raise Broken("merge reads its exchanges more than once; they come one at a time")
        reverse = bench.method.merge(ctx, round.state, iter(round.exchanges[::-1]))
        if not close(merged, reverse):
            raise Broken(f"merge of round {round.number} depends on the order of arrival")


def _models(bench: Bench) -> None:
    """The global model and every personal one have all tensors of the layout."""
    state = bench.init()
    _whole(bench.task, bench.method.model(bench.server(0), state, None), "at the start")
    for round in bench.history():
        ctx = bench.server(round.number)
        _whole(bench.task, bench.method.model(ctx, round.merged, None), _after(round, "global"))
        for exchange, result in zip(round.exchanges, round.results, strict=True):
            if result.local is not None:
                model = bench.method.model(ctx, round.merged, result.local)
                _whole(bench.task, model, _after(round, f"client {exchange.client.id}"))


def _after(round: Round, whose: str) -> str:
    return f"{whose}, after round {round.number}"


def _whole(task: Task, model: Params | Ensemble, whose: str) -> None:
    members = model.members if isinstance(model, Ensemble) else (model,)
    if isinstance(model, Ensemble) and len(model.weights) != len(members):
        raise Broken(f"the model ({whose}) has {len(members)} members and other weights")
    for params in members:
        for name, leaf in task.layout.leaves.items():
            if name not in params:
                raise Broken(f"the model ({whose}) lacks the tensor {name!r}")
            tensor = params[name]
            if tuple(tensor.shape) != leaf.shape:
                raise Broken(f"the model ({whose}) has {name!r} of shape {tuple(tensor.shape)}")
            if not tensor.isfinite().all():
                raise Broken(f"the model ({whose}) has numbers in {name!r} that are not finite")


def _fractions(bench: Bench) -> None:
    """A client may train for any fraction of an epoch, or for more than one."""
    state, client = bench.init(), bench.federation.pool[0]
    down = bench.method.down(bench.server(1), state, client)
    ctx = bench.client(1, client)
    for epochs in (0.01, 0.5, 1.5):
        job = dataclasses.replace(bench.method.begin(ctx, down, None), epochs=epochs)
        work = job.work
        for batch in batches(ctx, job):
            work = bench.method.step(ctx, work, batch)
        travels("Up", bench.method.finish(ctx, work).up)


def _parallel(bench: Bench) -> None:
    """Two workers give the same bits and the same events as one."""
    same_run(whole_run(bench, 1), whole_run(bench, 2), "with two workers")


def _resumable(bench: Bench) -> None:
    """A run that is stopped and resumed ends like an uninterrupted one."""
    whole = whole_run(bench, 1)
    for round in sorted({1, bench.rounds - 1}):
        resumed = whole_run(bench, 1, stop_after=round)
        same_run(whole, resumed, f"when it is resumed after round {round}")


def _longer(bench: Bench) -> None:
    """A run that will have more rounds begins the same, unless a setting is spread over them."""
    if fields.spans_rounds(bench.method):
        return
    longer = dataclasses.replace(bench, rounds=bench.rounds + 3)
    for short, long in zip(bench.history(), longer.history(), strict=False):
        if dump(short.merged) != dump(long.merged):
            raise Broken(
                f"round {short.number} of {bench.rounds} differs from that of {longer.rounds}; "
                "name what depends on ctx.rounds in a property spans_rounds"
            )


PROMISES: dict[str, Promise] = {
    "records can be encoded": encodable,
    "records are named in signatures": named,
    "replies are what the server expects": foreseen,
    "frozen parameters stay where they are": constants,
    "calls can be repeated": _repeatable,
    "global seeds do not matter": _seeded,
    "inputs stay unchanged": _untouched,
    "cohorts come from the pool": _cohorts,
    "an empty round changes nothing": _empty_round,
    "a failed client can be left out": _failures,
    "order of arrival does not matter": _arrival,
    "models are whole": _models,
    "measures fit the model": measures,
    "epochs may be fractional": _fractions,
    "one worker equals two": _parallel,
    "resumed equals uninterrupted": _resumable,
    "a longer run begins the same": _longer,
}


# comparing --------------------------------------------------------------------------------------
