"""Writes the tables of docs/arithmetic.md from benchmarks/results.

`tools/results.py` puts them into their places.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "docs" / "arithmetic.md",)
RESULTS = ROOT / "benchmarks" / "results"
DENSITIES = ("0.5", "0.2", "0.1", "0.05", "0.02", "0.01")


def steps(found: dict[str, Any]) -> str:
    """The speed-up for each model, one table for each build; memory is that of the best one."""
    tables = []
    for build, models in found["builds"].items():
        columns = [build, *DENSITIES] if tables else [build, *DENSITIES, "dense, MB", "sparse, MB"]
        lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        for name, row in models.items():
            cells = [name, *(f"{row['by_rule'][density]:.2f}" for density in DENSITIES)]
            if not tables:
                memory = row["memory_mb"]
                cells += [f"{memory[key]:.1f}" for key in ("torch_dense", "kernels_0.05")]
            lines.append(f"| {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    return "\n\n".join(tables)


def spafl(found: dict[str, Any]) -> str:
    """Seconds of a client's round by density."""
    rows = found["spafl"]
    return "\n".join(
        [
            "| density | " + " | ".join(f"{row['density']:.3f}" for row in rows) + " |",
            "|---" * (len(rows) + 1) + "|",
            "| seconds | " + " | ".join(f"{row['seconds']:.3f}" for row in rows) + " |",
            "| of FedAvg's | " + " | ".join(f"{row['to_fedavg']:.2f}" for row in rows) + " |",
        ]
    )


def single(found: dict[str, Any]) -> str:
    """One example: how many times as fast as the dense model in ONNX Runtime and in torch."""
    lines = []
    for name, row in found["models"].items():
        over = [row[f"times_as_fast_as_{other}"] for other in ("onnxruntime", "torch")]
        densities = list(over[0])
        if not lines:
            lines = ["| | " + " | ".join(densities) + " |", "|---" * (len(densities) + 1) + "|"]
        cells = [f"{over[0][density]:.1f} / {over[1][density]:.1f}" for density in densities]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def training(found: dict[str, Any]) -> str:
    """Seconds of local training of whole runs."""
    lines = [
        "| local training, seconds | FedAvg, torch | FedAvg | SPDST, density 0.05 | faster |",
        "|---|---|---|---|---|",
    ]
    for name in ("lenet5_caffe", "resnet18:width=32"):
        row = found[name]
        methods = ("fedavg, torch", "fedavg", "spdst")
        seconds = " | ".join(f"{row['seconds_of_training'][method]:.1f}" for method in methods)
        data = "Fashion-MNIST" if name == "lenet5_caffe" else "CIFAR-10"
        faster = f"{row['ratio_to_torch']:.1f} and **{row['ratio_of_training']:.1f} times**"
        lines.append(f"| {data}, `{name}` | {seconds} | {faster} |")
    return "\n".join(lines)


def pages() -> dict[Path, str]:
    """The pages with their tables."""
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    tables = {
        "arithmetic": steps(found["arithmetic"]),
        "single": single(found["single"]),
        "spafl": spafl(found["thresholds"]),
    }
    written = {}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for name, table in tables.items():
            before, mark, rest = text.partition(f"<!-- {name} -->\n")
            if mark:
                _, _, after = rest.partition(f"<!-- /{name} -->")
                text = f"{before}{mark}\n{table}\n\n<!-- /{name} -->{after}"
        written[path] = text
    return written
