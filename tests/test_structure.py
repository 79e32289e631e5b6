"""What holds for the whole source tree: short files and signatures, a short path of messages."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MOST_PARAMETERS = 8
MOST_FILES = 25 + 3
"""That a message of a FedAvg round passes through; three of them judge what clients send."""
LONG = {"spafl", "flash", "fedsparse", "prunefl", "fedtiny"}
"""Methods whose papers have variants or ablations of their own."""


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


def counter() -> Any:
    """The script that counts lines."""
    spec = importlib.util.spec_from_file_location("lines", ROOT / "tools" / "lines.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_of_lines_is_up_to_date() -> None:
    lines = counter()
    page = lines.PAGE.read_text(encoding="utf-8")
    assert page == lines.written(page), "run python tools/lines.py"


def test_methods_and_files_stay_short() -> None:
    lines = counter()
    now = lines.totals(ROOT / "src" / "gossamer")
    assert now["median of methods"] <= 170 and now["median of all files"] <= 130
    assert now["algorithms"] + now["parts"] <= 8417 * 2 / 3
    assert now["algorithms"] + now["parts"] + now["as_published"] <= 9000
    for path in (ROOT / "src" / "gossamer" / "methods").glob("*.py"):
        assert lines.lines(path) <= (260 if path.stem in LONG else 200), path.name
    sources = ("*.py", "*.h", "*.cpp")
    for path in (each for kind in sources for each in (ROOT / "src").rglob(kind)):
        assert lines.lines(path) <= 400, path.name
