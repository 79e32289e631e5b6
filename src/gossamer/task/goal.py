"""The goal of a task: a criterion to train by, and metrics to judge by, the headline first."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from gossamer.task import metrics
from gossamer.task.metrics import IGNORED, Metric, Numbers, aligned

if TYPE_CHECKING:
    pass

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Kind: TypeAlias = Literal["classification", "language", "multilabel", "regression"]
KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True)
class Goal:
    """What a model is trained for, and what it is judged by.

    >>> goal = Goal(functional.huber_loss, [metrics.MAE, metrics.R2], kind="regression")
    >>> goal.headline.name, goal.headline.better
    ('mae', 'lower')
    """

    criterion: Criterion
    """From the module's outputs and labels, the mean loss of a batch."""
    metrics: Sequence[Metric]
    """The first is the headline: the best round, comparisons and progress go by it."""
    kind: Kind = "classification"
    """What labels are: one class, a class per token, labels that may be true together, numbers."""
    name: str = ""
    """For people; by default the kind."""
    loss: Metric | None = None
    """The loss on test data; by default the criterion, over parts of the data."""
    centre: tuple[float, ...] = (0.0,)
    """Targets of a regression are learned as multiples of `spread` from here, one per target."""
    spread: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind of task {self.kind!r}; it is one of {', '.join(KINDS)}")
        names = tuple(each.name for each in self.metrics)
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a goal has one metric or more, by different names, not {names}")
        object.__setattr__(self, "metrics", tuple(self.metrics))
        object.__setattr__(self, "name", self.name or self.kind)

    @property
    def headline(self) -> Metric:
        """The metric that decides."""
        return self.metrics[0]

    @property
    def facts(self) -> dict[str, object]:
        """The goal in the log: its name, all metrics, and the headline with its direction."""
        first = self.headline
        return {
            "name": self.name,
            "kind": self.kind,
            "metric": first.name,
            "better": first.better,
            "bounds": list(first.bounds),
            "metrics": {each.name: each.better for each in self.metrics},
        }

    def led_by(self, name: str) -> Goal:
        """The same goal with another of its metrics as the headline.

        Raises:
            KeyError: it has no such metric.
        """
        known = [each.name for each in self.metrics]
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ";"
            raise KeyError(f"{self.name} has no metric {name!r}{hint} it has {', '.join(known)}")
        first = self.metrics[known.index(name)]
        return replace(self, metrics=(first, *(each for each in self.metrics if each is not first)))

    def scaled(self, centre: Sequence[float], spread: Sequence[float]) -> Goal:
        """The same regression, whose module learns targets of mean 0 and deviation 1.

        The criterion sees such targets; metrics see predictions in the unit of the data.
        """
        return replace(self, centre=tuple(centre), spread=tuple(spread))

    @property
    def is_scaled(self) -> bool:
        """Whether the module learns targets in another unit than that of the data."""
        return any(self.centre) or any(each != 1 for each in self.spread)

    def trained_by(self) -> Criterion:
        """The criterion on labels as the data have them."""
        if not self.is_scaled:
            return self.criterion
        return _Scaled(self.criterion, self.centre, self.spread)

    # outputs -------------------------------------------------------------------------------------

    def outputs(self, alone: Tensor) -> Tensor:
        """The outputs of one model; those of classes become log-probabilities."""
        return functional.log_softmax(alone, -1) if self._by_class else alone

    def mixed(self, members: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
        """The outputs of an ensemble: probabilities of its members are averaged, or targets."""
        total = sum(weights)
        shares = [weight / total for weight in weights]
        if self.kind == "regression":
            return _weighted(shares, members)
        if self.kind == "multilabel":
            mixed = _weighted(shares, [torch.sigmoid(each) for each in members])
            return torch.logit(mixed.double(), 1e-12).float()
        mixed = _weighted(shares, [functional.softmax(each, -1) for each in members])
        return mixed.clamp_min(1e-38).log()

    def predictions(self, outputs: Tensor) -> Tensor:
        """What metrics see: outputs, or targets in the unit of the data."""
        if not self.is_scaled:
            return outputs
        return outputs * outputs.new_tensor(self.spread) + outputs.new_tensor(self.centre)

    def losses(self, outputs: Tensor, y: Tensor) -> Numbers:
        """The loss of every example, in the form that `mean_loss` takes."""
        loss = self.loss or Metric("loss", self._whole, "lower")
        return loss.per_example(outputs, self._learned(y))

    def mean_loss(self, numbers: Numbers) -> float | None:
        """The loss of many examples."""
        return (self.loss.reduce if self.loss else metrics.mean)(numbers) if len(numbers) else None

    def share(self, outputs: Tensor, y: Tensor) -> tuple[float, float]:
        """How good a model is, from 0 to 1, and how good guessing is.

        For methods whose rules compare a model with a share: accuracy where there are classes, else
        the first metric that is at most 1, the higher the better.

        Raises:
            ValueError: there is no such metric.
        """
        able = [each for each in self.metrics if each.better == "higher" and each.bounds[1] == 1]
        able.sort(key=lambda metric: metric.name != "accuracy")
        if not able:
            raise ValueError(
                f"this method compares models by a figure that is at most 1, such as accuracy, and "
                f"{self.name} has none; add such a metric, with `bounds=(0, 1)`"
            )
        chance = 1 / outputs.shape[-1] if self._by_class else 0.0
        value = able[0].of(self.predictions(self.outputs(outputs)), y)
        return (0.0 if value is None else value), chance

    def guessing(self, classes: int) -> float | None:
        """The headline of a model that guesses; None unless it is an accuracy of classes."""
        return 1 / classes if self._by_class and self.headline.name == "accuracy" else None

    def check(self, outputs: Tensor, y: Tensor) -> None:
        """Raises ValueError if outputs and labels of a few examples do not fit the goal."""
        wanted, fits = _FORMS[self.kind]
        if not fits(outputs, y):
            raise ValueError(
                f"{self.kind} needs {wanted}; the model gives outputs of shape "
                f"{tuple(outputs.shape)} for labels of shape {tuple(y.shape)} and {y.dtype}"
            )

    @property
    def _by_class(self) -> bool:
        return self.kind in ("classification", "language")

    def _learned(self, y: Tensor) -> Tensor:
        return _in_units(y, self.centre, self.spread) if self.is_scaled else y

    def _whole(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The criterion of a part of the data, for each of its examples."""
        return self.criterion(outputs, y).expand(len(y))


@dataclass(frozen=True)
class _Scaled:
    """A criterion on targets in units of their deviation."""

    criterion: Criterion
    centre: tuple[float, ...]
    spread: tuple[float, ...]

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.criterion(outputs, _in_units(y, self.centre, self.spread))


def _in_units(y: Tensor, centre: Sequence[float], spread: Sequence[float]) -> Tensor:
    return (y - y.new_tensor(centre)) / y.new_tensor(spread)


def _weighted(shares: Sequence[float], members: Sequence[Tensor]) -> Tensor:
    mixed = sum(share * member for share, member in zip(shares, members, strict=True))
    assert isinstance(mixed, Tensor)
    return mixed


def token_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean over tokens; those labelled -100 do not count."""
    return functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), ignore_index=IGNORED)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean squared error; a single output needs no dimension of its own."""
    return functional.mse_loss(aligned(outputs, y), y)


def _squares(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.mse_loss(aligned(outputs, y), y, reduction="none")


CLASSIFICATION = Goal(
    functional.cross_entropy, [metrics.ACCURACY], "classification", loss=metrics.CLASS_LOSS
)
LANGUAGE = Goal(
    token_cross_entropy,
    [metrics.PERPLEXITY, metrics.TOKEN_ACCURACY],
    "language",
    loss=metrics.TOKEN_LOSS,
)
MULTILABEL = Goal(
    functional.binary_cross_entropy_with_logits,
    [metrics.AVERAGE_PRECISION, metrics.F1, metrics.F1_MACRO],
    "multilabel",
    loss=metrics.LABEL_LOSS,
)
REGRESSION = Goal(
    squared_error,
    [metrics.MAE, metrics.R2, metrics.RMSE],
    "regression",
    loss=Metric("loss", _squares, "lower"),
)
GOALS: Mapping[str, Goal] = {
    each.kind: each for each in (CLASSIFICATION, REGRESSION, MULTILABEL, LANGUAGE)
}

_FORMS: Mapping[str, tuple[str, Callable[[Tensor, Tensor], bool]]] = {
    "classification": (
        "outputs of shape (examples, classes) and one whole number per example",
        lambda out, y: out.ndim == 2 and y.ndim == 1 and y.dtype is torch.int64,
    ),
    "language": (
        "outputs of shape (examples, tokens, vocabulary) and a whole number per token",
        lambda out, y: out.ndim == 3 and out.shape[:2] == y.shape and y.dtype is torch.int64,
    ),
    "multilabel": (
        "outputs of shape (examples, labels) and a float of 0 or 1 for each of them",
        lambda out, y: out.shape == y.shape and out.ndim == 2 and y.is_floating_point(),
    ),
    "regression": (
        "an output per target, and targets that are floats",
        lambda out, y: aligned(out, y).shape == y.shape and y.is_floating_point(),
    ),
}


def goal_of(name: str) -> Goal:
    """A goal by its name.

    Raises:
        KeyError: there is no such goal; the message suggests the nearest name.
    """
    if name not in GOALS:
        close = difflib.get_close_matches(name, GOALS, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise KeyError(
            f"no task {name!r}{hint} it is {', '.join(GOALS)}, or a function such as my.py:goal"
        )
    return GOALS[name]
