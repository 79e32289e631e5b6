"""The runs of a comparison: methods, files and settings turned into configurations."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gossamer import fields
from gossamer.config import (
    Config,
    Experiment,
    absolute,
    absolute_options,
    absolute_paths,
    find_method,
    locate,
    nearest,
    read,
    variants_with,
)
from gossamer.core import AnyMethod
from gossamer.engine import Options
from gossamer.engine.events import CONFIG
from gossamer.fields import Setting
from gossamer.methods import METHODS
from gossamer.report.groups import IRRELEVANT

T = TypeVar("T")

SHARED = (
    *("data", "partition", "pool", "least", "valid", "data_seed", "budgets", "model"),
    *("global_model", "personal", "select", "flops_model", "network", "devices", "spread"),
    *("failures", "availability", "time_by", "until"),
)
"""Settings that have the same value for all methods of a comparison."""
EQUAL = ("rounds", "training")
"""What all methods have equally many of: rounds, or rounds that train."""


_OWN = re.compile(r"(?<=.):(?=[\w -]*=)")


@dataclass(frozen=True)
class Contender:
    """One entry of a comparison: a method or a configuration file, and settings of its own."""

    word: str
    config: Config
    own: Mapping[str, str]
    file: bool

    @property
    def method(self) -> AnyMethod:
        return find_method(self.config.method)

    @property
    def name(self) -> str:
        """The name of its folder, such as `spdst,density=0.1`."""
        place, _ = _split(self.word)
        head = Path(place).stem if self.file else self.config.method.rpartition(":")[2]
        return ",".join([head, *(f"{key}={value}" for key, value in self.own.items())])


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    folder: Path
    config: Config

    @property
    def name(self) -> str:
        """The method's name in the log."""
        return self.config.method.rpartition(":")[2]

    @property
    def title(self) -> str:
        return f"{self.folder.parent.name} seed {self.config.experiment.seed}"


def contender(word: str) -> Contender:
    """Parses `spafl`, `spafl:alpha=0.002,lr=0.01`, `my.py:Mine`, or a TOML file with settings.

    Raises:
        ValueError: a setting has no value, or a file is damaged.
        KeyError: a method is unknown.
        FileNotFoundError: there is no such file.
    """
    target, tail = _split(word)
    own: dict[str, str] = {}
    if tail:
        for part in tail.split(","):
            name, equals, value = part.partition("=")
            if not (name and equals and value):
                raise ValueError(
                    f"{part!r} in {word!r} sets nothing; write e.g. spafl:alpha=0.002,lr=0.01"
                )
            name = name.strip().replace("-", "_")
            if name in own:
                raise ValueError(f"{word!r} sets {name} twice")
            own[name] = value.strip()
    if target.endswith(".toml"):
        return Contender(word, read(locate(target)), own, file=True)
    method, _, alone = target.rpartition(":")
    if method in METHODS:
        raise ValueError(f"{alone!r} in {word!r} has no value; write e.g. {method}:lr=0.01")
    find_method(target)
    return Contender(word, Config(target), own, file=False)


def _split(word: str) -> tuple[str, str]:
    """What is compared, and its own settings: behind the first colon that a `name=` follows."""
    found = _OWN.search(word)
    return (word[: found.start()], word[found.start() + 1 :]) if found else (word, "")


def plans(
    contenders: Sequence[Contender],
    settings: Mapping[str, Any],
    out: Path,
    seeds: int = 1,
    equal: str = "rounds",
) -> list[Plan]:
    """All runs of a comparison, seeds outermost, so that an interrupted one has complete seeds.

    Args:
        contenders: what is compared.
        settings: values for every method that has such a setting, and for the experiment.
        out: the folder of the comparison.
        seeds: runs per contender, from the first seed upwards.
        equal: `training` gives methods whose first round only probes one round more.

    Raises:
        ValueError: the settings contradict each other, or a value is out of bounds.
    """
    if seeds < 1:
        raise ValueError(f"`seeds=` must be at least 1, not {seeds}")
    if equal == "training" and "rounds" not in settings:
        raise ValueError("`equal='training'` needs `rounds=`, e.g. `rounds=100`")
    common = _common(contenders, settings)
    configs = {}
    for each, name in zip(contenders, _folders(contenders), strict=True):
        try:
            config = _configured(each, settings, common)
            method, experiment = config.build_method(), config.experiment
            if equal == "training" and "rounds" not in each.own:
                experiment = replace(experiment, rounds=experiment.rounds + probes(method))
        except (ValueError, KeyError) as problem:
            raise ValueError(f"{each.word}: {problem.args[0]}") from None
        configs[name] = replace(config, experiment=experiment)
    first = next(iter(configs.values())).experiment.seed
    return [
        Plan(
            out / name / f"seed-{seed}",
            replace(config, experiment=replace(config.experiment, seed=seed)),
        )
        for seed in range(first, first + seeds)
        for name, config in configs.items()
    ]


def overridden(config: Config, values: Mapping[str, Any]) -> Config:
    """The configuration with other values; settings that it does not have are ignored."""
    return Config(
        absolute(config.method),
        {**config.settings, **_converted(find_method(config.method), values)},
        absolute_paths(fields.replace(config.experiment, _converted(Experiment(), values))),
        absolute_options(fields.replace(config.options, _converted(Options(), values))),
    )


def partial_settings(contenders: Sequence[Contender], names: Iterable[str]) -> Iterator[str]:
    """A sentence for each of the settings that only some of the methods have."""
    shared = common_settings()
    for name in names:
        free = [each for each in contenders if name not in each.own]
        having = [each.word for each in free if name in _settings(each)]
        if name not in shared and 0 < len(having) < len(free):
            yield f"--{fields.flag(name)} applies to {', '.join(having)} only"


def changed(folder: Path, config: Config) -> list[str]:
    """How the settings of a folder's run differ from a configuration; empty if they agree.

    Only settings that affect results count.

    Raises:
        ValueError: the folder's configuration cannot be read.
    """
    old, new = flat(read(folder / CONFIG)), flat(config)
    return [
        f"{name.partition('.')[2] or name} {old.get(name)}, not {new.get(name)}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def flat(config: Config) -> dict[str, Any]:
    """All settings that affect the results of a run, by `table.name`."""
    settings: dict[str, Any] = {}
    for table, values in tomllib.loads(config.toml()).items():
        entries = values.items() if isinstance(values, dict) else [("", values)]
        settings |= {f"{table}.{name}".rstrip("."): value for name, value in entries}
    irrelevant = IRRELEVANT - {"experiment.seed"}
    return {name: value for name, value in settings.items() if name not in irrelevant}


def probes(method: AnyMethod) -> bool:
    """Whether a method's first round only probes and trains nothing."""
    return bool(fields.value(method, "allocation") == "sensitivity")


def _configured(
    each: Contender, settings: Mapping[str, Any], common: tuple[Experiment, Options]
) -> Config:
    """The configuration of a contender: the common settings, then its own."""
    for name in each.own:
        if name in SHARED or name == "seed":
            raise ValueError(f"{name} is the same for all methods of a comparison; use `{name}=`")
        if name not in _settings(each) | common_settings():
            known = {**_settings(each), **common_settings()}
            if entry := variants_with(each.config.method, name):
                raise ValueError(f"{name} is a setting of {entry}; use {entry}:{name}=...")
            raise ValueError(
                f"no setting is called {name!r}{nearest(name, known)} "
                f"`gossamer run {each.config.method} --help` lists them all"
            )
    config = each.config
    if not each.file:
        config = replace(config, experiment=common[0], options=common[1])
    return overridden(config, {**settings, **each.own})


def _common(
    contenders: Sequence[Contender], settings: Mapping[str, Any]
) -> tuple[Experiment, Options]:
    """What methods without a file of their own inherit: all that the files agree on."""
    files = [each for each in contenders if each.file]
    return (
        _agreed(Experiment(), [each.config.experiment for each in files], contenders, settings),
        _agreed(Options(), [each.config.options for each in files], contenders, settings),
    )


def _agreed(
    usual: T, parts: Sequence[T], contenders: Sequence[Contender], settings: Mapping[str, Any]
) -> T:
    files = [each.word for each in contenders if each.file]
    methods = [each.word for each in contenders if not each.file]
    agreed: dict[str, Any] = {}
    for item in fields.settings(usual):
        values = [getattr(part, item.name) for part in parts]
        if not values or item.name in settings or item.name == "seed":
            continue
        other = next((at for at, value in enumerate(values) if value != values[0]), None)
        if other is None:
            agreed[item.name] = values[0]
        elif methods or item.name in SHARED:
            raise ValueError(
                f"{files[0]} has {item.name} {values[0]!r}, and {files[other]} {values[other]!r}; "
                f"set `{item.name}=` for all of them"
            )
    return fields.replace(usual, agreed)


def _converted(record: object, values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        item.name: fields.convert(item, values[item.name])
        for item in fields.settings(record)
        if item.name in values
    }


def _folders(contenders: Sequence[Contender]) -> list[str]:
    """A folder name for each contender; naming one twice is an error."""
    words = [each.word for each in contenders]
    if twice := next((word for word in words if words.count(word) > 1), None):
        raise ValueError(
            f"{twice} is named twice; give one of them settings of its own, e.g. {twice}:lr=0.01"
        )
    names = [each.name.replace("/", "_") for each in contenders]
    return [
        name if names.index(name) == place else f"{name}-{names[: place + 1].count(name)}"
        for place, name in enumerate(names)
    ]


def _settings(each: Contender) -> dict[str, Setting]:
    return {item.name: item for item in fields.settings(each.method)}


def common_settings() -> dict[str, Setting]:
    """Settings of the experiment and of execution, which all methods have."""
    return {
        item.name: item for record in (Experiment(), Options()) for item in fields.settings(record)
    }


def union(methods: Sequence[AnyMethod]) -> object:
    """A record with every setting that any of the methods has, described as in the first."""
    first: dict[str, Setting] = {}
    defaults: dict[str, list[Any]] = {}
    for method in methods:
        for item in fields.settings(method):
            defaults.setdefault(item.name, []).append(item.default)
            first.setdefault(item.name, item)
    parts = []
    for name, item in first.items():
        values = defaults[name]
        alike = all(value == values[0] for value in values)
        default = item.default if alike or isinstance(item.default, bool) else None
        text = item.help if alike else f"{item.help} (default: the method's own)"
        parts.append((name, item.type, dataclasses.field(default=default, metadata={"help": text})))
    return dataclasses.make_dataclass("Settings", parts, frozen=True)()
