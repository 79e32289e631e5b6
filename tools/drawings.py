"""Draws the pictures of the explanation pages as SVG: a round, a message, the layout of kernels.

python tools/drawings.py          # writes docs/pictures/*.svg
python tools/drawings.py --check  # fails if a file differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"
INK, SOFT, RULE, TEAL, PALE, SAND = "#24292f", "#5b6770", "#c6cdd3", "#00796b", "#e0f2f1", "#fff3e0"


def framed(width: int, height: int, parts: Iterable[str], title: str) -> str:
    """A whole picture on white, so that it can be read on light and dark pages."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'font-family="system-ui, sans-serif" font-size="14" fill="{INK}">',
            f"<title>{escape(title)}</title>",
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8Z" fill="{TEAL}"/></marker>'
            "</defs>",
            f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, **style: str) -> str:
    """A line of text; names of attributes have underscores for hyphens."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in style.items())
    return f'<text x="{x:g}" y="{y:g}"{more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str = "#ffffff") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="5" fill="{fill}" '
        f'stroke="{RULE}"/>'
    )


def arrow(x: float, y: float, to: float, words: str, code: str) -> list[str]:
    """A message between two lifelines, named above it."""
    middle = (x + to) / 2
    return [
        f'<path d="M{x:g} {y:g}H{to:g}" stroke="{TEAL}" stroke-width="2" marker-end="url(#tip)"/>',
        text(middle, y - 22, code, text_anchor="middle", font_family="monospace", fill=TEAL),
        text(middle, y - 7, words, text_anchor="middle", font_size="12", fill=SOFT),
    ]


def step(x: float, y: float, code: str, words: str, width: float = 200) -> list[str]:
    """Something that one side does, on its lifeline."""
    return [
        box(x - width / 2, y, width, 44, PALE),
        text(x, y + 18, code, text_anchor="middle", font_family="monospace"),
        text(x, y + 35, words, text_anchor="middle", font_size="12", fill=SOFT),
    ]


def a_round() -> str:
    """The sequence of one round."""
    server, engine, client = 130, 450, 770
    parts: list[str] = []
    for x, name in ((server, "server (method)"), (engine, "engine"), (client, "client (method)")):
        parts.append(f'<path d="M{x} 52V612" stroke="{RULE}" stroke-dasharray="4 4"/>')
        parts.append(box(x - 90, 18, 180, 34, SAND))
        parts.append(text(x, 40, name, text_anchor="middle", font_weight="600"))
    parts += step(server, 68, "cohort", "draws the clients of the round")
    parts += step(server, 128, "down", "the message to one client")
    parts += arrow(server, 218, engine - 89, "record of tensors", "Down")
    parts += step(engine, 196, "encode", "bytes are counted here", 170)
    parts += arrow(engine + 85, 232, client - 6, "bytes, over threads or a network", "")
    parts += step(client, 252, "begin", "starts from Down and Local")
    parts += step(client, 312, "step", "once per mini-batch")
    parts += step(client, 372, "finish", "the reply, and what is kept")
    parts.append(text(client + 106, 336, "× batches", font_size="12", fill=SOFT))
    parts += arrow(client, 452, engine + 91, "bytes", "Up")
    parts += step(engine, 430, "decode, check", "schema, limits, ledger", 170)
    parts += arrow(engine - 85, 480, server + 6, "replies in the order of client ids", "")
    parts += step(server, 500, "merge", "the next state of the server")
    parts += step(engine, 556, "evaluate, log, checkpoint", "then the next round", 220)
    parts.append(
        text(
            client,
            452 + 28,
            "Local stays at the client",
            text_anchor="middle",
            font_size="12",
            fill=SOFT,
        )
    )
    return framed(970, 624, parts, "A round: what the server, the engine and a client do")


def a_message() -> str:
    """The parts of a message."""
    fields: Sequence[tuple[str, str, int, str]] = (
        ("version", "1 byte", 90, SAND),
        ("schema hash", "8 bytes", 120, SAND),
        ("numbers, texts", "as they come", 150, "#ffffff"),
        ("masks", "their entropy, about", 190, PALE),
        ("counts", "of packed values", 130, "#ffffff"),
        ("values", "4 bytes each, without positions", 250, PALE),
    )
    parts, x = [text(20, 34, "One message", font_weight="600")], 20.0
    for name, size, width, fill in fields:
        parts.append(box(x, 50, width, 62, fill))
        parts.append(text(x + width / 2, 76, name, text_anchor="middle"))
        parts.append(text(x + width / 2, 98, size, text_anchor="middle", font_size="12", fill=SOFT))
        x += width
    parts.append(text(20, 160, "A sparse layer, density 4/12", font_weight="600"))
    kept = (1, 4, 5, 10)
    weights = {1: "0.3", 4: "−0.7", 5: "0.2", 10: "0.9"}
    for place in range(12):
        parts.append(box(20 + 44 * place, 176, 44, 36, PALE if place in kept else "#ffffff"))
        middle = 42 + 44 * place
        shown = weights.get(place, "0")
        shade = INK if place in kept else RULE
        parts.append(text(middle, 199, shown, text_anchor="middle", fill=shade))
    parts.append(text(580, 199, "the layer in memory", fill=SOFT))
    parts.append(text(20, 252, "mask", font_family="monospace", fill=TEAL))
    for place, gap in enumerate(("1", "2", "0", "4")):
        parts.append(box(110 + 44 * place, 234, 44, 28, PALE))
        parts.append(text(132 + 44 * place, 253, gap, text_anchor="middle"))
    parts.append(text(580, 253, "gaps between ones, Golomb-coded", fill=SOFT))
    parts.append(text(20, 298, "values", font_family="monospace", fill=TEAL))
    for place, at in enumerate(kept):
        parts.append(box(110 + 56 * place, 280, 56, 28, PALE))
        parts.append(text(138 + 56 * place, 299, weights[at], text_anchor="middle"))
    parts.append(text(580, 299, "the ones in order: no indices", fill=SOFT))
    return framed(970, 326, parts, "The parts of a message, and how a sparse layer is encoded")


def kernels() -> str:
    """How activations lie in memory, and what a sparse convolution reads."""
    parts = [text(20, 34, "Activations: the batch is innermost", font_weight="600")]
    for row in range(3):
        y = 50 + 40 * row
        parts.append(text(20, y + 23, f"row {row}", fill=SOFT))
        for column in range(6):
            edge = column in (0, 5)
            parts.append(box(80 + 74 * column, y, 74, 34, "#f1f3f4" if edge else PALE))
            words = "0" if edge else f"pixel {column - 1}"
            shade = SOFT if edge else INK
            parts.append(text(117 + 74 * column, y + 22, words, text_anchor="middle", fill=shade))
    parts.append(text(540, 72, "zero columns are the padding", fill=SOFT))
    parts.append(
        f'<path d="M191 164V198" stroke="{TEAL}" stroke-width="2" marker-end="url(#tip)"/>'
    )
    parts.append(text(80, 222, "one pixel:", fill=SOFT))
    for example in range(8):
        words = "…" if example == 6 else "ex. B−1" if example == 7 else f"ex. {example}"
        parts.append(box(160 + 72 * example, 202, 72, 32, SAND))
        parts.append(text(196 + 72 * example, 223, words, text_anchor="middle"))
    parts.append(
        text(
            160,
            254,
            "one or more vector registers: one instruction serves all examples",
            font_size="12",
            fill=SOFT,
        )
    )
    parts.append(text(20, 296, "A sparse convolution", font_weight="600"))
    for place, (code, words) in enumerate(
        (
            ("sums = bias", "a tile of output pixels × examples, in registers"),
            (
                "for (offset, weight) of the non-zeros:",
                "a list per output channel, made from the mask",
            ),
            ("    sums += weight * input[tile + offset]", "one load per multiplication, no zeros"),
        )
    ):
        y = 322 + 24 * place
        parts.append(
            f'<text x="20" y="{y}" font-family="monospace" xml:space="preserve">'
            f"{escape(code)}</text>"
        )
        parts.append(text(420, y, words, fill=SOFT))
    return framed(
        900, 388, parts, "The layout of activations, and the loop of a sparse convolution"
    )


DRAWINGS = {"round.svg": a_round, "message.svg": a_message, "kernels.svg": kernels}


def main() -> None:
    differing = []
    for name, draw in DRAWINGS.items():
        path, drawn = PICTURES / name, draw()
        if not path.exists() or path.read_text("utf-8") != drawn:
            differing.append(name)
            if "--check" not in sys.argv:
                path.write_text(drawn, "utf-8")
    if "--check" in sys.argv and differing:
        sys.exit(f"not as tools/drawings.py draws them: {', '.join(differing)}")


if __name__ == "__main__":
    main()
