"""What a comparison will run: methods, files and settings of a command line as configurations."""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gossamer import fields
from gossamer.cli.parsing import Parser, Refusal, add_settings
from gossamer.cli.run import refusing
from gossamer.config import (
    Config,
    Experiment,
    absolute,
    anywhere,
    find_method,
    locate,
    nearest,
    read,
)
from gossamer.engine import Options
from gossamer.engine.client import AnyMethod
from gossamer.engine.events import CONFIG
from gossamer.fields import Setting
from gossamer.report.groups import APART

T = TypeVar("T")

SAME = (
    *("data", "partition", "pool", "least", "valid", "data_seed", "budgets", "model"),
    *("global_model", "personal", "select", "flops_model", "network"),
)
"""What methods are compared on and by: one value for all of them."""
EQUAL = ("rounds", "training")


@dataclass(frozen=True)
class Contender:
    """One entry of a comparison as it was named: a method or a file, and settings of its own."""

    word: str
    config: Config
    own: Mapping[str, str]
    file: bool

    @property
    def method(self) -> AnyMethod:
        return find_method(self.config.method)

    @property
    def name(self) -> str:
        """Of its folder: `spdst,density=0.1`, the file without its end, or the class."""
        place = self.word if not self.own else self.word.rpartition(":")[0]
        head = Path(place).stem if self.file else self.config.method.rpartition(":")[2]
        return ",".join([head, *(f"{key}={value}" for key, value in self.own.items())])


@dataclass(frozen=True)
class Plan:
    """One run of a comparison."""

    folder: Path
    config: Config

    @property
    def name(self) -> str:
        """As the engine knows it."""
        return self.config.method.rpartition(":")[2]

    @property
    def title(self) -> str:
        return f"{self.folder.parent.name} seed {self.config.experiment.seed}"


def contender(word: str) -> Contender:
    """`spafl`, `spafl:alpha=0.002,lr=0.01`, `my.py:Mine`, or a TOML file, also with settings."""
    head, _, tail = word.rpartition(":")
    own: dict[str, str] = {}
    if head and "=" in tail:
        for part in tail.split(","):
            name, equals, value = part.partition("=")
            if not (name and equals and value):
                raise Refusal(
                    f"{part!r} in {word!r} sets nothing; write e.g. spafl:alpha=0.002,lr=0.01"
                )
            own[name.strip().replace("-", "_")] = value.strip()
    target = head if own else word
    with refusing():
        if target.endswith(".toml"):
            return Contender(word, read(locate(target)), own, file=True)
        find_method(target)
        return Contender(word, Config(target), own, file=False)


def parser(program: str, contenders: Sequence[Contender]) -> Parser:
    """Options of the whole, and a setting for whatever any of the methods has."""
    found = Parser(
        prog=program,
        description="Runs methods on the same federation and compares them; "
        "a setting is for every method that has it, spafl:alpha=0.002 for one alone.",
    )
    found.add_argument(
        "--seeds", type=int, default=1, metavar="N", help="runs of each, from --seed"
    )
    found.add_argument(
        "--equal",
        choices=EQUAL,
        default="rounds",
        help="what all have --rounds of: rounds in all (default), or rounds that train, so that "
        "methods with a first round that only probes get one more",
    )
    add_settings(found, "experiment", Experiment())
    add_settings(found, "execution", Options())
    add_settings(found, "methods", _union([each.method for each in contenders]))
    return found


def plans(contenders: Sequence[Contender], options: argparse.Namespace, out: Path) -> list[Plan]:
    """Every run, seeds outermost: what is interrupted early has whole seeds."""
    said = {name: value for name, value in vars(options).items() if name in _names(contenders)}
    if options.seeds < 1:
        raise Refusal(f"--seeds must be at least 1, not {options.seeds}")
    if options.equal == "training" and "rounds" not in said:
        raise Refusal("--equal training counts --rounds; say how many, e.g. --rounds 100")
    common = _common(contenders, said)
    configs = {}
    for each, name in zip(contenders, _folders(contenders), strict=True):
        try:
            config = _configured(each, said, common)
            method, wish = config.build_method(), config.experiment
            if options.equal == "training" and "rounds" not in each.own:
                wish = replace(wish, rounds=wish.rounds + probes(method))
        except (ValueError, KeyError) as problem:
            raise Refusal(f"{each.word}: {problem.args[0]}") from None
        configs[name] = replace(config, experiment=wish)
    first = next(iter(configs.values())).experiment.seed
    return [
        Plan(
            out / name / f"seed-{seed}",
            replace(config, experiment=replace(config.experiment, seed=seed)),
        )
        for seed in range(first, first + options.seeds)
        for name, config in configs.items()
    ]


def overridden(config: Config, wishes: Mapping[str, Any]) -> Config:
    """A configuration with what is wished of it; what it has no setting for is left out."""
    return Config(
        absolute(config.method),
        {**config.settings, **_given(find_method(config.method), wishes)},
        anywhere(fields.replace(config.experiment, _given(Experiment(), wishes))),
        fields.replace(config.options, _given(Options(), wishes)),
    )


def idle(contenders: Sequence[Contender], options: argparse.Namespace) -> Iterator[str]:
    """Settings that only some of the methods have, as sentences."""
    shared = common_settings()
    for name in vars(options):
        free = [each for each in contenders if name not in each.own]
        known = [each.word for each in free if name in _settings(each)]
        if name not in shared and 0 < len(known) < len(free):
            yield f"--{fields.flag(name)} is for {', '.join(known)}; the others have no such thing"


def changed(folder: Path, config: Config) -> list[str]:
    """How a folder's run differs from a configuration in what decides results; empty if it is it.

    Raises what is wrong with a configuration that cannot be read.
    """
    old, new = flat(read(folder / CONFIG)), flat(config)
    return [
        f"{name.partition('.')[2] or name} {old.get(name)}, not {new.get(name)}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def flat(config: Config) -> dict[str, Any]:
    """All that decides the results of a run, by `table.name`."""
    found: dict[str, Any] = {}
    for table, values in tomllib.loads(config.toml()).items():
        entries = values.items() if isinstance(values, dict) else [("", values)]
        found |= {f"{table}.{name}".rstrip("."): value for name, value in entries}
    apart = APART - {"experiment.seed"}
    return {name: value for name, value in found.items() if name not in apart}


def probes(method: AnyMethod) -> bool:
    """Whether a method's first round trains nothing."""
    assert dataclasses.is_dataclass(method)
    parts = [getattr(method, field.name) for field in dataclasses.fields(method)]
    return any(getattr(part, "probes", False) is True for part in parts)


def _configured(
    each: Contender, said: Mapping[str, Any], common: tuple[Experiment, Options]
) -> Config:
    """An entry with what was said for all, and then for it alone."""
    for name in each.own:
        if name in SAME or name == "seed":
            raise ValueError(
                f"{name} is the same for all in a comparison; say --{fields.flag(name)}"
            )
        if name not in _settings(each) | common_settings():
            known = {**_settings(each), **common_settings()}
            raise ValueError(
                f"no setting is called {name!r}{nearest(name, known)} "
                f"`gossamer run {each.config.method} --help` lists them all"
            )
    config = each.config
    if not each.file:
        config = replace(config, experiment=common[0], options=common[1])
    return overridden(config, {**said, **each.own})


def _common(contenders: Sequence[Contender], said: Mapping[str, Any]) -> tuple[Experiment, Options]:
    """What methods without a file of their own take over from the files: all they agree on."""
    files = [each for each in contenders if each.file]
    return (
        _agreed(Experiment(), [each.config.experiment for each in files], contenders, said),
        _agreed(Options(), [each.config.options for each in files], contenders, said),
    )


def _agreed(
    usual: T, parts: Sequence[T], contenders: Sequence[Contender], said: Mapping[str, Any]
) -> T:
    words = [each.word for each in contenders if each.file]
    named = [each.word for each in contenders if not each.file]
    found: dict[str, Any] = {}
    for item in fields.settings(usual):
        values = [getattr(part, item.name) for part in parts]
        if not values or item.name in said or item.name == "seed":
            continue
        other = next((at for at, value in enumerate(values) if value != values[0]), None)
        if other is None:
            found[item.name] = values[0]
        elif named or item.name in SAME:
            raise Refusal(
                f"{words[0]} has {item.name} {values[0]!r}, and {words[other]} {values[other]!r}; "
                f"say --{fields.flag(item.name)}, for all of them"
            )
    return fields.replace(usual, found)


def _given(record: object, wishes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        item.name: fields.convert(item, wishes[item.name])
        for item in fields.settings(record)
        if item.name in wishes
    }


def _folders(contenders: Sequence[Contender]) -> list[str]:
    """A folder for each entry; the same entry twice is refused."""
    words = [each.word for each in contenders]
    if twice := next((word for word in words if words.count(word) > 1), None):
        raise Refusal(
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
    """What is no setting of a method."""
    return {
        item.name: item for record in (Experiment(), Options()) for item in fields.settings(record)
    }


def _names(contenders: Sequence[Contender]) -> set[str]:
    return set(common_settings()).union(*map(_settings, contenders))


def _union(methods: Sequence[AnyMethod]) -> object:
    """A record with every setting that any of the methods has, as the first of them has it."""
    found: dict[str, tuple[Any, Any]] = {}
    defaults: dict[str, list[Any]] = {}
    for method in methods:
        for item in fields.settings(method):
            defaults.setdefault(item.name, []).append(item.default)
            found.setdefault(item.name, (item.type, item))
    parts = []
    for name, (kind, item) in found.items():
        values = defaults[name]
        alike = all(value == values[0] for value in values)
        default = item.default if alike or isinstance(item.default, bool) else None
        text = item.help if alike else f"{item.help} (default: as each method has it)"
        parts.append((name, kind, dataclasses.field(default=default, metadata={"help": text})))
    return dataclasses.make_dataclass("Settings", parts, frozen=True)()
