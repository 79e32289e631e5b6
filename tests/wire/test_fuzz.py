"""Random and damaged messages give a refusal or a record, never anything else.

The default is a few thousand; slow tests try 200,000, and `GOSSAMER_FUZZ` as many as it says.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
import torch
from hostile import (
    HELD,
    NEW,
    OLD,
    SHAPES,
    WITHOUT,
    drawn,
    inside,
    masks_of,
    message,
    outcome,
    small,
    values_of,
    zeros,
)
from mask_cases import FUZZ, damaged
from record_cases import MODES

from gossamer.wire import HEADER, Levels, Revision, Schema, encode, pack
from gossamer.wire.masks import rice

BODY = HEADER + 1 + 8 + 1
"""Where changes of masks begin: behind their kind, the name of the base, and their length."""


def subjects() -> list[list[Any]]:
    """Records by schema: several of each, so that they can be spliced."""
    params = [values_of(SHAPES, seed) for seed in range(3)]
    return [
        [small(seed) for seed in range(3)],
        [*params, zeros(params[0])],
        [pack(params[0], masks_of(SHAPES, density)) for density in (0.0, 0.3, 1.0)],
        [masks_of(SHAPES, density) for density in (0.0, 0.01, 0.1, 0.5, 0.9)],
        [Revision(NEW, OLD), Revision(WITHOUT, OLD), Revision(NEW), Revision(OLD, OLD)],
        [drawn(density, seed) for seed, density in enumerate((0.0, 0.1, 1.0))],
        [
            ("text", 3, 0.5, True, None, torch.arange(9)),
            ("", -1, 1e9, False, None, torch.ones(9).long()),
        ],
        [levels_of(params) for params in params],
        [{"a": (params[0]["w1"].half(), params[0]["w1"].bfloat16(), params[0]["w1"].double())}],
    ]


def levels_of(params: dict[str, torch.Tensor]) -> Levels:
    """The values as levels from -4 to 4."""
    return Levels({n: (10 * t).round().clamp(-4, 4).char() for n, t in params.items()}, -4, 4)


def test_changes_are_told_both_by_gaps_and_as_few() -> None:
    """So that what follows tries both."""
    told = [encode(Revision(masks, OLD))[BODY] & 3 for masks in (NEW, WITHOUT)]
    assert told == [rice.FEW, rice.GIVEN]


@pytest.mark.parametrize("count", [FUZZ, pytest.param(200_000, marks=pytest.mark.slow)])
def test_any_bytes_give_a_refusal_or_a_record_of_the_schema(count: int) -> None:
    groups = [(records, mode) for records in subjects() for mode in MODES]
    each = -(-count // len(groups))
    tried = accepted = 0
    slowest = 0.0
    for index, (records, mode) in enumerate(groups):
        schema = Schema.of(records[0])
        reference = records[-1] if mode.half and index % 2 else None
        messages = [encode(record, schema, mode, reference) for record in records]
        for turn in (
            damaged(messages, each // 4, index),
            inside(messages, each - each // 4, index),
        ):
            for data in turn:
                started = time.perf_counter()
                accepted += outcome(data, schema, mode, HELD, reference)
                slowest = max(slowest, time.perf_counter() - started)
                tried += 1
    if "GOSSAMER_FUZZ" in os.environ:
        print(f"{tried} messages, {accepted} accepted, slowest {slowest * 1000:.1f} ms")  # noqa: T201
    assert tried >= count and 0 < accepted < 0.6 * tried
    assert slowest < 5


def test_random_bytes_behind_a_true_header_are_refused_or_read() -> None:
    draw = np.random.default_rng(0)
    for mode in MODES:
        for records in subjects():
            schema = Schema.of(records[0])
            for _ in range(max(1, FUZZ // 400)):
                data = message(schema, draw.bytes(int(draw.integers(0, 400))), mode)
                outcome(data, schema, mode)
