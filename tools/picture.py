"""Takes a picture of a report, with the browser of this machine.

gossamer demo
python tools/picture.py runs/demo/*/seed-1 -o report.png

The picture is the top of the page at the width of a desktop, in few colours, so that it is small.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from gossamer.report import report

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
COLOURS = 128
PATIENCE = 20_000
"""Milliseconds of the page's own time in which it draws its charts."""


def taken(page: str, width: int, height: int) -> Image.Image:
    """The page as a browser shows it."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise SystemExit(f"no browser here; one of {', '.join(BROWSERS)} is needed")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "page.html").write_text(page)
        how = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *(f"--user-data-dir={place / 'profile'}", f"--window-size={width},{height}"),
            *(f"--virtual-time-budget={PATIENCE}", f"--screenshot={place / 'shot.png'}"),
        ]
        command = [program, *how, (place / "page.html").as_uri()]
        subprocess.run(command, check=True, cwd=place, capture_output=True)
        with Image.open(place / "shot.png") as picture:
            return picture.convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs")
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--title", default="Gossamer demo")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=1395)
    wish = parser.parse_args()
    found = report(wish.runs, title=wish.title)
    if found.notices:
        raise SystemExit(f"no picture of a page that is incomplete: {found.notices[0]}")
    picture = taken(found.html, wish.width, wish.height)
    few = picture.quantize(COLOURS, dither=Image.Dither.NONE)
    wish.out.parent.mkdir(parents=True, exist_ok=True)
    few.save(wish.out, optimize=True)
    print(f"{wish.out}: {few.width} x {few.height}, {wish.out.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
