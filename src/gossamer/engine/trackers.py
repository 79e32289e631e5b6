"""Sinks that pass a run's scalars to experiment trackers; each needs its own package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gossamer.engine.events import (
    Clock,
    Evaluated,
    Event,
    Measured,
    PrivacySpent,
    RoundFinished,
    Sink,
    Started,
)


def scalars(event: Event) -> dict[str, float]:
    """The figures of an event that make a curve, by name."""
    match event:
        case RoundFinished():
            return {
                "bits/up": float(event.up),
                "bits/down": float(event.down),
                "flops": float(event.flops),
                "density": event.density,
                **{f"train/{name}": value for name, value in event.metrics.items()},
            }
        case PrivacySpent():
            spent = {"privacy/epsilon": event.epsilon, "privacy/clip": event.clip}
            return {name: value for name, value in spent.items() if value is not None}
        case Measured():
            measured = {
                # Not `density` alone: that is what clients declared, in the same round.
                "density/global": event.density,
                "mismatch": event.mismatch,
                **{f"server/{name}": value for name, value in event.metrics.items()},
                **{
                    f"layer/{layer}/{name}": value
                    for layer, figures in event.layers.items()
                    for name, value in figures.items()
                },
            }
            return {name: value for name, value in measured.items() if value is not None}
        case Evaluated():
            metric = event.metric
            figures = {
                **{f"{name}/global": value for name, value in event.global_metrics.items()},
                f"{metric}/global": event.global_score,
                "loss/global": event.global_loss,
                f"{metric}/personal_mean": event.personal_mean,
                f"{metric}/personal_worst_decile": event.personal_worst_decile,
                f"{metric}/valid_mean": event.valid_mean,
                f"{metric}/local_mean": event.local_mean,
                "density/personal": event.personal_density,
            }
            return {name: value for name, value in figures.items() if value is not None}
        case _:
            return {}


class TensorBoard:
    """Writes event files for `tensorboard --logdir RUN`.

    A resumed run may repeat rounds; curves show the repeated ones only.
    """

    def __init__(self, out: Path, name: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as missing:
            raise ImportError(_advice("tensorboard")) from missing
        self._open: Callable[..., Any] = SummaryWriter
        self._folder = str(out / "tensorboard")
        self._writer: Any = None

    def emit(self, event: Event, clock: Clock) -> None:
        for name, value in scalars(event).items():
            if self._writer is None:
                self._writer = self._open(self._folder, purge_step=_round(event))
            self._writer.add_scalar(name, value, _round(event), clock.time)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """Logs to the MLflow tracking server, or folder, that its environment names."""

    def __init__(self, out: Path, name: str) -> None:
        try:
            import mlflow
        except ImportError as missing:
            raise ImportError(_advice("mlflow")) from missing
        self._mlflow = mlflow
        self._run = mlflow.start_run(run_name=name)

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, Started):
            self._mlflow.log_params(_settings(event))
        if figures := scalars(event):
            self._mlflow.log_metrics(figures, step=_round(event))

    def close(self) -> None:
        self._mlflow.end_run()


class WandB:
    """Logs to Weights & Biases, online or offline as its environment says."""

    def __init__(self, out: Path, name: str) -> None:
        try:
            import wandb
        except ImportError as missing:
            raise ImportError(_advice("wandb")) from missing
        self._run = wandb.init(name=name, dir=str(out), project="gossamer")

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, Started):
            self._run.config.update(_settings(event))
        if figures := scalars(event):
            self._run.log({**figures, "round": _round(event)})

    def close(self) -> None:
        self._run.finish()


class Guarded:
    """A tracker that cannot harm the run: one that fails is dropped with a warning."""

    def __init__(self, inner: Sink, name: str, tell: Callable[[str], None]) -> None:
        self._inner: Sink | None = inner
        self._name = name
        self._tell = tell

    def emit(self, event: Event, clock: Clock) -> None:
        self._try(lambda sink: sink.emit(event, clock))

    def close(self) -> None:
        self._try(lambda sink: sink.close())

    def _try(self, act: Callable[[Sink], None]) -> None:
        if self._inner is None:
            return
        try:
            act(self._inner)
        except Exception as problem:  # whatever a tracker raises, training goes on
            self._inner = None
            self._tell(f"{self._name} failed and is left out from here on: {_first(problem)}")


def tracker(name: str, out: Path, run: str, tell: Callable[[str], None]) -> Sink:
    """A tracker by name; one that cannot start is a ValueError."""
    try:
        return Guarded(TRACKERS[name](out, run), name, tell)
    except ImportError:
        raise
    except Exception as problem:  # trackers have errors of their own
        raise ValueError(f"--track {name} cannot start: {_first(problem)}") from problem


TRACKERS: Mapping[str, Callable[[Path, str], Sink]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def _round(event: Event) -> int:
    return getattr(event, "round", 0)


def _settings(event: Started) -> dict[str, Any]:
    return {**event.settings, "method": event.method, "rounds": event.rounds, "seed": event.seed}


def _first(problem: Exception) -> str:
    return (str(problem) or type(problem).__name__).splitlines()[0]


def _advice(name: str) -> str:
    return f"--track {name} needs the package {name}; install gossamer[track] or {name} alone"
