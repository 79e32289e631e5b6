"""Messages between server and nodes: their heads, and how they are read.

A message is a head, a small JSON object, and a body: an encoded record, a server's state, or
nothing. The ledger charges the body; heads are the transport's overhead. What the other side sends
is not trusted: reading it raises `WireError` and nothing else.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from gossamer.accounting import Entry
from gossamer.engine.client import (
    Account,
    Answer,
    Completed,
    Failed,
    MissingState,
    Request,
    Stage,
)
from gossamer.engine.evaluate import Figures
from gossamer.wire import Schema, WireError
from gossamer.wire.schema import Types

LONGEST_HEAD = 2**22
"""Bytes of a head, at most."""
LARGEST = 2**62
"""Upper limit of whatever a node counts."""


@dataclass(frozen=True)
class Message:
    """What one side sends to the other."""

    head: Mapping[str, Any]
    body: bytes = b""

    @property
    def kind(self) -> str:
        """The kind of message."""
        return str(self.head.get("kind", ""))

    def packed(self) -> tuple[bytes, bytes]:
        """Head and body as they travel."""
        return json.dumps(self.head, separators=(",", ":")).encode(), self.body

    @classmethod
    def parsed(cls, head: bytes, body: bytes) -> Message:
        """Parses what `packed` returned; damage is a `WireError`."""
        if len(head) > LONGEST_HEAD:
            raise WireError(f"a message has a head of {len(head)} bytes, more than {LONGEST_HEAD}")
        try:
            parsed = json.loads(head)
        except (ValueError, RecursionError) as damage:
            raise WireError("the head of a message is not JSON") from damage
        if not isinstance(parsed, dict):
            raise WireError("the head of a message is not a JSON object")
        return cls(parsed, body)


@dataclass(frozen=True)
class NodeInfo:
    """What a node says of itself when it registers."""

    clients: Mapping[int, int]
    """The clients it hosts, and how many training examples each has."""
    agreement: str
    """A hash of everything that server and node must agree on."""


# messages of the server ---------------------------------------------------------------------------


def register(seconds: float) -> Message:
    """Asks a node to register within some seconds."""
    return Message({"kind": "register", "seconds": seconds})


def notice(text: str, over: bool, seconds: float) -> Message:
    """Tells a node something that its owner should read.

    Args:
        text: A sentence.
        over: Whether it says that the run has ended.
        seconds: How long it is of use.
    """
    return Message({"kind": "notice", "text": text, "over": over, "seconds": seconds})


def train(
    request: Request, run: str, kept: str, explain: bool, seconds: float, partial: bool = False
) -> Message:
    """Asks a client to train.

    Args:
        request: What the client is sent.
        run: The run's label.
        kept: The fingerprint of the state that the client begins with; empty: none.
        explain: Whether to send the schema along, which the node has not seen yet.
        seconds: How long the answer is of use.
        partial: Whether a client that runs out of time is to send what it has.
    """
    head: dict[str, Any] = {
        "kind": "train",
        "run": run,
        "round": request.round,
        "client": request.client,
        "kept": kept,
        "seconds": seconds,
    }
    if partial:
        head["partial"] = True
    if explain:
        head["schema"] = request.schema.plain()
    return Message(head, request.data)


def evaluate(
    run: str,
    round: int,
    budgets: Sequence[float],
    kept: Mapping[int, str],
    state: bytes,
    seconds: float,
) -> Message:
    """Asks a node to evaluate its clients' models on their own data.

    Args:
        run: The run's label.
        round: The round.
        budgets: Each budget in the pool once, ascending.
        kept: Fingerprints of the clients' states.
        state: The server's state, on which models may depend.
        seconds: How long the answer is of use.
    """
    head = {
        "kind": "evaluate",
        "run": run,
        "round": round,
        "budgets": list(budgets),
        "kept": [[client, name] for client, name in kept.items()],
        "seconds": seconds,
    }
    return Message(head, state)


def read_schema(message: Message, types: Types) -> Schema | None:
    """The schema in a message, or None."""
    if "schema" not in message.head:
        return None
    try:
        return Schema.read(message.head["schema"], types)
    except (ValueError, RecursionError) as refusal:
        raise WireError(str(refusal)) from refusal


# messages of a node -------------------------------------------------------------------------------


def registered(info: NodeInfo) -> Message:
    """Registers a node."""
    listed = [[client, examples] for client, examples in info.clients.items()]
    return Message({"kind": "registered", "clients": listed, "agreement": info.agreement})


def noticed() -> Message:
    """Confirms a notice."""
    return Message({"kind": "noticed"})


def explain() -> Message:
    """Asks for the schema of the message received."""
    return Message({"kind": "explain"})


def answered(to: Message, answer: Answer, began: str) -> Message:
    """A client's answer.

    Args:
        to: The message that is answered.
        answer: The answer.
        began: The fingerprint of the state that the client began with.
    """
    head: dict[str, Any] = {name: to.head[name] for name in ("run", "round", "client")}
    match answer:
        case Completed():
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
            return Message(head, answer.data)
        case MissingState():
            failure = answer.failure
            head |= {"what": answer.what, "stage": failure.stage, "reason": failure.reason}
            return Message({**head, "kind": "missing"})
        case Failed():
            head |= {"stage": answer.stage, "reason": answer.reason}
            return Message({**head, "kind": "failed"})


def measured(figures: Mapping[int, Figures | None]) -> Message:
    """What a node's clients measured; None for a client whose model is the global one."""
    listed = [
        [client, None if each is None else [each.test, each.valid, each.density, each.own]]
        for client, each in figures.items()
    ]
    return Message({"kind": "measured", "figures": listed})


# reading messages of a node -----------------------------------------------------------------------


def read_registered(message: Message) -> NodeInfo:
    """What a node says of itself."""
    match message.head:
        case {"kind": "registered", "clients": list(listed), "agreement": str(agreement)}:
            clients = {}
            for pair in listed:
                match pair:
                    case [client, examples] if _is_count(client) and _is_count(examples):
                        clients[client] = examples
                    case _:
                        raise WireError(f"a node cannot host {str(pair)[:80]}")
            return NodeInfo(clients, agreement)
    raise WireError("the answer is not a registration")


def read_answer(message: Message, run: str, request: Request) -> Answer:
    """A client's answer to `request`; anything else, such as an older answer, is a `WireError`."""
    head = message.head
    for name, wanted in (("run", run), ("round", request.round), ("client", request.client)):
        if head.get(name) != wanted or type(head.get(name)) is not type(wanted):
            received = str(head.get(name))[:80]
            raise WireError(f"the answer is for {name} {received}, {wanted} was asked")
    match head:
        case {"kind": "missing", "what": "mask" | "state" as what}:
            return MissingState(what, _read_failure(head))
        case {"kind": "failed"}:
            return _read_failure(head)
        case {"kind": "done"}:
            return _read_done(message)
    raise WireError("the answer is of no known kind")


def lost_state(message: Message, kept: str) -> str:
    """Why a client that trained did not begin with what it had kept; empty if it did.

    Args:
        message: The client's answer.
        kept: The fingerprint of what it had kept; empty: nothing.
    """
    began = message.head.get("began") or ""
    if message.kind != "done" or began == kept:
        return ""
    if began:
        return "the client began with a state that the server does not know of"
    return "the state is missing or damaged at the client's node"


def read_measured(
    message: Message,
    wanted: Sequence[int],
    bounds: tuple[float | None, float | None] = (0.0, 1.0),
) -> dict[int, Figures | None]:
    """The figures of the clients that were asked for; scores within the bounds of their metric."""
    figures: dict[int, Figures | None] = {}
    listed = message.head.get("figures")
    if message.kind != "measured" or not isinstance(listed, list):
        raise WireError("the answer holds no figures")
    for pair in listed:
        match pair:
            case [int(client), None] if client in wanted:
                figures[client] = None
            case [int(client), [test, valid, density, bool(own)]] if client in wanted:
                scores = (_score(test, bounds), _score(valid, bounds))
                figures[client] = Figures(*scores, _figure(density), own)
            case _:
                raise WireError(f"{str(pair)[:80]} are not figures that were asked for")
    return figures


def _read_failure(head: Mapping[str, Any]) -> Failed:
    stage: Any = head.get("stage")
    reason = head.get("reason")
    if stage not in get_args(Stage) or not isinstance(reason, str):
        raise WireError("a client failed without a reason")
    return Failed(stage, plain((reason.splitlines() or [""])[0][:1000]))


def _read_done(message: Message) -> Completed:
    head = message.head
    kept, name, rows = head.get("kept"), head.get("message"), head.get("rows")
    metrics = head.get("metrics")
    if not isinstance(rows, list) or not isinstance(name, str) or not isinstance(metrics, dict):
        raise WireError("a client's account is incomplete")
    if not all(_is_metric(value) for value in metrics.values()):
        raise WireError("a client's metrics are not numbers")
    entries = []
    for row in rows:
        match row:
            case [str(leaf), sent, information, paper]:
                bits = [_amount(each) for each in (sent, information, paper)]
                entries.append(Entry("up", plain(name), plain(leaf), *bits))
            case _:
                raise WireError("a row of a client's account is malformed")
    if abs(sum(entry.sent for entry in entries) - 8 * len(message.body)) > 0.5:
        raise WireError(f"a client's account does not match its {len(message.body)} bytes")
    if kept is not None and not is_fingerprint(kept):
        raise WireError("a client's state has no valid fingerprint")
    account = Account(
        examples=_count(head.get("examples")),
        steps=_count(head.get("steps")),
        density=_share(head.get("density")),
        flops=_count(head.get("flops")),
        metrics={plain(metric): value for metric, value in metrics.items()},
        up=tuple(entries),
    )
    return Completed(message.body, None if kept is None else kept.encode(), account)


def is_fingerprint(text: object) -> bool:
    """Whether a text is a fingerprint."""
    return isinstance(text, str) and len(text) == 32 and set(text) <= set("0123456789abcdef")


def plain(text: str) -> str:
    """A text of the other side, safe to print on a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def _is_metric(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < LARGEST)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < LARGEST


def _count(value: object) -> int:
    if type(value) is not int or not _is_count(value):
        raise WireError(f"{str(value)[:80]} is not a count")
    return value


def _amount(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value < LARGEST:  # type: ignore[operator]
        raise WireError(f"{str(value)[:80]} is not a number of bits")
    return value  # type: ignore[return-value]


def _score(value: object, bounds: tuple[float | None, float | None]) -> float | None:
    if value is None:
        return None
    low, high = (-math.inf if bounds[0] is None else bounds[0], bounds[1])
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise WireError(f"{str(value)[:80]} is not a score")
    if value < low or (high is not None and value > high):  # type: ignore[operator]
        raise WireError(f"{str(value)[:80]} is not within the bounds of the metric")
    return value  # type: ignore[return-value]


def _figure(value: object) -> float | None:
    return None if value is None else _share(value)


def _share(value: object) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:  # type: ignore[operator]
        raise WireError(f"{str(value)[:80]} is not a fraction")
    return value  # type: ignore[return-value]
