"""Keeps finished runs as small files, such as those of the demo for the README's picture.

gossamer demo
python tools/keep.py runs/demo/*/seed-1 -o results/demo
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gossamer.report.kept import keep
from gossamer.report.reading import read_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs, METHOD/seed-N")
    parser.add_argument("-o", "--out", type=Path, required=True, help="folder of the files")
    options = parser.parse_args()
    for folder in options.runs:
        print(keep(read_run(folder), options.out / f"{folder.parent.name}-{folder.name}.json"))


if __name__ == "__main__":
    main()
