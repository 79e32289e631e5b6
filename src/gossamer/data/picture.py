"""Pictures of partitions: class counts by client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gossamer.data.federation import Federation
from gossamer.data.inputs import Ints
from gossamer.data.tensors import Tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 300
"""Maximum number of clients shown, chosen evenly by size."""
COLOURS = (
    *("#3b6fb6", "#e8853d", "#4a9d6e", "#c8504f", "#8a6bb8"),
    *("#8c6d5b", "#d77fb3", "#7f8790", "#b5b13c", "#3fb0bd"),
)
INK, FAINT = "#22272e", "#8b949e"


def picture(what: Federation | Ints, path: str | Path, title: str | None = None) -> Path:
    """Draws class counts by client to a PNG, SVG or PDF file, whichever the name ends with.

    `what` is a federation, or a table of clients by classes.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("drawing needs matplotlib; install gossamer[plot]") from None
    path = Path(path)
    if path.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise ValueError(f"{path} ends with {path.suffix!r}; end it with .png, .svg or .pdf")
    sizes, shown, counts = table(what)
    figure = Figure(figsize=(10, 5.6), layout="constrained", facecolor="white")
    heading = title or _title(what, len(sizes))
    figure.suptitle(heading, x=0.012, ha="left", fontsize=13, weight="bold", color=INK)
    above, below = figure.subplots(2, 1, sharex=True)
    _bars(above, counts)
    _shares(below, counts)
    above.set_title(subtitle(sizes, counts), loc="left", fontsize=9, color=FAINT, pad=8)
    below.set_xlabel("client" if len(shown) == len(sizes) else "clients by size", color=INK)
    figure.savefig(path, dpi=160, metadata={"Date": None} if path.suffix == ".svg" else None)
    return path


def table(what: Federation | Ints) -> tuple[Ints, Ints, Ints]:
    """The sizes of all clients, which of them are shown, and their counts by class."""
    if isinstance(what, np.ndarray):
        if what.ndim != 2 or not what.size:
            raise ValueError(
                f"counts of shape {what.shape} are not a table; give clients by classes"
            )
        sizes = what.sum(axis=1)
        shown = _choose(sizes)
        return sizes, shown, what[shown]
    if isinstance(what, Tensors):
        return table(what.counts())
    sizes = np.asarray([client.examples for client in what.pool])
    shown = _choose(sizes)
    labels = [what.client(id).train.y.numpy() for id in shown.tolist()]
    return sizes, shown, np.stack([np.bincount(y, minlength=what.classes) for y in labels])


def _choose(sizes: Ints) -> Ints:
    """All clients in their order, or `MOST` of them in the order of their size."""
    if len(sizes) <= MOST:
        return np.arange(len(sizes))
    places = np.linspace(0, len(sizes) - 1, MOST).astype(np.int64)
    return np.argsort(-sizes, kind="stable")[places]


def _title(what: Federation | Ints, pool: int) -> str:
    if isinstance(what, np.ndarray):
        return f"{pool:,} clients"
    how = f"  ·  {what.partition}" if isinstance(what, Tensors) else ""
    return f"{what.name}{how}  ·  {len(what.pool):,} clients"


def subtitle(sizes: Ints, counts: Ints) -> str:
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    # The number of equally common classes that would be as varied: 1 to all of them.
    logs = np.log(np.where(shares > 0, shares, 1.0))
    varied = np.exp(-(shares * logs).sum(axis=1)).mean()
    some = "" if len(counts) == len(sizes) else f"   ·   {len(counts)} clients shown"
    return (
        f"{sizes.sum():,} training examples   ·   smallest {sizes.min():,}, "
        f"median {np.median(sizes):,.0f}, largest {sizes.max():,}   ·   "
        f"{varied:.1f} effective classes per client{some}"
    )


def _bars(axes: Axes, counts: Ints) -> None:
    clients, classes = counts.shape
    coloured = classes <= len(COLOURS)
    layers = counts if coloured else counts.sum(axis=1, keepdims=True)
    floor = np.zeros(clients)
    for label, layer in enumerate(layers.T):
        colour, top = COLOURS[label], floor + layer
        if clients <= 60:
            axes.bar(np.arange(clients), layer, 0.86, floor, color=colour, lw=0, label=label)
        else:
            edges = np.arange(clients + 1) - 0.5
            axes.stairs(top, edges, baseline=floor, fill=True, color=colour, lw=0, label=label)
        floor = top
    if coloured:
        handles, names = axes.get_legend_handles_labels()
        legend = axes.legend(
            handles[::-1],
            names[::-1],
            title="class",
            loc="center left",
            bbox_to_anchor=(1.0, 0.5),
            frameon=False,
            fontsize=8,
            title_fontsize=8,
            labelcolor=INK,
            handlelength=1.0,
            handleheight=0.9,
            labelspacing=0.25,
        )
        legend.set_in_layout(False)  # It stands above the colour bar, which makes the room.
    axes.set_ylabel("examples", color=INK)
    axes.set_ylim(0, 1.04 * max(float(floor.max()), 1.0))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    _plain(axes)


def _shares(axes: Axes, counts: Ints) -> None:
    from matplotlib.ticker import MaxNLocator

    clients, classes = counts.shape
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(
        shares.T,
        aspect="auto",
        origin="lower",
        cmap="Blues",
        vmin=0,
        vmax=max(float(shares.max()), 1e-9),
        interpolation="nearest",
        extent=(-0.5, clients - 0.5, -0.5, classes - 0.5),
    )
    axes.set_ylabel("class", color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= 20:
        axes.set_yticks(range(classes))
    scale = axes.figure.colorbar(image, ax=axes, pad=0.012, aspect=14)
    scale.set_label("share of the client's examples", fontsize=8, color=INK)
    scale.ax.tick_params(labelsize=8, colors=INK, length=0)
    scale.outline.set_visible(False)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=8, colors=INK, length=0)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(FAINT)
