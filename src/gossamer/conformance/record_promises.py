"""Promises about records: they can be encoded, read back, and foreseen."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

from gossamer.conformance.bench import Bench, Broken
from gossamer.core import Masks, Measures, Result
from gossamer.engine.expected import Expected
from gossamer.task import Task, first_weights
from gossamer.wire import (
    Schema,
    decode,
    difference,
    dump,
    encode,
    held,
    load,
    record_types,
)


def encodable(bench: Bench) -> None:
    """Records that travel or are kept are equal after encoding and decoding."""
    for round in bench.history(travels):
        for result in round.results:
            declared(bench.task, result)


def travels(name: str, record: object) -> None:
    try:
        schema = Schema.of(record)
    except TypeError as refusal:
        text = str(refusal).removeprefix("record")
        raise Broken(f"{name} cannot be encoded: {name}{text}") from refusal
    again = decode(encode(record, schema), schema, held=held(record))
    if Schema.of(again) != schema or dump(again) != dump(record):
        raise Broken(f"{name} changes when it is encoded and decoded")


def declared(task: Task, result: Result[Any, Any]) -> None:
    """Masks fit the layout and metrics fit the event log."""
    fit(task, result.masks, "finish declares")
    try:
        json.dumps(dict(result.metrics))
    except TypeError as refusal:
        raise Broken(f"finish has a metric that is not a number: {refusal}") from refusal


def constants(bench: Bench) -> None:
    """Frozen parameters are in no record, and are not changed."""
    frozen = bench.task.constants

    def absent(name: str, record: object) -> None:
        named = json.dumps(Schema.of(record).plain())
        if found := [each for each in frozen if json.dumps(each) in named]:
            raise Broken(f"{name} holds {found[0]!r}, which is frozen and known to all")

    for _ in bench.history(absent if frozen else lambda name, record: None):
        pass
    if frozen and first_weights.fingerprint(frozen) != bench.task.fingerprints["constants"]:
        raise Broken("a frozen parameter was changed; ctx.task.constants must not be")


def fit(task: Task, masks: Masks, who: str) -> None:
    for leaf, mask in masks.items():
        known = task.layout.leaves.get(leaf)
        if known is None or mask.dtype != torch.bool or tuple(mask.shape) != known.shape:
            raise Broken(f"{who} a mask {leaf!r} that is no bool tensor of its shape")


def measures(bench: Bench) -> None:
    """Measures fit the layout and the event log; a method need not have any."""
    measures = getattr(bench.method, "measures", None)
    if measures is None:
        return
    shown(bench.task, measures(bench.server(0), bench.init()))
    for round in bench.history():
        shown(bench.task, measures(bench.server(round.number), round.merged))


def shown(task: Task, shown: object) -> None:
    if not isinstance(shown, Measures):
        raise Broken(f"measures returns a {type(shown).__name__}, not gossamer.core.Measures")
    fit(task, shown.masks, "measures shows")
    for name, value in shown.metrics.items():
        if not isinstance(value, float | int) or not math.isfinite(value):
            raise Broken(f"measures shows a metric {name!r} that is no finite number: {value!r}")


def named(bench: Bench) -> None:
    """The type of every record is named in a signature, so that it can be read back."""
    types = record_types(bench.method)

    def read_back(name: str, record: object) -> None:
        try:
            load(dump(record), types)
        except ValueError as refusal:
            raise Broken(
                f"{name} cannot be read back from disk: {refusal}; "
                "annotate init, down, begin and finish with the records they take and return"
            ) from refusal

    for _ in bench.history(read_back):
        pass


def foreseen(bench: Bench) -> None:
    """Every reply has a schema that the server can derive from its request."""
    expected = Expected(bench.method)
    for round in bench.history():
        for exchange in round.exchanges:
            schemas = expected(bench.server(round.number), exchange.down)
            if reason := difference(Schema.of(exchange.up), schemas):
                raise Broken(
                    f"the reply of client {exchange.client.id} in round {round.number} would be "
                    f"refused: {reason}; let its schema depend on Down alone, or let "
                    "replies(self, ctx, down) return an example of each kind of reply"
                )
