"""A run's configuration: everything needed to repeat it, as fields and as TOML."""

from __future__ import annotations

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from gossamer import data, fields, models
from gossamer.accounting import Network
from gossamer.core import AnyMethod, Key
from gossamer.data.budgets import are_shares
from gossamer.data.federation import Federation
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.fields import option
from gossamer.methods import METHODS
from gossamer.task import Precision, Task
from gossamer.wire import Mode


@dataclass(frozen=True)
class Experiment:
    """On what a method is run: data, model, and how long."""

    data: str = option("fmnist-mini", "data set: a name of `gossamer ls`, or npz:, csv:, folder:")
    partition: str = option("", "how data is divided, e.g. dirichlet:0.2; empty: as suits the set")
    pool: int = option(0, "clients in all; 0 means as many as suit the data set", least=0)
    least: int = option(-1, "fewest training examples of a client; -1 means as suits", least=-1)
    valid: float = option(0.0, "part of each client's training data kept for validation", least=0)
    scale: Literal["normalised", "unit", "raw"] = option("normalised", "how inputs are scaled")
    augment: bool = option(False, "crop and mirror training images")
    data_seed: int = option(-1, "seed of the partition and budgets; -1: that of the run", least=-1)
    budgets: str = option("", "densities that clients afford: 0.2:40%,0.1:60%, or a CSV file")
    model: str = option("", "model: a name of `gossamer ls`, or my.py:build; empty: as suits")
    prunable: str = option(
        "", "which tensors may be pruned: names, patterns, conv-only, skip-first-last"
    )
    rounds: int = option(100, "rounds of communication", least=1)
    seed: int = option(0, "seed of everything random", least=0)
    wire: str = option("f32", "how numbers travel: f32 or f16, with +zstd or +ans behind it")
    precision: Precision = option("f32", "arithmetic of local training and evaluation")
    device: str = option("cpu", "where to compute: cpu, or cuda where there is one")

    @property
    def division_seed(self) -> int:
        """Of the partition and the budgets: the seed of the run unless they have their own."""
        return self.seed if self.data_seed < 0 else self.data_seed


@dataclass(frozen=True)
class Config:
    """A whole run: the method with its settings, the experiment, and how to execute it."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experiment: Experiment = Experiment()
    options: Options = Options()

    def build(self) -> tuple[AnyMethod, Task, Federation]:
        """The method, task and federation; anything wrong is said before any work."""
        self.check()
        method = self.build_method()
        federation = self.build_federation()
        enough(method, len(federation.pool))
        return method, self.build_task(federation), federation

    def build_run(self, out: Path | None = None) -> Run:
        """The run that the configuration describes, in a folder."""
        wish = self.experiment
        return Run(
            *self.build(),
            rounds=wish.rounds,
            key=Key(wish.seed),
            options=self.options,
            wire=Mode.parse(wish.wire),
            name=self.method.rpartition(":")[2],
            out=out,
        )

    def check(self) -> None:
        """Raises what is wrong with experiment and options, whatever the data are."""
        fields.check(self.experiment)
        fields.check(self.options)
        Mode.parse(self.experiment.wire)
        if self.options.network:
            Network.parse(self.options.network)

    def build_method(self) -> AnyMethod:
        """The method with its settings, checked."""
        method = fields.replace(find_method(self.method), dict(self.settings))
        fields.check(method)
        return method

    def build_federation(self) -> data.Tensors | data.Synthetic:
        """The data, divided among clients."""
        wish = self.experiment
        return data.federation(
            wish.data,
            wish.partition or None,
            wish.pool or None,
            seed=wish.division_seed,
            least=None if wish.least < 0 else wish.least,
            valid=wish.valid,
            inputs=data.Inputs(wish.scale, wish.augment),
            budgets=wish.budgets or None,
        )

    def build_task(self, federation: data.Tensors | data.Synthetic) -> Task:
        """The module for the data, traced on a few real examples."""
        wish = self.experiment
        if wish.device != "cpu" and not torch.cuda.is_available():
            raise ValueError(f"--device {wish.device} was asked for, but torch sees none; use cpu")
        example = federation.client(federation.pool[0].id).train.x[:2]
        shape = tuple(example.shape[1:])
        name = wish.model or models.default(shape, example.dtype)
        facts = federation.describe()
        known = {"vocabulary": facts["vocabulary"]} if "vocabulary" in facts else {}
        head = name.partition(":")[0]
        takes = models.options(head) if head in models.MODELS else {}
        extra = {key: value for key, value in known.items() if key in takes}
        module = models.build(name, shape, federation.classes, **extra)
        patterns = [part.strip() for part in wish.prunable.split(",") if part.strip()]
        return Task.of(
            module,
            example,
            prunable=patterns or None,
            precision=wish.precision,
            device=wish.device,
        )

    def toml(self, command: str = "") -> str:
        """The configuration as TOML that `gossamer run` accepts."""
        head = f"# {command}\n" if command else ""
        parts = [
            ("", {"method": absolute(self.method)}),
            ("experiment", _plain(self.experiment)),
            ("settings", _plain(self.build_method())),
            ("options", _plain(self.options)),
        ]
        return head + "\n".join(_table(name, values) for name, values in parts)


def enough(method: AnyMethod, pool: int) -> None:
    """An error if a method asks for more clients a round than there are."""
    clients = getattr(method, "clients", None)
    if isinstance(clients, int) and clients > pool:
        raise ValueError(
            f"{clients} clients per round asked for, but the pool has {pool}; "
            f"use --clients {pool} or fewer, or a larger --pool"
        )


def read(path: Path) -> Config:
    """The configuration in a TOML file; every unknown name is refused with the nearest one."""
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as damage:
        raise ValueError(f"{path} is not valid TOML: {damage}") from None
    if not isinstance(plain.get("method"), str):
        raise ValueError(f'{path} names no method; its first line should be e.g. method = "fedavg"')
    known = {"method", "experiment", "settings", "options"}
    for name in plain:
        _known(name, known, f"table in {path}")
        if name != "method" and not isinstance(plain[name], dict):
            raise ValueError(f"{name} in {path} is a table; write [{name}] and its entries below")
    method = find_method(plain["method"])
    names = {item.name: item for item in fields.settings(method)}
    settings = plain.get("settings", {})
    for name, value in settings.items():
        _known(name, names, f"setting of {plain['method']}")
        settings[name] = fields.convert(names[name], value)
    return Config(
        plain["method"],
        settings,
        _filled(Experiment(), plain.get("experiment", {}), "experiment"),
        _filled(Options(), plain.get("options", {}), "options"),
    )


def find_method(name: str) -> AnyMethod:
    """A method by its name, or `my.py:Mine`; an unknown name is answered with the nearest."""
    if name in METHODS:
        return METHODS[name]
    place, colon, member = name.rpartition(":")
    if not colon:
        raise KeyError(f"no method {name!r}{nearest(name, METHODS)} `gossamer ls` lists them all")
    found = models.load(f"{place}:{member}")
    method = found() if isinstance(found, type) else found
    if not dataclasses.is_dataclass(method) or not hasattr(method, "merge"):
        raise ValueError(
            f"{name} is no method; a method is a frozen dataclass with eight functions"
        )
    return method  # type: ignore[return-value]


def absolute(method: str) -> str:
    """A method's name that means the same in every folder."""
    place, colon, member = method.rpartition(":")
    return f"{Path(place).resolve()}:{member}" if colon and place.endswith(".py") else method


def anywhere(wish: Experiment) -> Experiment:
    """An experiment whose files are named so that every folder finds them."""
    form, colon, path = wish.data.partition(":")
    place, own, rest = wish.model.partition(":")
    if colon and path and form in data.FORMATS:
        wish = dataclasses.replace(wish, data=f"{form}:{Path(path).expanduser().resolve()}")
    if own and place.endswith(".py"):
        wish = dataclasses.replace(wish, model=f"{Path(place).expanduser().resolve()}:{rest}")
    if wish.budgets and not are_shares(wish.budgets):
        wish = dataclasses.replace(wish, budgets=str(Path(wish.budgets).expanduser().resolve()))
    return wish


def nearest(name: str, known: Any) -> str:
    """`; did you mean 'this'?`, or a semicolon where nothing is near."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]!r}?" if close else ";"


def _known(name: str, known: Any, what: str) -> None:
    if name not in known:
        raise KeyError(
            f"no {what} is called {name!r}{nearest(name, known)} known: {', '.join(known)}"
        )


def _filled(record: Any, values: Mapping[str, Any], table: str) -> Any:
    names = {item.name: item for item in fields.settings(record)}
    for name in values:
        _known(name, names, f"entry of [{table}]")
    return fields.replace(
        record, {name: fields.convert(names[name], value) for name, value in values.items()}
    )


def _plain(record: Any) -> dict[str, Any]:
    return {item.name: item.default for item in fields.settings(record)}


def _table(name: str, values: Mapping[str, Any]) -> str:
    lines = [f"[{name}]"] if name else []
    # TOML has no null: what is None is left out, and read as the default again.
    known = {key: value for key, value in values.items() if value is not None}
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in known.items()]
    return "\n".join(lines) + "\n"
