"""The conditions of a run: what options say of devices, time and asynchrony, read and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer import fields
from gossamer.core import Key
from gossamer.devices.asynchrony import Asynchronous
from gossamer.devices.declared import timing
from gossamer.devices.durations import seconds
from gossamer.devices.fleet import Fleet
from gossamer.devices.selection import Sampling
from gossamer.engine.options import Options
from gossamer.wire import fingerprint

if TYPE_CHECKING:
    from gossamer.engine.run_record import Run

NAMES = (
    *("devices", "spread", "failures", "availability", "time_by", "deadline", "oversample"),
    *("partial", "sampling", "asynchronous"),
)
"""The options that they consist of."""


@dataclass(frozen=True)
class Conditions:
    """When replies count, and who is asked for them."""

    deadline: float = math.inf
    """Seconds of a round."""
    oversample: float = 1.0
    partial: bool = False
    sampling: Sampling = Sampling()
    asynchronous: Asynchronous | None = None
    measured: float | None = None
    """How many times longer than here training takes on the fastest class; None: by operations."""

    @classmethod
    def parse(cls, options: Options) -> Conditions:
        """Raises ValueError if an option cannot be read."""
        text = options.asynchronous
        return cls(
            seconds(options.deadline, "deadline") if options.deadline else math.inf,
            options.oversample,
            options.partial,
            Sampling.parse(options.sampling),
            Asynchronous.parse(text) if text else None,
            _factor(options.time_by),
        )

    @property
    def trivial(self) -> bool:
        """Whether every chosen client is waited for, and chosen by the method alone."""
        return self == Conditions(measured=self.measured)


def fleet_of(options: Options, key: Key, size: int) -> Fleet | None:
    """The devices that options describe; None if they describe none."""
    option = "devices" if options.devices else "network"
    if not (text := options.devices or options.network):
        return None
    return Fleet.parse(
        text,
        key,
        size,
        spread=options.spread,
        failures=options.failures,
        availability=options.availability,
        option=option,
    )


def changed(options: Options) -> dict[str, object]:
    """The options of conditions that differ from their defaults."""
    usual = Options()
    values = {name: getattr(options, name) for name in NAMES}
    return {name: value for name, value in values.items() if value != getattr(usual, name)}


def identity(options: Options) -> dict[str, object]:
    """The same, with the contents of files in place of their names."""
    given = changed(options)
    for name in ("devices", "availability"):
        text, at, period = getattr(options, name).rpartition("@")
        path = Path(text if at else period).expanduser()
        if name in given and path.is_file():
            given[name] = [fingerprint(path.read_bytes()), period if at else ""]
    return given


def check_text(options: Options) -> None:
    """Raises ValueError if an option cannot be read or lacks another, whatever is run."""
    conditions = Conditions.parse(options)
    if options.devices and options.network:
        raise ValueError("`network=` is a class of `devices=`; use one of them")
    text = options.devices or options.network
    if not text.endswith(".csv"):
        fleet_of(options, Key(0), 1)
    if conditions.measured is not None and not conditions.trivial:
        raise ValueError(
            "`time_by='measured'` depends on this machine, so it may not decide who is merged; "
            "use `time_by='flops'` with a deadline, oversampling, sampling or an asynchronous run"
        )
    if conditions.partial and math.isinf(conditions.deadline):
        raise ValueError("`partial=` is about clients that miss a deadline; add `deadline='60s'`")


def on_network(options: Options) -> tuple[Options, dict[str, float | bool]]:
    """What options mean on a real network, where devices are real and time is.

    Returns:
        Options without conditions, and those conditions that a server can keep: the deadline of a
        round in seconds, how many times more clients are asked than needed, and whether clients
        that run out of time send what they have.

    Raises:
        ValueError: A condition can only be simulated.
    """
    given = changed(options)
    for name in given:
        if name not in ("deadline", "oversample", "partial"):
            raise ValueError(f"`{name}=` is simulated; on a network devices are real, leave it out")
    conditions, usual = Conditions.parse(options), Options()
    kept = {name: getattr(conditions, name) for name in given}
    return replace(options, **{name: getattr(usual, name) for name in given}), kept


def check(run: Run) -> None:
    """Raises ValueError if a method cannot be run under the conditions."""
    fields.check(run.options)
    check_text(run.options)
    if run.fleet is None and not run.real_time and (given := changed(run.options)):
        name = next(iter(given))
        raise ValueError(f"`{name}=` needs to know the devices, e.g. `devices='phone-2024'`")
    conditions = run.conditions
    if conditions.partial:
        check_partial(run)
    chosen = not (run.fleet is None or run.fleet.always) or conditions.sampling != Sampling()
    if run.dp and (chosen or conditions.oversample > 1 or conditions.asynchronous):
        raise ValueError(
            "`dp=` counts on clients that are drawn uniformly; leave out `availability=`, "
            "`sampling=`, `oversample=` and `asynchronous=`"
        )
    if run.clients is None and (conditions.oversample > 1 or conditions.asynchronous):
        raise ValueError(f"{run.name} has no setting `clients`, so that nobody can be added to it")
    if conditions.asynchronous is not None:
        _check_asynchronous(run, conditions.asynchronous)


def check_partial(run: Run) -> None:
    """Raises ValueError if a method cannot use the work of clients that ran out of time."""
    if not timing(run.method).partial:
        raise ValueError(
            f"`partial=`: {run.name} needs whole jobs of its clients; leave it out, or use a "
            "longer deadline"
        )


def _check_asynchronous(run: Run, asked: Asynchronous) -> None:
    refused, pool = timing(run.method).refused, len(run.federation.pool)
    if refused:
        raise ValueError(f"`asynchronous=`: {run.name} {refused}")
    if run.conditions.oversample > 1:
        raise ValueError(
            "`oversample=` is about rounds; an asynchronous run has none, leave it out"
        )
    if asked.buffer + asked.concurrency > pool:
        raise ValueError(
            f"`asynchronous=`: a buffer of {asked.buffer} and {asked.concurrency} clients at once "
            f"need {asked.buffer + asked.concurrency} different clients, but the pool has {pool}"
        )


def _factor(text: str) -> float | None:
    word, colon, number = text.partition(":")
    try:
        factor = float(number) if colon else 1.0
    except ValueError:
        factor = math.nan
    if word == "flops" and not colon:
        return None
    if word != "measured" or not 0 < factor < math.inf:
        raise ValueError(f"`time_by=` is flops, measured or measured:8, not {text!r}")
    return factor
