"""The configuration of a run: everything needed to repeat it, as fields and as TOML."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from gossamer import data, fields, goals, models
from gossamer.arithmetic.choice import Arithmetic
from gossamer.compression import compress, directions
from gossamer.config_paths import absolute as absolute
from gossamer.config_paths import absolute_options as absolute_options
from gossamer.config_paths import absolute_paths as absolute_paths
from gossamer.config_paths import beside
from gossamer.core import AnyMethod, Examples, Key
from gossamer.data.budgeted import BY_MEMORY, Budgeted
from gossamer.data.code import divided_already
from gossamer.data.federation import Federation
from gossamer.data.inputs import Layout
from gossamer.engine import conditions
from gossamer.engine.options import Options
from gossamer.engine.run_record import Run
from gossamer.fields import option
from gossamer.method_names import find_method as find_method
from gossamer.method_names import nearest as nearest
from gossamer.method_names import variants_with as variants_with
from gossamer.references import gone, is_code, only_in_python
from gossamer.task import Precision, Task
from gossamer.task.first_weights import seeded_globally
from gossamer.trust.spec import Spec
from gossamer.wire import Mode

PAPERS = Path(__file__).parent / "papers"
"""The papers' tables and the configurations of their runs."""


@dataclass(frozen=True)
class Experiment:
    """What a method is run on: data, model, and number of rounds."""

    data: str = option(
        "fmnist-mini", "data set: a name of `gossamer ls`, npz:, csv:, folder:, hf:, or my.py:make"
    )
    partition: str = option(
        "", "how data is divided, e.g. dirichlet:0.2; empty: the data set's default"
    )
    pool: int = option(0, "number of clients; 0: the data set's default", least=0)
    least: int = option(
        -1, "minimum training examples of a client; -1: the data set's default", least=-1
    )
    valid: float = option(0.0, "share of training data that clients hold out to validate", least=0)
    label: str = option("", "label columns of csv: and hf: a name, a number from 1, or several")
    task: str = option(
        "",
        "what is learned: classification, regression, multilabel, language, or my.py:goal; "
        "empty: the data set's default",
    )
    metric: str = option("", "headline metric; empty: the first one of the task")
    size: str = option("", "size of pictures in folder: 32, or WIDTHxHEIGHT")
    layout: Layout = option(
        "auto", "channels of images in npz: last (nhwc) or first (nchw); auto: by their shape"
    )
    scale: Literal["normalised", "unit", "raw"] = option("normalised", "how inputs are scaled")
    augment: bool = option(False, "augment training images by random crops and flips")
    data_seed: int = option(-1, "seed of the partition and budgets; -1: that of the run", least=-1)
    budgets: str = option(
        "", "density budgets of clients: 0.2:40%,0.1:60%, a CSV file, or by-memory of devices"
    )
    model: str = option(
        "", "model: a name of `gossamer ls`, or my.py:build; empty: the data set's default"
    )
    start: str = option(
        "",
        "first weights: seed, module, a .safetensors file or a run's folder; "
        "empty: seed, or module for my.py:build",
    )
    prunable: str = option(
        "", "which tensors may be pruned: names, patterns, conv-only, with-attention ..."
    )
    rounds: int = option(100, "communication rounds", least=1)
    seed: int = option(0, "seed of all randomness", least=0)
    wire: str = option("f32", "number format of messages: f32 or f16, optionally +zstd or +ans")
    precision: Precision = option("f32", "precision of local training and evaluation")
    arithmetic: Arithmetic = option(
        "auto", "torch, or own kernels for sparse and small models; auto: by a fixed rule"
    )
    dp: str = option(
        "", "differential privacy: clip=1.0,noise=0.8,delta=1e-5, or local:clip=1.0,noise=4"
    )
    compress: str = option(
        "", "compress replies: topk:0.01+ef, qsgd:16, ...; or up=COMPRESSOR,down=COMPRESSOR"
    )
    device: str = option("cpu", "device to compute on: cpu, or cuda if available")

    @property
    def division_seed(self) -> int:
        """The seed of the partition and the budgets: `data_seed`, or the seed of the run."""
        return self.seed if self.data_seed < 0 else self.data_seed


@dataclass(frozen=True)
class Config:
    """A complete run: the method with its settings, the experiment, and execution options."""

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    experiment: Experiment = Experiment()
    options: Options = Options()
    name: str = ""
    """Of the method in the log, if it is not that of `method`."""

    def build(self) -> tuple[AnyMethod, Task, Federation]:
        """The method, task and federation, checked before any training.

        Raises:
            ValueError: a setting is out of bounds, or the data cannot be divided as asked.
            KeyError: a name is unknown.
        """
        self.check()
        method = self.build_method()
        federation = self.build_federation()
        enough(method, len(federation.pool))
        task = self.build_task(federation)
        return method, task, self.budgeted(federation, task)

    def build_run(self, out: Path | None = None) -> Run:
        """The run that the configuration describes, in a folder."""
        experiment = self.experiment
        return Run(
            *self.build(),
            rounds=experiment.rounds,
            key=Key(experiment.seed),
            options=self.options,
            wire=Mode.parse(experiment.wire),
            name=self.name or self.method.rpartition(":")[2],
            out=out,
            dp=experiment.dp,
        )

    def check(self) -> None:
        """Raises ValueError if the experiment or the options are unusable, whatever the data."""
        fields.check(self.experiment)
        fields.check(self.options)
        Mode.parse(self.experiment.wire).check()
        conditions.check_text(self.options)
        if self.experiment.dp:
            Spec.parse(self.experiment.dp)

    def build_method(self) -> AnyMethod:
        """The method with its settings, checked, and compressed if that is asked for."""
        method = self.plain_method()
        if not self.experiment.compress:
            return method
        up, down = directions(self.experiment.compress)
        return compress(method, up=up, down=down)

    def plain_method(self) -> AnyMethod:
        """The method with its settings, checked."""
        method = fields.replace(find_method(self.method), dict(self.settings))
        fields.check(method)
        return method

    def build_federation(self) -> Federation:
        """The data, divided among clients."""
        experiment = self.experiment
        what: str | data.Arrays = experiment.data
        if only_in_python(experiment.data):
            raise gone("data", experiment.data, "federation")
        if is_code(experiment.data):
            made = models.load(experiment.data)()
            if not isinstance(made, data.Arrays):
                return divided_already(made, experiment.data, experiment, Experiment())
            what = made
        return data.federation(
            what,
            experiment.partition or None,
            experiment.pool or None,
            seed=experiment.division_seed,
            least=None if experiment.least < 0 else experiment.least,
            valid=experiment.valid,
            inputs=data.Inputs(
                experiment.scale,
                experiment.augment,
                experiment.label,
                experiment.size,
                experiment.layout,
                goals.kind_of(experiment.task),
            ),
            budgets=None if experiment.budgets in ("", BY_MEMORY) else experiment.budgets,
        )

    def budgeted(self, federation: Federation, task: Task) -> Federation:
        """The federation, with budgets that follow the devices if that is asked for.

        Raises:
            ValueError: It is, but nobody says what devices there are.
        """
        if self.experiment.budgets != BY_MEMORY:
            return federation
        fleet = conditions.fleet_of(self.options, Key(self.experiment.seed), len(federation.pool))
        if fleet is None:
            raise ValueError("`budgets='by-memory'` needs devices, e.g. `devices='phone-2024'`")
        prunable = task.layout.total("count", task.layout.prunable)
        return Budgeted(federation, fleet.budgets(prunable, task.layout.count - prunable))

    def build_task(self, federation: Federation) -> Task:
        """The model for the data, traced on two real examples."""
        experiment = self.experiment
        if only_in_python(experiment.model):
            raise gone("model", experiment.model, "task")
        if experiment.device != "cpu" and not torch.cuda.is_available():
            raise ValueError(
                f"`device={experiment.device!r}` was asked for, but torch finds none; use cpu"
            )
        examples = federation.client(federation.pool[0].id).train
        example = examples.x[:2]
        shape = tuple(example.shape[1:])
        facts = federation.describe()
        goal = goals.for_data(experiment.task, experiment.metric, facts)
        kind = (shape, example.dtype, federation.classes)
        with seeded_globally(Key(experiment.seed).fold("model")):  # frozen parameters stay so
            module = goals.model(experiment.model, *kind, goal, facts)
        patterns = [part.strip() for part in experiment.prunable.split(",") if part.strip()]
        task = Task.of(
            module,
            example,
            prunable=patterns or None,
            precision=experiment.precision,
            device=experiment.device,
            arithmetic=experiment.arithmetic,
            start=start_of(experiment.start, experiment.model),
            goal=goal,
        )
        goals.check(task, Examples(example, examples.y[:2]))
        return task

    def toml(self, command: str = "") -> str:
        """The configuration as TOML that `gossamer run` accepts."""
        return toml(self, self.plain_method(), command)


def start_of(start: str, model: str) -> str:
    """Where first weights come from: a function may load some, and those are kept."""
    named = not model or model.partition(":")[0] in models.MODELS
    return start or ("seed" if named else "module")


def toml(config: Config, method: AnyMethod, command: str = "") -> str:
    """A configuration as TOML, with the settings of a method that need not be built from it."""
    head = "".join(f"# {line}\n" for line in command.splitlines())
    parts = [
        ("", {"method": absolute(config.method), **({"name": config.name} if config.name else {})}),
        ("experiment", _plain(config.experiment)),
        ("settings", _plain(method)),
        ("options", _plain(config.options)),
    ]
    return head + "\n".join(_table(name, values) for name, values in parts)


def enough(method: AnyMethod, pool: int) -> None:
    """Raises ValueError if a method asks for more clients per round than the pool has."""
    clients = fields.value(method, "clients")
    if isinstance(clients, int) and clients > pool:
        raise ValueError(
            f"{clients} clients per round asked for, but the pool has {pool}; "
            f"use `clients={pool}` or fewer, or a larger `pool=`"
        )


def locate(name: str | Path) -> Path:
    """The configuration file or table that a name such as papers/spafl/fmnist.toml stands for.

    The working folder comes first; a name below papers/ that is not there is looked for in the
    package, so that the papers' files have the same names everywhere.

    Raises:
        FileNotFoundError: there is no such file in either place.
    """
    path = Path(name)
    if path.exists():
        return path
    packaged = PAPERS.parent / path
    if path.parts[:1] == (PAPERS.name,) and packaged.is_file():
        return packaged
    known = (file.relative_to(PAPERS.parent).as_posix() for file in PAPERS.rglob("*.toml"))
    hint = nearest(path.as_posix(), known).rstrip(";")
    raise FileNotFoundError(f"there is no configuration file {path}{hint}")


def read(path: Path, shipped: bool = False) -> Config:
    """Reads a configuration from a TOML file.

    Args:
        path: The file.
        shipped: Whether the Python files that it names came with it, and lie beside it.

    Raises:
        ValueError: the file is not TOML, or a value has the wrong type.
        KeyError: a name is unknown; the message suggests the nearest known one.
    """
    plain = tables(path)
    beside(path.resolve().parent, plain, shipped)
    method = find_method(plain["method"])
    names = {item.name: item for item in fields.settings(method)}
    settings = plain.get("settings", {})
    for name, value in settings.items():
        if name not in names and (entry := variants_with(plain["method"], name)):
            raise KeyError(f"{name} is a setting of {entry}; write method = {entry!r} in {path}")
        _known(name, names, f"setting of {plain['method']}")
        settings[name] = fields.convert(names[name], value)
    return replace(common(plain), settings=settings)


def tables(path: Path) -> dict[str, Any]:
    """The tables of a configuration file, unread.

    Raises:
        ValueError: the file is not TOML, or has no such tables.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as damage:
        raise ValueError(f"{path} is not valid TOML: {damage}") from None
    if not isinstance(plain.get("method"), str):
        raise ValueError(f'{path} names no method; add a first line such as method = "fedavg"')
    known = {"method", "name", "experiment", "settings", "options"}
    for name in plain:
        _known(name, known, f"table in {path}")
        if name not in ("method", "name") and not isinstance(plain[name], dict):
            raise ValueError(f"{name} in {path} is a table; write [{name}] and its entries below")
    return plain


def common(plain: Mapping[str, Any]) -> Config:
    """A configuration without the method's settings."""
    return Config(
        plain["method"],
        {},
        _filled(Experiment(), plain.get("experiment", {}), "experiment"),
        _filled(Options(), plain.get("options", {}), "options"),
        str(plain.get("name", "")),
    )


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
    # TOML has no null: None is left out, and read as the default again.
    known = {key: value for key, value in values.items() if value is not None}
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in known.items()]
    return "\n".join(lines) + "\n"
