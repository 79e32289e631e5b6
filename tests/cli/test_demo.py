"""The demo: its table, the sentence that sums it up, and the page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from cli.conftest import Outcome

Command = Callable[..., Outcome]


def test_the_demo_sums_up_its_table_and_opens_its_page_with_the_same_sentence(
    gossamer: Command,
) -> None:
    found = gossamer("demo", "--rounds", "2", "--out", "demo", "--json")
    assert found.code == 0, found.err
    rows = {row["run"]: row["mean"] for row in found.json["rows"]}
    words = " ".join(found.out.split())
    (sentence,) = re.findall(r"On their own test data, clients reach .*? training time\.", words)
    for name, title in {"fedsparse": "FedSparse", "spdst": "SPDST", "spafl": "SpaFL"}.items():
        accuracy = f"{100 * rows[name]['personal_mean']:.1f} % with {title}"
        bits = f"{100 * rows[name]['sent'] / rows['fedavg']['sent']:.2g} % of the bits"
        assert f"{accuracy}, for {bits}" in sentence
    page = " ".join(Path("demo/report.html").read_text().split())
    opening = page.partition('<p class="introduction')[2]
    assert opening.startswith(f' lead">{sentence}</p>')


def test_a_method_without_a_global_model_has_no_global_figure(gossamer: Command) -> None:
    words = ["--data", "synthetic", "--pool", "6", "--clients", "2", "--rounds", "1"]
    found = gossamer("compare", "fedavg", "spafl", *words, "--out", "two", "--json")
    assert found.code == 0, found.err
    rows = {row["run"]: row["mean"] for row in found.json["rows"]}
    assert rows["spafl"]["global_accuracy"] is None and rows["spafl"]["personal_mean"] is not None
    assert rows["fedavg"]["global_accuracy"] is not None
    assert all(row["training_seconds"] > 0 for row in rows.values())
    (line,) = (line for line in found.out.splitlines() if re.match(r"[* ] spafl +–", line))
    assert line
    alone = gossamer("run", "spafl", *words, "--out", "one")
    assert "global accuracy" not in alone.out and "personal accuracy" in alone.out
