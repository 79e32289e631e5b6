"""Writes the tables of docs/arithmetic.md from benchmarks/results.

`tools/results.py` puts them into their places.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
DENSITIES = ("0.5", "0.2", "0.1", "0.05", "0.02", "0.01")


def read(name: str) -> Any:
    """The result of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def steps() -> str:
    """The speed-up for each model, one table for each build; memory is that of the best one."""
    tables = []
    for build, models in read("arithmetic")["builds"].items():
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


def spafl() -> str:
    """Seconds of a client's round by density."""
    rows = read("thresholds")["spafl"]
    return "\n".join(
        [
            "| density | " + " | ".join(f"{row['density']:.3f}" for row in rows) + " |",
            "|---" * (len(rows) + 1) + "|",
            "| seconds | " + " | ".join(f"{row['seconds']:.3f}" for row in rows) + " |",
            "| of FedAvg's | " + " | ".join(f"{row['to_fedavg']:.2f}" for row in rows) + " |",
        ]
    )


def single() -> str:
    """One example: how many times as fast as the dense model in ONNX Runtime and in torch."""
    lines = []
    for name, row in read("single")["models"].items():
        over = [row[f"times_as_fast_as_{other}"] for other in ("onnxruntime", "torch")]
        densities = list(over[0])
        if not lines:
            lines = ["| | " + " | ".join(densities) + " |", "|---" * (len(densities) + 1) + "|"]
        cells = [f"{over[0][density]:.1f} / {over[1][density]:.1f}" for density in densities]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def training() -> str:
    """Seconds of local training of whole runs."""
    found = read("training")
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
