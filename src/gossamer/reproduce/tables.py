"""Tables of papers, read from files: columns, rows with published figures, and scales."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.config import PAPERS, Config, find_method, locate, nearest, read
from gossamer.reproduce.plans import Plan, common_settings, overridden, probes

COSTS = "costs"
"""A scale of few rounds with the paper's data, model and clients: what is sent needs no more."""
SCALES = ("quick", COSTS, "here", "full")
ACCURACIES = {
    "global": "global_score",
    "clients": "personal_mean",
    "local": "local_mean",
    "valid": "valid_mean",
}
"""The server's model on the server's test data; each client's model (its own, or else the
server's) on the client's test data; only the clients that have a model of their own; each client's
model on the client's validation data, in runs with `select = "valid"`."""
SUMS = ("sent", "up", "down", "paper", "paper_up", "paper_down", "flops", "client_flops")
"""Figures that accumulate over rounds: bits as sent and as the paper counts, and FLOPs."""
FIGURES = (*ACCURACIES, *SUMS, "density", "zeros", "removed", "mismatch", "training_seconds")
UNITS = {
    "": 1.0,
    "%": 0.01,
    "Gbit": 1e9,
    "GiB": 8.0 * 2**30,
    "GB": 8e9,
    "GFLOP": 1e9,
    "TFLOP": 1e12,
}
MOMENTS = ("last", "best", "last-10")
DENSITY_MOMENTS = ("last", "best")
RELATIONS = ("", "share", "saving")
OVER = ("mean", "max", "middle")


@dataclass(frozen=True)
class Column:
    """A column: one figure of the runs."""

    name: str
    title: str
    figure: str
    unit: str = ""
    at: str = "last"
    """Which evaluation a figure is of: last, best, or last-10, the mean of the last ten. The best
    round is that of clients' accuracy, on validation data if there are any."""
    whole: bool = False
    """Extrapolate a run of fewer rounds to the paper's number of rounds."""
    relative: str = ""
    """Relative to the row's reference: `share` of it, or `saving`, how many times less."""
    reaching: int = 0
    """Read a figure that accumulates at the first evaluation with this accuracy, in percent."""
    by: str = "global"
    """The accuracy to reach."""


@dataclass(frozen=True)
class Published:
    """A figure as published, with its standard deviation if given."""

    value: float
    std: float | None = None


@dataclass(frozen=True)
class Row:
    """A row: its published figures, and the run that reproduces them."""

    name: str
    title: str
    config: Config | None = None
    """With the settings of the paper; None if no method here can run it."""
    published: Mapping[str, Published] = field(default_factory=dict)
    reference: str = ""
    """The row that shares and savings are relative to."""
    over: str = "mean"
    """How seeds are combined: mean, max, or middle, the mean without best and worst."""
    seeds: int = 0
    """Maximum number of seeds, as in the paper; 0: the scale's."""
    pool: int = 0
    """Clients of the whole data set, where the data decide how many there are; 0: not so."""

    @property
    def training(self) -> int:
        """Training rounds in the paper."""
        return training(self.config) if self.config else 0


@dataclass(frozen=True)
class Claim:
    """What the paper says about figures of a column."""

    name: str
    text: str
    column: str
    row: str
    than: str = ""
    """The row that `row` is above, or level with; empty: the figure is what was printed."""
    within: float = 0.0
    """How far figures may be apart and still be level, or be what was printed."""
    below: float = 0.0
    """The figure is below this; 0: not what the paper says."""
    early: bool | None = None
    """Whether fewer rounds than the paper's settle it; None: if its column accumulates. False is
    for costs that depend on what is learned, which need several seeds too."""


@dataclass(frozen=True)
class Scale:
    """How much of a table is run."""

    name: str
    about: str
    seeds: int = 1
    part: float = 1.0
    """The share of the paper's rounds to run."""
    rows: tuple[str, ...] = ()
    """The rows to run; empty: all."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    row: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of single rows."""


@dataclass(frozen=True)
class Table:
    """A table of a paper."""

    name: str
    title: str
    source: str
    columns: Mapping[str, Column]
    rows: Mapping[str, Row]
    scales: Mapping[str, Scale]
    notes: tuple[str, ...] = ()
    claims: Mapping[str, Claim] = field(default_factory=dict)

    def runs(self, scale: Scale) -> list[Row]:
        """The rows that a scale runs, in table order."""
        chosen = scale.rows or tuple(self.rows)
        return [row for name, row in self.rows.items() if name in chosen and row.config]

    def plans(
        self, scale: Scale, out: Path, seeds: int = 0, more: Mapping[str, Any] | None = None
    ) -> list[Plan]:
        """All runs of a scale, seeds outermost.

        Args:
            scale: how much to run.
            out: the folder for the runs.
            seeds: number of seeds; 0: the scale's.
            more: settings for all runs, on top of the scale's.
        """
        plans = []
        configs = [(row, _scaled(row, scale, more or {})) for row in self.runs(scale)]
        for place in range(seeds or scale.seeds):
            for row, config in configs:
                if row.seeds and place >= row.seeds:
                    continue
                seed = config.experiment.seed + place
                each = replace(config, experiment=replace(config.experiment, seed=seed))
                plans.append(Plan(out / row.name / f"seed-{seed}", each))
        return plans


def _scaled(row: Row, scale: Scale, more: Mapping[str, Any]) -> Config:
    """The configuration of a row at a scale: the paper's settings, the scale's, fewer rounds."""
    assert row.config is not None
    settings = {**scale.settings, **scale.row.get(row.name, {}), **more}
    train = int(settings.pop("rounds", math.ceil(row.training * scale.part)))
    config = overridden(row.config, settings)
    return replace(
        config,
        experiment=replace(config.experiment, rounds=train + probes(config.build_method())),
    )


def training(config: Config) -> int:
    """Rounds of a run that train, i.e. all but a probing first round."""
    return config.experiment.rounds - probes(config.build_method())


# files --------------------------------------------------------------------------------------------


def names() -> list[str]:
    """The names of all tables that come with the package."""
    return sorted(path.stem for path in PAPERS.glob("*.toml"))


def described() -> list[dict[str, str]]:
    """Name, title and source of all tables that come with the package."""
    tables = []
    for name in names():
        plain = tomllib.loads((PAPERS / f"{name}.toml").read_text(encoding="utf-8"))
        tables.append({"name": name, "title": plain["title"], "source": plain["source"]})
    return tables


def find(word: str) -> Table:
    """A table by its name, or from a TOML file.

    Raises:
        KeyError: there is no such table; the message suggests the nearest name.
        FileNotFoundError: there is no such file.
    """
    if word.endswith(".toml"):
        return load(locate(word))
    known = names()
    if word not in known:
        raise KeyError(f"no table {word!r}{nearest(word, known)} `gossamer paper` lists them all")
    return load(PAPERS / f"{word}.toml")


def load(path: Path) -> Table:
    """Reads a table from a TOML file.

    Raises:
        ValueError: the file is not TOML, or an entry of it is unknown or unusable.
    """
    try:
        plain = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as damage:
        raise ValueError(f"{path} is not valid TOML: {damage}") from None
    try:
        return _table(path, plain)
    except (KeyError, ValueError, FileNotFoundError) as problem:
        raise ValueError(f"{path}: {problem.args[0]}") from problem
    except (TypeError, AttributeError) as problem:
        raise ValueError(f"{path} is not a table of a paper: {problem}") from problem


def _table(path: Path, plain: Mapping[str, Any]) -> Table:
    parts = ("title", "source", "notes", "column", "row", "scale", "claim")
    _known(plain, parts, "entry of a table")
    _needed(plain, ("title", "source", "column", "row", "scale"), "the table")
    columns = {name: _column(name, part) for name, part in plain["column"].items()}
    rows = {name: _row(path.parent, name, part, columns) for name, part in plain["row"].items()}
    for row in rows.values():
        relative = [name for name in row.published if columns[name].relative]
        if row.config and relative and not row.reference:
            raise ValueError(f"row {row.name}: {relative[0]} is relative; name its reference")
        if row.reference:
            _known([row.reference], rows, "row")
    scales = {name: _scale(name, part, rows) for name, part in plain["scale"].items()}
    _known(scales, SCALES, "scale")
    notes = tuple(plain.get("notes", ()))
    claims = {
        name: _claim(name, part, rows, columns) for name, part in plain.get("claim", {}).items()
    }
    return Table(path.stem, plain["title"], plain["source"], columns, rows, scales, notes, claims)


def _column(name: str, part: Mapping[str, Any]) -> Column:
    what = f"column {name}"
    entries = ("title", "figure", "unit", "at", "whole", "relative", "reaching", "by")
    _known(part, entries, f"entry of {what}")
    _needed(part, ("title", "figure"), what)
    column = Column(name, **part)
    for value, choices, word in (
        (column.figure, FIGURES, "figure"),
        (column.unit, UNITS, "unit"),
        (column.at, MOMENTS, "moment"),
        (column.relative, RELATIONS, "relation"),
        (column.by, ACCURACIES, "accuracy"),
    ):
        _known([value], choices, word)
    if column.at not in DENSITY_MOMENTS and column.figure == "density":
        raise ValueError(f"{what}: a density is that of the last or the best round")
    if column.at != "last" and column.figure not in (*ACCURACIES, "density"):
        raise ValueError(f"{what}: {column.at} applies to accuracies, and {column.figure} is none")
    if column.whole and column.figure not in SUMS:
        raise ValueError(f"{what}: {column.figure} does not accumulate; leave out whole")
    if column.reaching and column.figure not in SUMS:
        raise ValueError(f"{what}: {column.figure} does not accumulate; leave out reaching")
    if "by" in part and not column.reaching:
        raise ValueError(f"{what}: by names the accuracy to reach; say how much with reaching")
    if column.reaching and column.whole:
        raise ValueError(f"{what}: reaching an accuracy is not for all rounds; leave out whole")
    if column.reaching not in range(101):  # what kept results are exact about
        raise ValueError(f"{what}: reaching is a whole percent, not {column.reaching}")
    return column


def _row(place: Path, name: str, part: Mapping[str, Any], columns: Mapping[str, Column]) -> Row:
    what = f"row {name}"
    known = ("title", "run", "set", "published", "reference", "over", "seeds", "pool")
    _known(part, known, f"entry of {what}")
    _needed(part, ("title",), what)
    published = {key: _published(value) for key, value in part.get("published", {}).items()}
    _known(published, columns, "column")
    _known([part.get("over", "mean")], OVER, "way to join seeds")
    config = None
    if "run" in part:
        file = place / part["run"]
        if not file.exists():
            raise FileNotFoundError(f"{what}: there is no configuration file {file}")
        config = read(file)
        _settings(part.get("set", {}), [config], what)
        # Servers of the papers accept every reply, however large.
        config = overridden(config, {"reply_limit": 0.0, **part.get("set", {})})
        config.build_method()
    rest = {key: part[key] for key in ("reference", "over", "seeds", "pool") if key in part}
    return Row(name, part["title"], config, published, **rest)


def _claim(
    name: str, part: Mapping[str, Any], rows: Mapping[str, Row], columns: Mapping[str, Column]
) -> Claim:
    what = f"claim {name}"
    known = ("text", "column", "row", "than", "within", "below", "early")
    _known(part, known, f"entry of {what}")
    _needed(part, ("text", "column", "row"), what)
    claim = Claim(name, **part)
    _known([claim.column], columns, "column")
    _known([claim.row, *filter(None, [claim.than])], rows, "row")
    if claim.below and (claim.than or claim.within):
        raise ValueError(f"{what}: below is a bound of one figure; leave out than and within")
    alone = not claim.than and not claim.below
    if alone and (not claim.within or claim.column not in rows[claim.row].published):
        raise ValueError(
            f"{what}: name the row that it is above, a bound, or a printed figure and `within`"
        )
    return claim


def _published(value: Any) -> Published:
    return Published(*map(float, value)) if isinstance(value, list) else Published(float(value))


def _scale(name: str, part: Mapping[str, Any], rows: Mapping[str, Row]) -> Scale:
    what = f"scale {name}"
    _known(part, ("about", "seeds", "part", "rows", "set", "row"), f"entry of {what}")
    _needed(part, ("about",), what)
    chosen, own = tuple(part.get("rows", ())), part.get("row", {})
    _known([*chosen, *own], rows, "row")
    for row in chosen:
        if rows[row].config is None:
            raise ValueError(f"{what}: row {row} names no run")
    settings = part.get("set", {})
    _settings(settings, [row.config for row in rows.values() if row.config], what)
    for row, values in own.items():
        config = rows[row].config
        _settings(values, [config] if config else [], f"{what}, row {row}")
    rest = {key: part[key] for key in ("seeds", "part") if key in part}
    if not 0 < rest.get("part", 1) <= 1 or rest.get("seeds", 1) < 1:
        raise ValueError(f"{what}: part is above 0 and at most 1, and seeds at least 1")
    return Scale(name, part["about"], rows=chosen, settings=settings, row=own, **rest)


def _settings(values: Mapping[str, Any], configs: Sequence[Config], what: str) -> None:
    """Raises KeyError for settings that none of the configurations has."""
    known = set(common_settings())
    for config in configs:
        known |= {item.name for item in fields.settings(find_method(config.method))}
    _known(values, known, f"setting for {what}")


def _known(words: Iterable[str], known: Collection[str], what: str) -> None:
    for word in words:
        if word not in known:
            hint = f"{nearest(word, known)} known: {', '.join(sorted(known))}"
            raise KeyError(f"no {what} is called {word!r}{hint}")


def _needed(part: Mapping[str, Any], words: Sequence[str], what: str) -> None:
    for word in words:
        if word not in part:
            raise ValueError(f"{what} has no {word}")
