"""The figure of a run for notebooks: its headline metric against rounds and against bits."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.task.metrics import titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gossamer.engine.summary import Summary

CURVES = {
    "global_score": "global model",
    "personal_mean": "clients' models",
    "valid_mean": "validation data",
}
COLOURS = ("#3b6fb6", "#e8853d", "#4a9d6e")


def plot(summary: Summary, path: str | Path | None = None) -> Figure:
    """Draws the curves of a run, each evaluation a point."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("drawing needs matplotlib; install gossamer[plot]") from None
    records = [record for record in summary.history if _evaluated(record)]
    if not records:
        raise ValueError("this run was never evaluated; run with `eval_every=1`")

    class Drawn(Figure):
        """A figure that notebooks show, without the global state of pyplot."""

        def _repr_png_(self) -> bytes:
            stream = io.BytesIO()
            self.savefig(stream, format="png", dpi=90)
            return stream.getvalue()

    figure = Drawn(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    sent = [(record["up"] + record["down"]) / 1e6 for record in records]
    for colour, (name, label) in zip(COLOURS, CURVES.items(), strict=True):
        values = [record[name] for record in records]
        if all(value is None for value in values):
            continue
        for axes, places in ((left, [record["round"] for record in records]), (right, sent)):
            axes.plot(places, values, color=colour, label=label, marker=".", markersize=4)
    left.set(xlabel="round", ylabel=titled(summary.metric), title=summary.method)
    right.set(xlabel="Mbit sent up and down")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False)
    if path is not None:
        figure.savefig(path, dpi=160)
    return figure


def _evaluated(record: dict[str, object]) -> bool:
    return any(record[name] is not None for name in CURVES)
