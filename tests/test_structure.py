"""What holds for the whole source tree: short signatures, and a short path of messages."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_PARAMETERS = 8
MOST_FILES = 25
"""That a message of a FedAvg round passes through."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """How many parameters a function has, without `self` and `cls`."""
    listed = function.args
    named = [*listed.posonlyargs, *listed.args, *listed.kwonlyargs]
    own = sum(each.arg in ("self", "cls") for each in named[:1])
    return len(named) - own + (listed.vararg is not None) + (listed.kwarg is not None)


def test_no_function_has_more_than_eight_parameters() -> None:
    functions = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    offenders = [
        f"{path.relative_to(ROOT)}:{node.lineno} has {parameters(node)}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, functions) and parameters(node) > MOST_PARAMETERS
    ]
    assert not offenders


def test_the_counter_of_parameters_counts_every_kind() -> None:
    (function,) = ast.parse("def f(self, a, /, b, *c, d=1, **e): ...").body
    assert isinstance(function, ast.FunctionDef) and parameters(function) == 5


def test_messages_of_a_round_pass_through_few_files() -> None:
    # In a process of its own, where no cache is warm.
    words = [sys.executable, str(ROOT / "tools" / "crossings.py")]
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    files, calls = (int(word) for word in told.split() if word.isdecimal())
    assert 15 < files <= MOST_FILES and calls > files
