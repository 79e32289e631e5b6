"""What the server expects back: the forms that a reply may have, known before one is opened.

A message does not describe itself, so its receiver must know its schema. The server finds the forms
of replies by a dry conversation with a client that holds nothing: the method's own `begin` and
`finish`, no step between them, on blank data. A method whose replies take several forms, or that
cannot begin without what a client keeps, says so itself:

    def replies(self, ctx: Ctx, down: Down) -> Sequence[Up]:
        ...  # one example of each form, whatever its values
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gossamer.core import Ctx, Data, Examples
from gossamer.engine.client import AnyMethod
from gossamer.wire import Drawn, Packed, Revision, Schema, flatten

EXAMPLES = 2
"""Of the blank client: as few as batch normalisation takes."""
NOBODY = -1
"""The id in the randomness of the blank client."""
KEPT = 256
"""Kinds of messages whose replies are remembered."""


class Expected:
    """The schemas of replies, by what they answer; derived once a round for messages of a kind."""

    def __init__(self, method: AnyMethod) -> None:
        self._method = method
        self._known: dict[Hashable, tuple[Schema, ...]] = {}

    def __call__(self, ctx: Ctx, down: Any) -> tuple[Schema, ...]:
        """Every form that an answer to `down` may have in this round."""
        kind = (ctx.round, *_traits(down))
        if kind not in self._known:
            while len(self._known) >= KEPT:
                del self._known[next(iter(self._known))]
            self._known[kind] = self._derive(ctx, down)
        return self._known[kind]

    def _derive(self, ctx: Ctx, down: Any) -> tuple[Schema, ...]:
        blank = replace(ctx, key=ctx.key.fold("client", NOBODY), data=_nothing(ctx))
        said = getattr(self._method, "replies", None)
        try:
            if said is not None:
                replies = said(blank, down)
            else:
                # A client does not know the pool's budgets, and this one stands for any client.
                blank = replace(blank, budgets=(1.0,))
                job = self._method.begin(blank, down, None)
                replies = [self._method.finish(blank, job.work).up]
            found = tuple(dict.fromkeys(Schema.of(up) for up in replies))
            if not found:
                raise ValueError("there is none")
            return found
        except Exception as problem:
            method, sent = type(self._method).__name__, type(down).__name__
            cause = f"{type(problem).__name__}: {problem}".splitlines()[0]
            tried = "its replies" if said else "begin and finish for a client that holds nothing"
            raise RuntimeError(
                f"the server cannot tell how {method} answers a {sent}: {tried} raised {cause}; "
                "let replies(self, ctx, down) return an example of each form of answer"
            ) from problem


def _nothing(ctx: Ctx) -> Data:
    """Data of the model's shape that say nothing."""
    x = ctx.task.layout.input.blank(EXAMPLES)
    blank = Examples(x, torch.zeros(EXAMPLES, dtype=torch.int64))
    return Data(blank, blank, blank)


def _traits(record: Any) -> Iterator[Hashable]:
    """What the form of an answer may depend on: shapes, numbers, and how many weights are kept."""
    yield Schema.of(record)
    for leaf in flatten(record):
        match leaf:
            case bool() | int() | float() | str():
                yield leaf
            case Packed():
                yield tuple(values.numel() for values in leaf.values.values())
            case Drawn():
                yield tuple(leaf.kept.values())
            case Revision():
                yield tuple(int(mask.sum()) for mask in leaf.masks.values())
            case dict():
                yield tuple(int(mask.sum()) for mask in leaf.values())
            case Tensor() if leaf.dtype == torch.bool:
                yield int(leaf.sum())
            case _:
                pass
