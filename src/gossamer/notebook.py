"""Progress in a notebook: one output that is updated, and stays with the last figures."""

from __future__ import annotations

import html
import sys
from typing import Any

from gossamer.cli.progress import Figures, failure
from gossamer.engine.events import ClientFailed, Clock, Evaluated, Event, Finished, RoundFinished

BAR = (
    '<div style="font-family:monospace;font-size:90%">{title} '
    '<progress value="{done}" max="{total}" style="vertical-align:middle"></progress> '
    "round {done}/{total} · {figures}</div>"
)


def in_notebook() -> bool:
    """Whether the program runs in a notebook, whose outputs can be updated."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Notebook:
    """A bar and the figures of the last round; needs IPython, which every notebook has."""

    def __init__(self, rounds: int, title: str) -> None:
        from IPython import display

        output: Any = display
        self._figures = Figures(rounds)
        self._title = title
        self._failures: list[str] = []
        self._over = False
        self._handle: Any = output.display(self._content(), display_id=True, raw=True)

    def emit(self, event: Event, clock: Clock) -> None:
        self._figures.see(event, clock)
        match event:
            case ClientFailed():
                self._failures.append(failure(event))
            case Finished():
                self._over = True
            case RoundFinished() | Evaluated():
                pass
            case _:
                return
        self._handle.update(self._content(), raw=True)

    def close(self) -> None:
        """The last figures stay."""

    def _content(self) -> dict[str, str]:
        """The output as a page shows it, and as a text shows it."""
        figures = self._figures
        shown = figures.parts()[: -2 if self._over else None]
        parts = " · ".join(shown) if figures.round else "starting"
        bar = BAR.format(
            title=html.escape(self._title),
            done=figures.round,
            total=figures.rounds,
            figures=html.escape(parts),
        )
        lines = [
            f"{self._title}  round {figures.round}/{figures.rounds} · {parts}",
            *self._failures,
        ]
        page = bar + "".join(f"<div>{html.escape(text)}</div>" for text in self._failures)
        return {"text/html": page, "text/plain": "\n".join(lines)}
