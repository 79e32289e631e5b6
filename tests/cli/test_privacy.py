"""`gossamer run --dp`: what is shown, what is refused, and that it is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from gossamer.report.page import report

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]
DP = ["--dp", "clip=1.0,noise=2,delta=1e-5"]


def test_epsilon_is_shown_by_progress_outcome_json_and_report(gossamer: Command) -> None:
    shown = gossamer("run", "fedavg", *SMALL, *DP, "--out", "run", "--json")
    spent = shown.json["privacy"]
    assert spent["epsilon"] > 0 and spent["delta"] == 1e-5 and spent["releases"] == 3
    assert f"epsilon {spent['epsilon']:.3g}" in shown.out
    assert f"{spent['epsilon']:.4g} at delta 1e-05 (one client replaced by another)" in shown.out
    logged = [event["epsilon"] for event in events("run") if event["event"] == "privacy-spent"]
    assert len(logged) == 3 and logged[-1] == spent["epsilon"]
    page = report(["run"]).html
    assert "<th>epsilon</th>" in page and f"<td>{round(spent['epsilon'], 3)}</td>" in page


def test_a_method_that_cannot_be_covered_is_refused_in_a_sentence(gossamer: Command) -> None:
    shown = gossamer("run", "nst", *SMALL, *DP, "--out", "run")
    assert shown.code == 2 and "NST sends masks that clients choose by their data" in shown.err
    assert not Path("run").exists()


def test_what_cannot_be_read_is_refused_in_a_sentence(gossamer: Command) -> None:
    shown = gossamer("run", "fedavg", *SMALL, "--dp", "clip=1", "--out", "run")
    assert shown.code == 2 and "noise or epsilon, one of the two" in shown.err
