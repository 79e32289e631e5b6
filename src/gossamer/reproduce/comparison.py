"""A comparison on disk: its folder, its list of runs, and which of them are still to be done."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from gossamer import fields
from gossamer.config import Experiment, read
from gossamer.engine.events import CONFIG
from gossamer.engine.files import (
    Damaged,
    check_text,
    private_folder,
    seal_json,
    seal_text,
    unseal_json,
    write_atomically,
)
from gossamer.engine.resuming import LOG, ROUNDS
from gossamer.report import NoRun, Run, read_run
from gossamer.reproduce.plans import Plan, changed, flat
from gossamer.reproduce.results import seconds

LIST = "comparison.json"
"""The file in a comparison's folder that lists its runs, in the order of the table."""


def default_folder(plans: Sequence[Plan]) -> Path:
    """A folder for exactly these runs: the same command finds it again, another makes another."""
    settings = [[str(plan.folder), flat(plan.config)] for plan in plans]
    code = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return Path("runs") / f"compare-{code[:8]}"


def listed(out: Path) -> list[Plan]:
    """The runs of a comparison that was started before.

    Raises:
        ValueError: the folder holds no comparison, or its list is damaged.
    """
    path = out / LIST
    if not path.exists():
        raise ValueError(f"{out} holds no comparison: there is no {path}")
    try:
        folders = [str(word) for word in unseal_json(path)["runs"]]
    except (Damaged, KeyError, TypeError):
        raise Damaged(
            f"{path} is damaged; repeat the command that started the comparison"
        ) from None
    for folder in folders:
        check_text(out / folder / CONFIG)
    return [Plan(out / folder, read(out / folder / CONFIG)) for folder in folders]


def with_other_settings(plans: Iterable[Plan]) -> dict[Path, list[str]]:
    """Folders whose run has other settings than planned, each with the differences."""
    existing = [plan for plan in plans if (plan.folder / CONFIG).exists()]
    differences = {plan.folder: changed(plan.folder, plan.config) for plan in existing}
    return {folder: words for folder, words in differences.items() if words}


def remaining(plans: Sequence[Plan], restarted: Collection[Path]) -> list[Plan]:
    """The runs that are not finished, and those that start again."""
    return [plan for plan in plans if plan.folder in restarted or not run_of(plan).finished]


def representatives(plans: Sequence[Plan]) -> list[Plan]:
    """The first run of every contender and of every seed: what is wrong shows in one of them."""
    of_contender = {plan.folder.parent: plan for plan in reversed(plans)}
    of_seed = {plan.config.experiment.seed: plan for plan in reversed(plans)}
    chosen = (*of_contender.values(), *of_seed.values())
    return list({plan.folder: plan for plan in chosen}.values())


def write(out: Path, plans: Sequence[Plan], restarted: Collection[Path], command: str) -> None:
    """Writes the list of runs, and the configuration of every run that has none yet."""
    for plan in plans:
        if plan.folder in restarted:
            (plan.folder / LOG).unlink(missing_ok=True)
            shutil.rmtree(plan.folder / ROUNDS, ignore_errors=True)
        if plan.folder in restarted or not (plan.folder / CONFIG).exists():
            private_folder(plan.folder)
            text = seal_text(plan.config.toml(command))
            write_atomically(plan.folder / CONFIG, text.encode(), private=True)
    names = [str(plan.folder.relative_to(out)) for plan in plans]
    write_atomically(out / LIST, seal_json({"runs": names}))


def run_of(plan: Plan) -> Run:
    """The run in a plan's folder; an empty one if it has not started."""
    try:
        return read_run(plan.folder)
    except NoRun:
        return Run(str(plan.folder))


def description(experiment: Experiment) -> str:
    """The data and every setting of an experiment that is not the default, in one line."""
    usual = {item.name: item.default for item in fields.settings(Experiment())}
    return ", ".join(
        f"{item.name} {item.default}"
        for item in fields.settings(experiment)
        if item.name == "data" or item.default != usual[item.name]
    )


def as_json(run: Run) -> dict[str, Any]:
    """A finished run for programs."""
    curves = ("up", "down", "paper_up", "paper_down", "flops")
    last = {name: int(curve[max(curve)]) for name in curves if (curve := run.curve(name))}
    return {
        "method": run.method,
        "run": run.folder,
        "seed": run.seed,
        "rounds": run.done,
        "metric": run.headline.name,
        "better": "higher" if run.headline.rises else "lower",
        "scores": run.scores,
        **({"accuracy": run.scores} if run.headline.name == "accuracy" else {}),
        "density": run.finished.get("density"),
        "flops": last.pop("flops", None),
        "bits": last,
        "seconds": seconds(run),
        "state_hash": run.finished.get("state_hash"),
    }
