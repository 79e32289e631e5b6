"""A variants class defines what differs from the paper; the rest is the method that it holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from gossamer.core import AnyMethod

FUNCTIONS = ("init", "cohort", "down", "merge", "begin", "step", "finish", "model")
OPTIONAL = ("replies", "resend", "holds", "measures")
T = TypeVar("T")


def variants_of(method: type[AnyMethod]) -> Callable[[type[T]], type[T]]:
    """Completes a class whose field or property `pure` is such a method.

    Every function of a method that the class does not define is that of `self.pure`, and so are the
    accounting, the note on a merge that is no mean, and whether there is a global model. Where a
    class of variants of FedAvg defines no `down`, it has

        def down(self, ctx, state, client):
            return self.pure.down(ctx, state, client)
    """

    def complete(kind: type[T]) -> type[T]:
        for name in (*FUNCTIONS, *OPTIONAL):
            if hasattr(method, name) and name not in vars(kind):
                setattr(kind, name, _forwarded(getattr(method, name)))
        if hasattr(method, "accounting") and "accounting" not in vars(kind):
            kind.accounting = property(lambda self: self.pure.accounting)  # type: ignore[attr-defined]
        for name in ("own_merge", "global_model"):
            if hasattr(method, name):
                setattr(kind, name, getattr(method, name))
        return kind

    return complete


def _forwarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of `self.pure`, with its signature: records are derived from type hints."""

    @wraps(function)
    def forwarded(self: Any, *arguments: Any) -> Any:
        return getattr(self.pure, function.__name__)(*arguments)

    return forwarded
