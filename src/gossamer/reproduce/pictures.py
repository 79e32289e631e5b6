"""Figures of the papers, drawn from the runs of a table: masks, sparsity, accuracy for traffic."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gossamer.report import Run
from gossamer.report.curves import table
from gossamer.report.figures import main_score
from gossamer.report.groups import Group
from gossamer.report.runs import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Rows = Mapping[str, Sequence[Run]]
"""Runs by the title of their row; they differ in their seeds."""
LAYERS = 24
"""Layers whose names fit below a panel."""


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Writes every picture that the runs have figures for, as SVG.

    Args:
        rows: The runs, from folders or from kept results.
        folder: Is made if needed.

    Returns:
        The paths of the pictures.

    Raises:
        ImportError: matplotlib is not installed.
    """
    try:
        from matplotlib import colormaps, rc_context
        from matplotlib.figure import Figure as Drawing
    except ImportError:
        raise ImportError("pictures need matplotlib; install gossamer[plot]") from None
    paths = []
    for name, (panels, fill) in PICTURES.items():
        figure = Drawing(layout="constrained")
        axes = figure.subplots(1, panels, squeeze=False)[0]
        for panel in axes:
            panel.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined]
        if not fill(rows, list(axes)):
            continue
        entries = _finish(figure, list(axes))
        # The legend is below the panels, a line for each entry.
        figure.set_size_inches(2.4 + 4 * panels, 3.6 + 0.2 * entries)
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{name}.svg")
        # Without dates and random names, so that the same runs give the same file.
        with rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
            figure.savefig(paths[-1], metadata={"Date": None})
    return paths


def _mismatch(rows: Rows, axes: Sequence[Axes]) -> int:
    """How far the masks of clients are apart, or the server's moved, by round and by layer."""
    lines = 0
    by_round, between, by_layer = axes
    for number, (title, runs) in enumerate(rows.items()):
        for panel, name in ((by_round, "mismatch"), (between, "client_mismatch")):
            if any(run.curve(name) for run in runs):
                lines += _line(panel, title, runs, name, color=_color(number))
        if layers := _by_layer(runs):
            names = list(layers)[:LAYERS]
            values = [layers[each] for each in names]
            by_layer.plot(names, values, marker=".", label=title, color=_color(number))
    by_round.set(title="server, from round to round", xlabel="round", ylabel="mask mismatch")
    between.set(title="between the clients of a round", xlabel="round")
    by_layer.set(title="server, mean over rounds", xlabel="layer")
    by_layer.tick_params(axis="x", rotation=90, labelsize=6)
    return lines


def _layers(rows: Rows, axes: Sequence[Axes]) -> int:
    """How far each layer of the server's mask moved, by round: a panel for each of three rows."""
    moving = {title: runs for title, runs in rows.items() if any(_by_layer(runs).values())}
    for panel, (title, runs) in zip(axes, moving.items(), strict=False):
        for number, layer in enumerate(list(_by_layer(runs))[:LAYERS]):
            curves = [run.layers.get(layer, {}).get("mismatch", {}) for run in runs]
            rounds = sorted({at for curve in curves for at in curve})
            means = [statistics.fmean(c[at] for c in curves if at in c) for at in rounds]
            panel.plot(rounds, means, label=layer, color=_color(number))
        panel.set(title=title, xlabel="round")
    axes[0].set_ylabel("mask mismatch of the server")
    for panel in axes[len(moving) :]:
        panel.set_axis_off()
    return len(moving)


def _sparsity(rows: Rows, axes: Sequence[Axes]) -> int:
    """The sparsity of models by round."""
    (panel,) = axes
    lines = 0
    for title, runs in rows.items():
        removed = next((n for n in ("removed", "zeros") if any(r.curve(n) for r in runs)), "")
        density = next(
            (n for n in ("personal_density", "density") if any(r.curve(n) for r in runs)), ""
        )
        if removed or density:
            lines += _line(panel, title, runs, removed or density, flip=not removed)
    panel.set(xlabel="round", ylabel="sparsity")
    return lines


def _clients(rows: Rows, axes: Sequence[Axes]) -> int:
    """The sparsity of each client's model at the end, clients in descending order."""
    (panel,) = axes
    lines = 0
    for title, runs in rows.items():
        each = [sorted(1 - density for density in run.densities)[::-1] for run in runs]
        each = [values for values in each if values]
        if each:
            shares = [(place + 0.5) / len(each[0]) for place in range(len(each[0]))]
            means = [statistics.fmean(column) for column in zip(*each, strict=False)]
            panel.plot(shares[: len(means)], means, label=title)
            lines += 1
    panel.set(xlabel="share of clients", ylabel="sparsity of the client's model, last test")
    return lines


def _traffic(rows: Rows, axes: Sequence[Axes]) -> int:
    """Accuracy against what was sent."""
    (panel,) = axes
    main = main_score([Group(title, tuple(runs)) for title, runs in rows.items()])
    lines = 0
    for title, runs in rows.items():
        found = table([run.curves for run in runs], [main], ["up", "down"])
        if main not in found or "up" not in found:
            continue
        points = [
            ((up + down) / 8e9, value)
            for up, down, value in zip(found["up"], found["down"], found[main], strict=True)
            if up is not None and down is not None and value is not None
        ]
        if points:
            panel.plot(*zip(*points, strict=True), label=title)
            lines += 1
    own = main == "personal_mean"
    panel.set(
        xlabel="GB sent up and down",
        ylabel="accuracy of clients' models" if own else "accuracy of the server's model",
    )
    panel.set_xscale("log")
    panel.xaxis.set_minor_formatter(lambda value, place: "")
    return lines


PICTURES: Mapping[str, tuple[int, Callable[[Rows, Sequence[Any]], int]]] = {
    "mismatch": (3, _mismatch),
    "layers": (3, _layers),
    "sparsity": (1, _sparsity),
    "clients": (1, _clients),
    "traffic": (1, _traffic),
}
"""By name: the number of panels, and what draws them and counts its lines."""


def _color(number: int) -> Any:
    """The same in all panels of a picture."""
    from matplotlib import colormaps

    return colormaps["tab20"](number % 20)


def _line(
    panel: Axes,
    title: str,
    runs: Sequence[Run],
    name: str,
    flip: bool = False,
    color: Any = None,
) -> int:
    """The mean of a figure over seeds by round, with its standard error as a band."""
    found = table([run.curves for run in runs], [name])
    points = [
        (at, 1 - value if flip else value, error or 0.0)
        for at, value, error in zip(
            found["round"],
            found[name],
            found.get(f"{name}±", [None] * len(found[name])),
            strict=True,
        )
        if at is not None and value is not None
    ]
    rounds, values, errors = zip(*points, strict=True)
    (line,) = panel.plot(rounds, values, label=title, color=color)
    if any(errors):
        low, high = (
            [v + sign * e for v, e in zip(values, errors, strict=True)] for sign in (-1, 1)
        )
        panel.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    return 1


def _by_layer(runs: Sequence[Run]) -> dict[str, float]:
    """The mean mismatch of each layer over rounds and seeds."""
    means: dict[str, list[float]] = {}
    for run in runs:
        for layer, curves in run.layers.items():
            curve: Curve = curves.get("mismatch", {})
            if curve:
                means.setdefault(layer, []).append(statistics.fmean(curve.values()))
    return {layer: statistics.fmean(values) for layer, values in means.items()}


def _finish(figure: Figure, axes: Sequence[Axes]) -> int:
    """Grids, and one legend for all panels; returns how many entries it has."""
    entries: dict[str, Any] = {}
    for panel in axes:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        entries.values(), entries, loc="outside lower center", frameon=False, fontsize="small"
    )
    return len(entries)
