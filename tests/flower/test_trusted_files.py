"""Signatures of apps, files trusted by their hash, and what a killed server leaves behind."""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'gossamer[flower]'")

from gossamer.cli import flower_processes, main
from gossamer.cli.flower_processes import alone, leftovers
from gossamer.cli.join import _reason
from gossamer.cli.parsing import Refusal
from gossamer.config import read
from gossamer.engine.events import CONFIG
from gossamer.flower import certs, signing, trust
from gossamer.flower.commands import Member
from gossamer.flower.project import PACKAGE

SMALL = ["--data", "fmnist-mini", "--pool", "4", "--rounds", "3", "--clients", "3"]
MODEL = """from torch import nn


def build(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))
"""
METHOD = "from gossamer import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n"
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A signed project with a method and a model of its operator's own."""
    folder = tmp_path_factory.mktemp("operator")
    (folder / "my.py").write_text(METHOD)
    (folder / "model").mkdir()
    (folder / "model" / "my.py").write_text(MODEL)
    words = ["--method", f"{folder}/my.py:Mine", "--model", f"{folder}/model/my.py:build", *SMALL]
    assert main(["flower", "init", str(folder / "app"), *words]) == 0
    certs.make(folder / "certs", [], 1)
    assert main(["flower", "sign", str(folder / "app"), "--key", f"{folder}/certs/operator"]) == 0
    return folder / "app"


@pytest.fixture(scope="module")
def content(app: Path) -> bytes:
    return signing.packed(app)


def hashes() -> list[str]:
    return [hashlib.sha256(text.encode()).hexdigest() for text in (METHOD, MODEL)]


def test_own_files_are_part_of_the_app_and_found_beside_its_configuration(
    app: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = {path.name for path in (app / PACKAGE).iterdir()}
    assert {"own_0_my.py", "own_1_my.py"} < names
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in (app / PACKAGE).glob("*.*"):
        (moved / path.name).write_bytes(path.read_bytes())
    monkeypatch.chdir(tmp_path)
    config = read(moved / CONFIG, shipped=True)
    method, task, _ = config.build()
    assert type(method).__name__ == "Mine"
    assert [leaf.shape for leaf in task.layout.leaves.values()] == [(10, 784), (10,)]
    assert str(app.parent) not in (moved / CONFIG).read_text()


def test_a_signature_holds_for_the_app_as_it_was_signed(app: Path, tmp_path: Path) -> None:
    public = app.parent / "certs" / certs.OPERATOR_PUBLIC
    found = signing.read(app, public)
    assert found.app == hashlib.sha256(signing.packed(app)).hexdigest()
    certs.make(tmp_path, [], 1)
    with pytest.raises(ValueError, match="of another key"):
        signing.read(app, tmp_path / certs.OPERATOR_PUBLIC)
    path, text = app / PACKAGE / "client.py", (app / PACKAGE / "client.py").read_text()
    path.write_text(text + "\n# changed\n")
    try:
        with pytest.raises(ValueError, match=r"is for another app .* gossamer flower sign"):
            signing.read(app, public)
    finally:
        path.write_text(text)
    kept = (app / signing.FILE).read_text()
    for damage, reason in (
        (kept.replace('"signature": "', '"signature": "A'), "not valid|damaged"),
        ("{}", "is damaged"),
        (None, "is not signed, so nodes would refuse it"),
    ):
        if damage is None:
            (app / signing.FILE).unlink()
        else:
            (app / signing.FILE).write_text(damage)
        with pytest.raises(ValueError, match=reason):
            signing.read(app, public)
    (app / signing.FILE).write_text(kept)


def test_a_server_without_the_private_key_refuses_an_unsigned_project(
    app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (app.parent / "certs").iterdir():
        if path.name != certs.OPERATOR:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    kept = (app / signing.FILE).read_text()
    (app / signing.FILE).unlink()
    try:
        port = str(flower_processes.free_port())
        assert main(["serve", str(app), "--certs", str(tmp_path), "--port", port]) == 2
    finally:
        (app / signing.FILE).write_text(kept)
    assert "is not signed, so nodes would refuse it" in capsys.readouterr().err


def changed(**files: bytes | None) -> Callable[[Files], Files]:
    def change(before: Files) -> Files:
        after = before | {
            f"{PACKAGE}/{name.replace('__', '.')}": data for name, data in files.items()
        }
        return {name: data for name, data in after.items() if data is not None}

    return change


def config(old: str, new: str) -> Callable[[Files], Files]:
    name = f"{PACKAGE}/{CONFIG}"
    return lambda files: files | {name: files[name].replace(old.encode(), new.encode())}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda files: files, ""),
        (
            changed(own_0_my__py=METHOD.encode() + b"\n"),
            "own_0_my.py .* is neither Gossamer's nor tr",
        ),
        (changed(client__py=b"import os"), "client.py .* is neither Gossamer's nor trusted"),
        (changed(server__py=b"import os"), "server.py .* is neither"),
        (changed(more__py=METHOD.encode()), "more.py .* is neither"),
        (changed(more__so=b"x"), "more.so .* is neither"),
        (lambda files: files | {"flwr.py": METHOD.encode()}, "flwr.py .* is neither"),
        (config("own_0_my.py:Mine", "os:system"), "'os:system' is neither a method or model of"),
        (config("own_1_my.py:build", "subprocess:call"), "'subprocess:call' is neither"),
        (config("own_1_my.py:build", "/tmp/x.py:build"), "'/tmp/x.py:build' is neither"),
        (config("own_1_my.py:build", "mlp:hidden=16"), ""),
        (changed(config__toml=b"method = 1\nexperiment = 3"), "'1' is neither"),
        (changed(config__toml=b"\xff"), "not an app of Gossamer's"),
        (changed(config__toml=None), "not an app of Gossamer's"),
        (
            lambda files: {
                name: data.replace(b"gossamer_app.client:app", b"os:system")
                for name, data in files.items()
            },
            "its parts are .*os:system",
        ),
    ],
)
def test_only_gossamers_code_and_trusted_files_may_run(
    change: Callable[[Files], Files], reason: str, content: bytes
) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        files = {name: file.read(name) for name in file.namelist()}
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        for name, each in change(files).items():
            file.writestr(name, each)
    found = trust.objection(data.getvalue(), hashes())
    assert bool(found) == bool(reason) and re.search(reason, found)


def test_damaged_and_double_files_are_no_app(content: bytes) -> None:
    assert trust.objection(content, hashes()) == ""
    assert "neither Gossamer's nor trusted" in trust.objection(content, ["none"])
    assert "not an app" in trust.objection(content[:100], hashes())
    data = io.BytesIO(content)
    with zipfile.ZipFile(data, "a") as file, pytest.warns(UserWarning, match="Duplicate name"):
        file.writestr(f"{PACKAGE}/client.py", "import os")
    assert trust.objection(data.getvalue(), hashes()) != ""


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            ["--certs", "CERTS", "--trust", "abc"],
            "--trust takes SHA-256 hashes of files, not 'abc'",
        ),
        (["--insecure", "--trust", "none"], "--trust needs --certs"),
    ],
)
def test_hashes_are_checked_before_anything_starts(
    words: list[str], reason: str, app: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.replace("CERTS", str(app.parent / "certs")) for word in words]
    assert main(["join", "127.0.0.1:1", "--node", "0", "--nodes", "1", *words]) == 2
    assert reason in capsys.readouterr().err


def test_what_a_killed_server_left_is_ended_and_one_that_lives_is_not(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("processes are found in /proc")
    sleep = [sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"]
    mine = {**os.environ, "FLWR_HOME": str(tmp_path)}
    other = {**os.environ, "FLWR_HOME": str(tmp_path / "other")}
    with (
        subprocess.Popen(sleep, env=mine, stdout=subprocess.PIPE) as left,
        subprocess.Popen(sleep, env=other, stdout=subprocess.PIPE) as living,
    ):
        for process in (left, living):
            assert process.stdout is not None and process.stdout.read(1) == b"1"
        assert leftovers(tmp_path) == [left.pid]
        with alone(tmp_path, "the server"):
            assert left.wait(10) == -9 and living.poll() is None
            with (
                pytest.raises(Refusal, match="the server is running already"),
                alone(tmp_path, "the server"),
            ):
                pass
        living.kill()


def test_a_node_says_why_it_could_not_connect(tmp_path: Path) -> None:
    options = argparse.Namespace(certs="keys", server="10.0.0.7:9093")
    member = Member(3, 4, tmp_path, 9103)
    for line, told in {
        "SuperNode terminated gracefully.": "server does not know the key node-3",
        "[SSL: CERTIFICATE_VERIFY_FAILED] self-signed": "certificate is not of the CA in keys",
        "[Errno 111] Connection refused": "nobody listens at 10.0.0.7:9093",
        "error while attempting to bind: address already in use": "port 9103 of this machine is",
        "something else": "Flower's process ended",
    }.items():
        assert told in _reason(line, options, member)
