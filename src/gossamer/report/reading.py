"""Reads run folders: everything readable becomes a value, everything else a notice."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gossamer.accounting.log import LOST
from gossamer.engine import checkpoint
from gossamer.engine.checkpoint import Checkpoint
from gossamer.engine.events import CONFIG, PROJECT, SCHEMA, LogReader
from gossamer.engine.files import Damaged, check_text
from gossamer.engine.resuming import ROUNDS, judged
from gossamer.report.kept import read_kept
from gossamer.report.runs import (
    EVALUATED,
    MOST_TEXT,
    ROUND,
    Bits,
    Curve,
    Line,
    NoRun,
    Run,
    meaningful,
    number,
)

NAMED = 10
"""Clients with dropped replies that a notice names, at most."""
METRICS = ("client_mismatch", "zeros", "removed")
"""What methods say of their state that reports and tables show."""


def read_run(folder: Path) -> Run:
    """Reads a run from its folder, as far as it can be read, or from a kept result.

    Raises:
        NoRun: the folder holds nothing of a run.
    """
    shown = str(folder)
    if folder.suffix == ".json" and folder.is_file():
        try:
            return read_kept(folder)
        except ValueError as problem:
            raise NoRun(str(problem)) from problem
    if not folder.is_dir():
        raise NoRun(
            f"{shown} is not a folder" if folder.exists() else f"there is no folder {shown}"
        )
    log = folder / "events.jsonl"
    settings = folder / (PROJECT if (folder / PROJECT).exists() else CONFIG)
    if not log.exists() and not settings.exists():
        raise NoRun(f"{shown} is not a run: it has neither events.jsonl nor config.toml")
    notices: list[str] = []
    text, config = _config(settings, notices)
    gathered = _Gathered()
    newest = _newest(folder)
    reader = LogReader(log, (newest.events,) if newest else ())
    for position, event in _events(reader, notices):
        gathered.take(position, event)
    damage = _damage(reader, newest, settings)
    if not gathered.known and not text:
        raise NoRun(f"{shown} has nothing to show: {'; '.join([*notices, *damage])}")
    run = Run(
        folder=shown,
        started=gathered.started,
        finished=gathered.finished,
        curves=meaningful(gathered.curves, gathered.started.get("method")),
        layers=gathered.layers,
        ledger={line: Bits(int(sums[0]), *sums[1:]) for line, sums in gathered.sums.items()},
        histogram=gathered.histogram,
        densities=gathered.densities,
        between=gathered.between,
        failed=gathered.failed,
        config=config,
        text=text,
        networked=settings.name == PROJECT,
    )
    texts = [*notices, *damage, *gathered.notices(), *_state(run, gathered)]
    notes = tuple(f"{shown}: {text}" for text in texts)
    return replace(run, notices=notes, damaged=bool(damage))


def _newest(folder: Path) -> Checkpoint | None:
    """The checkpoint that says how long the log must be, if there is one."""
    try:
        return checkpoint.newest(folder / ROUNDS)
    except (checkpoint.Unusable, OSError):
        return None


def _damage(reader: LogReader, newest: Checkpoint | None, settings: Path) -> list[str]:
    """Sentences about files that are damaged, in folders that have checksums."""
    damage = []
    if newest and (problem := judged(reader, newest)):
        damage.append(f"{problem}; what follows is left out")
    elif reader.problem:
        damage.append(f"{reader.problem}; the log is shown up to it")
    if reader.chained or newest:
        try:
            check_text(settings)
        except Damaged as problem:
            damage.append(str(problem))
    return damage


def _config(path: Path, notices: list[str]) -> tuple[str, Mapping[str, Any]]:
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        notices.append("there is no config.toml; settings are shown as far as the log has them")
        return "", {}
    except OSError as problem:
        notices.append(f"{path.name} cannot be read: {problem.strerror}")
        return "", {}
    try:
        return text[:MOST_TEXT], tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        notices.append(f"{path.name} is not valid TOML ({problem}); it is shown unparsed")
        return text[:MOST_TEXT], {}


def _events(reader: LogReader, notices: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The events of a log up to the first damaged line, with their line numbers."""
    try:
        for count, event in reader:
            yield count, event if isinstance(event, dict) else {}
    except FileNotFoundError:
        notices.append("there is no log yet; only the configuration is shown")
    except OSError as problem:
        notices.append(f"the log cannot be read: {problem.strerror}")
    if reader.torn:
        notices.append("the log ends in the middle of a line; it is shown up to that line")


class _Gathered:
    """The contents of a log so far."""

    def __init__(self) -> None:
        self.started: Mapping[str, Any] = {}
        self.finished: Mapping[str, Any] = {}
        self.curves: dict[str, Curve] = {}
        self.layers: dict[str, dict[str, Curve]] = {}
        self.sums: dict[Line, list[float]] = {}
        self.histogram: Sequence[int] = ()
        self.densities: Sequence[float] = ()
        self.between = (0.0, 1.0)
        self.failed = 0
        self.lost = 0
        self.trained = 0.0
        """Seconds of local training so far, summed over clients."""
        self.dropped: Counter[int] = Counter()
        """Replies that were left out, by client."""
        self.known = 0
        self._unknown: dict[str, int] = {}
        self._odd: list[int] = []
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "started": self._start,
            "client-finished": self._client,
            "client-failed": self._failure,
            "state-lost": self._lose,
            "round-finished": self._round,
            "privacy-spent": self._spend,
            "measured": self._measure,
            "arithmetic-chosen": lambda event: None,
            "evaluated": self._evaluate,
            "finished": self._finish,
        }

    def take(self, line: int, event: dict[str, Any]) -> None:
        """Adds one event; an incomplete event is counted and left out."""
        kind = event.get("event")
        if not isinstance(kind, str):
            self._odd.append(line)
        elif kind not in self._kinds:
            self._unknown[kind] = self._unknown.get(kind, 0) + 1
        else:
            try:
                self._kinds[kind](event)
                self.known += 1
            except (KeyError, TypeError, ValueError, AttributeError):
                self._odd.append(line)

    def notices(self) -> Iterator[str]:
        """Sentences about everything that could not be read."""
        schema = self.started.get("schema")
        if isinstance(schema, int) and schema > SCHEMA:
            yield (
                f"the log has a newer format (schema {schema}; this version knows {SCHEMA}); "
                "known entries are shown, but may have changed their meaning"
            )
        if self._unknown:
            kinds = ", ".join(f"{kind} ({count})" for kind, count in self._unknown.items())
            yield f"events of unknown kinds are omitted: {kinds[:200]}"
        if self._odd:
            first, count = self._odd[0], len(self._odd)
            which = (
                f"{count} lines, the first of them line {first}," if count > 1 else f"line {first}"
            )
            yield f"{which} of the log could not be read"

    def _start(self, event: dict[str, Any]) -> None:
        if not self.started:
            self.started = event

    def _finish(self, event: dict[str, Any]) -> None:
        self.finished = event

    def _failure(self, event: dict[str, Any]) -> None:
        _place(event)
        self.failed += 1
        if isinstance(client := event.get("client"), int):
            self.dropped[client] += 1
        if sent := number(event.get("down")):
            sums = self.sums.setdefault(("down", LOST, "all"), [0.0] * 4)
            for place, value in ((0, 1), (1, sent), (3, number(event.get("paper_down")) or 0.0)):
                sums[place] += value

    def _lose(self, event: dict[str, Any]) -> None:
        _place(event)
        self.lost += 1

    def _round(self, event: dict[str, Any]) -> None:
        place = self._put(event, ROUND)
        if self.trained:
            self.curves.setdefault("training_seconds", {})[place] = self.trained
        for name, value in event.get("metrics", {}).items():
            kind, _, layer = str(name).partition(".")
            if kind == "sensitivity" and layer and number(value) is not None:
                curves = self.layers.setdefault(layer, {})
                curves.setdefault("sensitivity", {})[place] = value

    def _spend(self, event: dict[str, Any]) -> None:
        self._put(event, ("epsilon",))

    def _evaluate(self, event: dict[str, Any]) -> None:
        if event.get("global_score") is None and event.get("metric", "accuracy") == "accuracy":
            event = {**event, "global_score": event.get("global_accuracy")}  # as in schema 1
        self._put(event, EVALUATED)
        counts = event.get("personal_histogram")
        if isinstance(counts, list) and counts:
            if not all(isinstance(count, int) and count >= 0 for count in counts):
                raise ValueError("a histogram has counts")
            self.histogram = counts
            ends = [number(end) for end in event.get("personal_range") or (0.0, 1.0)]
            low, high = ends
            if low is None or high is None or low >= high:
                raise ValueError("a histogram lies between two numbers")
            self.between = (low, high)
        densities = event.get("personal_densities")
        if isinstance(densities, list) and densities:
            self.densities = [float(each) for each in densities]

    def _measure(self, event: dict[str, Any]) -> None:
        place = self._put(event, ("mismatch",))
        if (density := number(event.get("density"))) is not None:
            self.curves.setdefault("mask_density", {})[place] = density
        for name in METRICS:
            if (value := number(event.get("metrics", {}).get(name))) is not None:
                self.curves.setdefault(name, {})[place] = value
        for layer, figures in event.get("layers", {}).items():
            for name in ("density", "mismatch"):
                if (value := number(figures.get(name))) is not None:
                    curves = self.layers.setdefault(str(layer), {})
                    curves.setdefault(name, {})[place] = value

    def _client(self, event: dict[str, Any]) -> None:
        _place(event)
        self.trained += number(event.get("clock", {}).get("seconds")) or 0.0
        for entry in event.get("traffic", ()):
            direction, message, leaf = entry["direction"], entry["message"], entry["leaf"]
            if direction not in ("up", "down"):
                raise ValueError("a message goes up or down")
            sums = self.sums.setdefault((direction, str(message), str(leaf)), [0.0] * 4)
            sums[0] += 1
            for place, column in enumerate(("sent", "information", "paper"), 1):
                sums[place] += number(entry[column]) or 0.0

    def _put(self, event: dict[str, Any], names: Sequence[str]) -> int:
        place = _place(event)
        for name in names:
            if (value := number(event.get(name))) is not None:
                self.curves.setdefault(name, {})[place] = value
        return place


def _place(event: dict[str, Any]) -> int:
    """The round of an event."""
    place = event["round"]
    if isinstance(place, bool) or not isinstance(place, int) or not 0 <= place < 10**9:
        raise ValueError("a round is a whole number")
    return place


def _whose(dropped: Counter[int]) -> str:
    """The clients whose replies were left out, the most frequent first."""
    if not dropped:
        return ""
    most = [f"{id} ({count})" if count > 1 else f"{id}" for id, count in dropped.most_common(NAMED)]
    names = ", ".join(most) + ", ..." * (len(dropped) > NAMED)
    return f", of client {names}" if len(dropped) == 1 else f", of clients {names}"


def _state(run: Run, gathered: _Gathered) -> Iterator[str]:
    """Sentences about a run that is unfinished or has failures."""
    if not gathered.known:
        yield "nothing is logged yet"
    elif not run.finished:
        of = f" of {run.planned}" if run.planned else ""
        yield f"the run is at round {run.done}{of}: it is still running, or was stopped"
    if run.diverged:
        yield f"the run {run.diverged}; it is in no mean"
    if run.failed:
        replies = "1 reply was" if run.failed == 1 else f"{run.failed} replies were"
        yield f"{replies} dropped{_whose(gathered.dropped)} (see `client-failed` in the log)"
    if gathered.lost:
        states = "1 state" if gathered.lost == 1 else f"{gathered.lost} states"
        yield f"{states} of clients got lost (see `state-lost` in the log)"
