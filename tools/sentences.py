"""Measured figures inside sentences of the pages: `<!--NAME-->18<!--/-->`.

`tools/results.py` writes the figure between the two comments from the study that NAME says.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

import privacy
import robust

import arithmetic
import compression
import devices
from gossamer.report.curves import last

PLACE = re.compile(r"<!--([\w-]+)-->(.*?)<!--/-->", re.DOTALL)


def filled(text: str) -> str:
    """A page with the figures of its sentences.

    Raises:
        KeyError: a sentence names a figure that is not in `FIGURES`.
    """
    return PLACE.sub(lambda place: f"<!--{place[1]}-->{FIGURES[place[1]]()}<!--/-->", text)


def _sent(contender: str, *directions: str) -> float:
    """Bits that a contender of the study of compression sends in a round, on average."""
    runs = [run for run in compression.study()["runs"] if run["contender"] == contender]
    return fmean(sum(run[way] for way in directions) / run["rounds"] for run in runs)


def _times_fewer(contender: str, other: str, *directions: str) -> str:
    return f"{_sent(other, *directions) / _sent(contender, *directions):.0f}"


def _leanest() -> str:
    """The contender without SpaFL that sends the fewest bits a round."""
    names = compression.study()["settings"]["contenders"]
    others = [name for name in names if not name.startswith("SpaFL")]
    return min(others, key=lambda name: _sent(name, "up", "down"))


def _robust(method: str, rule: str, attack: str = "none", hostile: float = 0.0) -> float:
    """The accuracy in percent of a cell of the robust study."""
    wanted = {"method": method, "aggregate": rule, "attack": attack, "hostile": hostile}
    (run,) = (run for run in robust.study() if wanted.items() <= run.items())
    return 100 * fmean(run["accuracy"])


def _loss(method: str, rule: str, **attack: Any) -> str:
    return f"{_robust(method, 'mean') - _robust(method, rule, **attack):.0f}"


def _masks(code: str, case: str, digits: int) -> str:
    over = arithmetic.read("masks")[code][case]["bits_over_limit"]
    return f"{over:.{digits}f}"


def _density(way: str) -> str:
    """The density of the server's model at the end of a way of the study of devices."""
    found = [last(run.curve("density")) for run in devices.read()[way]]
    return f"{fmean(each for each in found if each is not None):.2g}"


def _noise(method: str, level: str) -> str:
    """The norm of the noise in the mean, in clips."""
    spent = privacy.seeds(method, level)[0]["privacy"]
    return f"{spent['noise'] * math.sqrt(privacy.SENT[method]) / privacy.CLIENTS:.2g}"


FIGURES: Mapping[str, Callable[[], str]] = {
    "qsgd-upload": lambda: _times_fewer("qsgd", "dense", "up"),
    "spafl-dense": lambda: _times_fewer("SpaFL", "dense", "up", "down"),
    "spafl-leanest": lambda: _times_fewer("SpaFL", _leanest(), "up", "down"),
    "spdst-flipped": lambda: _loss("spdst", "mean", attack="flipped", hostile=0.3),
    "fedpm-median": lambda: _loss("fedpm", "median"),
    "spdst-median": lambda: _loss("spdst", "median"),
    "spdst-krum": lambda: _loss("spdst", "krum:6"),
    "masks-random": lambda: _masks("rice", "lenet", 3),
    "masks-trained": lambda: _masks("rice", "lenet_trained", 2),
    "masks-trained-ans": lambda: _masks("ans", "lenet_trained", 2),
    "masks-moved": lambda: _masks("rice", "lenet_given", 3),
    "fedsparse-density": lambda: _density("fedsparse"),
    "noise-least": lambda: _noise("fedavg", "8"),
    "noise-at-2": lambda: _noise("fedavg", "2"),
    "noise-most": lambda: _noise("fedavg", "1"),
}
