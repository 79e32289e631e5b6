"""How benchmarks write their files."""

import json
import re
from collections.abc import Mapping

LISTS = re.compile(r"\[[^{}\"]*\]")


def text(found: Mapping[str, object]) -> str:
    """JSON for people: a line each, except that lists of numbers take one."""
    return LISTS.sub(_in_one_line, json.dumps(found, indent=2)) + "\n"


def _in_one_line(numbers: re.Match[str]) -> str:
    return " ".join(numbers[0].split()).replace("[ ", "[").replace(" ]", "]")
