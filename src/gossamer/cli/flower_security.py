"""What `serve` and `join` ask about certificates, and whether Flower is installed."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

from gossamer.cli.parsing import Parser, Refusal

PORT = 9093


def add_security(parser: Parser) -> None:
    """The options for certificates."""
    parser.add_argument("--certs", default="", help="a folder created by `gossamer flower certs`")
    parser.add_argument(
        "--insecure",
        action="store_true",
        help="no encryption, no keys, no signatures: anybody can join, and nodes run any app",
    )


def security(options: argparse.Namespace, needed: Sequence[str]) -> Path | None:
    """The folder of certificates; None only with --insecure."""
    folder, insecure = options.certs, options.insecure
    if insecure:
        if folder:
            raise Refusal("--certs and --insecure exclude each other; use one of the two")
        return None
    if not folder:
        raise Refusal(
            "name certificates with --certs (`gossamer flower certs` creates them), "
            "or use --insecure"
        )
    for name in needed:
        if not (Path(folder) / name).exists():
            raise Refusal(f"{folder} has no {name}; `gossamer flower certs {folder}` creates it")
    return Path(folder)


def needs_flower() -> None:
    """Refuses to go on without Flower."""
    if importlib.util.find_spec("flwr") is None:
        raise Refusal("this needs Flower: pip install 'gossamer[flower]'")
