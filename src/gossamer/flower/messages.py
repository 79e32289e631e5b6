"""What server and nodes write to each other around a message: its head, and how it is read.

A letter is a head, a small JSON object, and a body, which is a message of the wire, a server's
state, or nothing. The body alone is what the ledger charges; heads are the transport's overhead.
Whatever comes from the other side may be garbage: reading it raises `WireError` and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from gossamer.accounting import Entry
from gossamer.engine.client import Stage
from gossamer.engine.evaluate import Figures
from gossamer.engine.participant import Account, Answer, Ask, Broke, Done, Lacks
from gossamer.wire import Schema, WireError
from gossamer.wire.schema import Types

LONGEST_HEAD = 2**22
"""Bytes of a head, at most."""
LARGEST = 2**62
"""Whatever a node counts, it is less."""


@dataclass(frozen=True)
class Letter:
    """What one side sends to the other at once."""

    head: Mapping[str, Any]
    body: bytes = b""

    @property
    def kind(self) -> str:
        """What the letter is about."""
        return str(self.head.get("kind", ""))

    def packed(self) -> tuple[bytes, bytes]:
        """Head and body as they travel."""
        return json.dumps(self.head, separators=(",", ":")).encode(), self.body

    @classmethod
    def opened(cls, head: bytes, body: bytes) -> Letter:
        """The letter that was packed."""
        if len(head) > LONGEST_HEAD:
            raise WireError(f"a letter's head of {len(head)} bytes is longer than {LONGEST_HEAD}")
        try:
            found = json.loads(head)
        except (ValueError, RecursionError) as damage:
            raise WireError("a letter's head is no JSON") from damage
        if not isinstance(found, dict):
            raise WireError("a letter's head is no JSON object")
        return cls(found, body)


@dataclass(frozen=True)
class Here:
    """A node's answer to the roll call."""

    clients: Mapping[int, int]
    """The clients it stands for, and how many examples each can train on."""
    agreement: str
    """A hash of everything that server and node must have in common."""


# the server's letters ----------------------------------------------------------------------------


def hello(seconds: float) -> Letter:
    """Asks a node who it is; it need not answer later."""
    return Letter({"kind": "hello", "seconds": seconds})


def train(ask: Ask, run: str, kept: str, explain: bool, seconds: float) -> Letter:
    """Asks for a client's part in a round, beginning with the state whose fingerprint is `kept`.

    The schema goes along only to `explain` a form of message that the node has not seen yet.
    """
    head: dict[str, Any] = {
        "kind": "train",
        "run": run,
        "round": ask.round,
        "client": ask.client,
        "kept": kept,
        "seconds": seconds,
    }
    if explain:
        head["schema"] = ask.schema.plain()
    return Letter(head, ask.data)


def evaluate(
    run: str,
    round: int,
    budgets: Sequence[float],
    kept: Mapping[int, str],
    state: bytes,
    seconds: float,
) -> Letter:
    """Asks how models of clients do on their own data; models may depend on the server's state."""
    head = {
        "kind": "evaluate",
        "run": run,
        "round": round,
        "budgets": list(budgets),
        "kept": [[client, name] for client, name in kept.items()],
        "seconds": seconds,
    }
    return Letter(head, state)


def read_schema(letter: Letter, types: Types) -> Schema | None:
    """The schema in a letter, if it has one."""
    if "schema" not in letter.head:
        return None
    try:
        return Schema.read(letter.head["schema"], types)
    except (ValueError, RecursionError) as refusal:
        raise WireError(str(refusal)) from refusal


# a node's letters --------------------------------------------------------------------------------


def here(found: Here) -> Letter:
    """Tells for whom a node stands."""
    listed = [[client, examples] for client, examples in found.clients.items()]
    return Letter({"kind": "here", "clients": listed, "agreement": found.agreement})


def explain() -> Letter:
    """Asks for the schema of the message that came."""
    return Letter({"kind": "explain"})


def answered(to: Letter, answer: Answer, began: str) -> Letter:
    """A client's answer; `began` is the fingerprint of the state that it began with."""
    head: dict[str, Any] = {name: to.head[name] for name in ("run", "round", "client")}
    match answer:
        case Done():
            account = answer.account
            head |= {
                "kind": "done",
                "began": began,
                "kept": answer.kept.decode() if answer.kept is not None else None,
                "examples": account.examples,
                "steps": account.steps,
                "density": account.density,
                "flops": account.flops,
                "metrics": dict(account.metrics),
                "message": account.up[0].message if account.up else "",
                "rows": [[r.leaf, r.sent, r.information, r.paper] for r in account.up],
            }
            return Letter(head, answer.data)
        case Lacks():
            failure = answer.failure
            told = {"what": answer.what, "stage": failure.stage, "reason": failure.reason}
            return Letter({**head, "kind": "lacks", **told})
        case Broke():
            return Letter({**head, "kind": "broke", "stage": answer.stage, "reason": answer.reason})


def measured(figures: Mapping[int, Figures | None]) -> Letter:
    """What a node's clients measured; None for those whose model is the global one."""
    listed = [
        [client, None if each is None else [each.test, each.valid, each.density, each.own]]
        for client, each in figures.items()
    ]
    return Letter({"kind": "measured", "figures": listed})


# reading a node's letters ------------------------------------------------------------------------


def read_here(letter: Letter) -> Here:
    """Who a node says it is."""
    match letter.head:
        case {"kind": "here", "clients": list(listed), "agreement": str(agreement)}:
            clients = {}
            for pair in listed:
                match pair:
                    case [int(client), int(examples)] if client >= 0 <= examples < LARGEST:
                        clients[client] = examples
                    case _:
                        raise WireError(f"a node cannot stand for {pair!r}")
            return Here(clients, agreement)
    raise WireError("the answer to the roll call is none")


def read_answer(letter: Letter, run: str, ask: Ask) -> Answer:
    """A client's answer to `ask`; anything else, such as one to an older round, is refused."""
    head = letter.head
    for name, wanted in (("run", run), ("round", ask.round), ("client", ask.client)):
        if head.get(name) != wanted or type(head.get(name)) is not type(wanted):
            told = str(head.get(name))[:80]
            raise WireError(f"the answer is for {name} {told}, {wanted} was asked")
    match head:
        case {"kind": "lacks", "what": "mask" | "state" as what}:
            return Lacks(what, _read_failure(head))
        case {"kind": "broke"}:
            return _read_failure(head)
        case {"kind": "done"}:
            return _read_done(letter)
    raise WireError("the answer is of no known kind")


def read_measured(letter: Letter, wanted: Sequence[int]) -> dict[int, Figures | None]:
    """The figures of those clients that were asked for."""
    found: dict[int, Figures | None] = {}
    listed = letter.head.get("figures")
    if letter.kind != "measured" or not isinstance(listed, list):
        raise WireError("the answer holds no figures")
    for pair in listed:
        match pair:
            case [int(client), None] if client in wanted:
                found[client] = None
            case [int(client), [test, valid, density, bool(own)]] if client in wanted:
                found[client] = Figures(_figure(test), _figure(valid), _figure(density), own)
            case _:
                raise WireError(f"{str(pair)[:80]} are no figures that were asked for")
    return found


def _read_failure(head: Mapping[str, Any]) -> Broke:
    stage: Any = head.get("stage")
    reason = head.get("reason")
    if stage not in get_args(Stage) or not isinstance(reason, str):
        raise WireError("a client failed without a reason")
    return Broke(stage, plain((reason.splitlines() or [""])[0][:1000]))


def _read_done(letter: Letter) -> Done:
    head = letter.head
    kept, message, rows = head.get("kept"), head.get("message"), head.get("rows")
    metrics = head.get("metrics")
    if not isinstance(rows, list) or not isinstance(message, str) or not isinstance(metrics, dict):
        raise WireError("a client's account is incomplete")
    if not all(_is_metric(value) for value in metrics.values()):
        raise WireError("a client's metrics are no numbers")
    entries = []
    for row in rows:
        match row:
            case [str(leaf), sent, information, paper]:
                bits = [_amount(each) for each in (sent, information, paper)]
                entries.append(Entry("up", plain(message), plain(leaf), *bits))
            case _:
                raise WireError("a row of a client's account is none")
    if abs(sum(entry.sent for entry in entries) - 8 * len(letter.body)) > 0.5:
        raise WireError(f"a client's account is not that of its {len(letter.body)} bytes")
    if kept is not None and not is_fingerprint(kept):
        raise WireError("a client's state has no fingerprint")
    account = Account(
        examples=_count(head.get("examples")),
        steps=_count(head.get("steps")),
        density=_share(head.get("density")),
        flops=_count(head.get("flops")),
        metrics={plain(name): value for name, value in metrics.items()},
        up=tuple(entries),
    )
    return Done(letter.body, None if kept is None else kept.encode(), account)


def is_fingerprint(text: object) -> bool:
    """Whether a text can be the name of a state."""
    return isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")


def plain(text: str) -> str:
    """A text of the other side as a terminal may show it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _is_metric(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < LARGEST:
        raise WireError(f"{str(value)[:80]} is no count")
    return value


def _amount(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < LARGEST:  # type: ignore[operator]
        raise WireError(f"{str(value)[:80]} is no number of bits")
    return value  # type: ignore[return-value]


def _figure(value: object) -> float | None:
    return None if value is None else _share(value)


def _share(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]
        raise WireError(f"{str(value)[:80]} is no share")
    return value  # type: ignore[return-value]
