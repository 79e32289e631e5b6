"""Pages that are made from the code have all of it, and options that pages name are there."""

import re
import sys

import pytest
from transcripts import ROOT

from gossamer import fields
from gossamer.cli import COMMANDS
from gossamer.config import Experiment
from gossamer.engine import Options
from gossamer.methods import METHODS

sys.path.insert(0, str(ROOT / "tools"))

import pages

RECORDS = [Experiment(), Options(), *METHODS.values()]


def test_every_command_is_there_with_its_help() -> None:
    made = pages.commands()
    for name, (_, text) in COMMANDS.items():
        assert f"## gossamer {name}\n" in made
        assert f"usage: gossamer {name} " in made
        assert f"  {name}" in made and text in made


def test_every_setting_of_every_method_is_there() -> None:
    made = pages.options()
    for method in {type(method): method for method in METHODS.values()}.values():
        name = next(name for name, each in METHODS.items() if type(each) is type(method))
        part = made.partition(f"## {name}\n")[2].partition("\n## ")[0]
        flags = re.findall(r"^\| `--([\w-]+)` \|", part, re.MULTILINE)
        assert flags == [fields.flag(item.name) for item in fields.settings(method)]
    for row in re.findall(r"^\|.*\|$", made, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) == 4, row


def test_every_name_is_a_method_or_a_preset() -> None:
    made, told = pages.presets(), pages.options()
    for name in METHODS:
        assert (f"| `{name}` |" in made) != (f"\n## {name}\n" in told)
    assert "`--lambda0 5e-05`" in made


def test_a_page_gets_what_it_asks_for_and_nothing_else() -> None:
    assert "usage: gossamer" in pages.on_page_markdown("# A\n\n<!-- commands -->\n")
    assert pages.on_page_markdown("# A\n\n<!-- fails -->\n") == "# A\n\n<!-- fails -->\n"


def test_options_that_papers_contradict_can_be_chosen() -> None:
    known: dict[str, set[str]] = {}
    for record in RECORDS:
        for item in fields.settings(record):
            kinds = {"yes", "no"} if isinstance(item.default, bool) else set(item.choices)
            known.setdefault(fields.flag(item.name), set()).update(kinds)
    text = (ROOT / "docs" / "contradictions.md").read_text().replace("`--sparsity`", "")
    found = re.findall(r"--([a-z][\w-]*)(?: ([\w.,-]+))?", text)
    assert len(found) > 60
    for flag, value in found:
        kinds = known.get(flag) or known[flag.removeprefix("no-")]
        if value and kinds and kinds != {"yes", "no"}:
            assert value in kinds, (flag, value)


def test_presets_that_papers_contradict_are_there() -> None:
    text = (ROOT / "docs" / "contradictions.md").read_text()
    named = set(re.findall(r"`([a-z][a-z-]*-(?:code|release|bytecode))`", text))
    assert named == {name for name in METHODS if name.endswith(("-code", "-release", "-bytecode"))}


def test_examples_in_docstrings_become_code() -> None:
    pytest.importorskip("griffe", reason="needs what `make docs` installs")
    from doctests import fenced

    text = "A sum.\n\n>>> [1, 2][0]\n1\n\nAnd more."
    assert fenced(text) == "A sum.\n\n```pycon\n>>> [1, 2][0]\n1\n```\n\nAnd more."
    assert fenced("A sum.") == "A sum."
