"""The project as others meet it: metadata, a page for package indexes, source distribution."""

import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import gossamer

ROOT = Path(__file__).parents[1]


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_the_version_has_one_source() -> None:
    assert "version" not in project()
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited[1] == gossamer.__version__


def test_the_project_has_addresses() -> None:
    assert {"Repository", "Documentation", "Issues", "Changelog"} <= set(project()["urls"])  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "-q", "sdist", "-d", str(folder)]
    egg = ["egg_info", "--egg-base", str(folder)]
    subprocess.run([*command[:2], "-q", *egg, *command[3:]], cwd=ROOT, check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (unpacked,) = (path.parent for path in folder.glob("gossamer-*/PKG-INFO"))
    return unpacked


def test_a_source_distribution_can_run_the_tests_and_build_the_site(source: Path) -> None:
    for name in ("tests/test_packaging.py", "docs/index.md", "mkdocs.yml", "Makefile", "tools"):
        assert (source / name).exists(), name
    assert (source / "src/gossamer/arithmetic/native/gossamer.cpp").exists()
    assert not list(source.rglob("*.so"))


def test_all_links_of_the_page_for_package_indexes_are_absolute(source: Path) -> None:
    page = (source / "PKG-INFO").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]+)\)", page)
    assert any(link.endswith(".svg") and "/raw/main/docs/pictures/" in link for link in links)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_workflows_and_templates_are_valid_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    files = sorted((ROOT / ".github").rglob("*.yml"))
    assert len(files) >= 4
    for path in files:
        assert yaml.safe_load(path.read_text()), path
