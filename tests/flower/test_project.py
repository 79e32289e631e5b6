"""Projects, certificates and commands: what they hold, and what they refuse."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from gossamer.cli import main
from gossamer.config import read
from gossamer.engine.events import CONFIG
from gossamer.flower import certs, commands
from gossamer.flower.commands import Link, Member
from gossamer.flower.project import PACKAGE

SMALL = ["--data", "fmnist-mini", "--model", "mlp:hidden=16", "--pool", "4", "--rounds", "3"]


def init(folder: Path, *more: str) -> int:
    return main(
        ["flower", "init", str(folder), "--method", "spafl", "--clients", "3", *SMALL, *more]
    )


def test_a_project_holds_the_run_and_what_flower_asks_for(tmp_path: Path) -> None:
    assert init(tmp_path / "app", "--min-replies", "2", "--deadline", "30", "--lr", "0.5") == 0
    told = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert told["project"]["license"] == {"file": "LICENSE"} and (tmp_path / "app/LICENSE").exists()
    app = told["tool"]["flwr"]["app"]
    assert app["components"] == {
        "serverapp": "gossamer_app.server:app",
        "clientapp": "gossamer_app.client:app",
    }
    assert app["config"]["out"] == str((tmp_path / "app" / "run").resolve())
    assert (app["config"]["min-replies"], app["config"]["deadline"]) == (2, 30.0)
    config = read(tmp_path / "app" / PACKAGE / CONFIG)
    assert (config.method, config.experiment.pool, config.experiment.rounds) == ("spafl", 4, 3)
    method = config.build_method()
    assert (method.clients, method.training.lr) == (3, 0.5)  # type: ignore[attr-defined]
    for name in ("server", "client"):
        compile((tmp_path / "app" / PACKAGE / f"{name}.py").read_text(), name, "exec")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--deadline", "0"], "deadline"),
        (["--min-replise", "2"], "did you mean '--min-replies'"),
        (["--clients", "9"], "9 clients per round asked for, but the pool has 4"),
    ],
)
def test_a_project_that_could_not_run_is_not_written(
    more: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path / "app", *more) == 2
    assert reason in capsys.readouterr().err and not (tmp_path / "app").exists()


def test_nodes_get_the_app_and_nothing_of_what_the_server_keeps_beside_it(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs Flower: gossamer[flower]")
    (tmp_path / "long.py").write_text(
        "from gossamer import FedAvg\n\n\nclass PersonalisedSparseAveraging(FedAvg):\n    pass\n"
    )
    app = tmp_path / "app"
    words = ["--method", f"{tmp_path / 'long.py'}:PersonalisedSparseAveraging", *SMALL]
    assert main(["flower", "init", str(app), "--clients", "3", *words]) == 0
    for name in ("run/events.jsonl", "run/rounds/1/meta.json", "certs/notes.md", "other/a.json"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("{}")
    deep = app / ".flower" / "/".join("deeper" for _ in range(12))
    deep.mkdir(parents=True)
    (deep / "config.toml").touch()
    flwr, known = commands.run(app)[0], commands.environment(tmp_path / "home")
    subprocess.run([flwr, "build", "--app", str(app)], cwd=tmp_path, env=known, check=True)
    (packed,) = tmp_path.glob("*.fab")
    with zipfile.ZipFile(packed) as file:
        assert {name for name in file.namelist() if not name.startswith(".info")} == {
            "LICENSE",
            "pyproject.toml",
            *(f"{PACKAGE}/{name}" for name in ("__init__.py", "server.py", "client.py", CONFIG)),
            f"{PACKAGE}/own_0_long.py",
        }


def test_a_server_does_not_start_beside_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    init(tmp_path / "app")
    monkeypatch.setattr("gossamer.cli.serve.needs_flower", lambda: None)
    monkeypatch.setattr("gossamer.cli.flower_processes.SILENT", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["serve", str(tmp_path / "app"), "--insecure", "--port", port]) == 2
    assert f"127.0.0.1:{port} is already in use" in capsys.readouterr().err


def test_a_process_of_flower_ends_with_the_one_that_started_it(tmp_path: Path) -> None:
    if sys.platform != "linux":
        pytest.skip("the system cannot be asked for it")
    program = (
        "import os, signal, sys\n"
        "from gossamer.cli.flower_processes import running\n"
        "words = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(600)']\n"
        "with running(words, dict(os.environ)) as child:\n"
        "    print(child.pid, flush=True)\n"
        "    child.wait()\n"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        told = {parent.stdout.readline().strip() for _ in range(2)}
        parent.kill()
        parent.wait()
        # The pipe is at its end when nobody is left who could write to it.
        assert "1" in told and len(told) == 2 and parent.stdout.read() == ""


def test_a_project_is_not_written_over_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(tmp_path) == 0 and init(tmp_path) == 2
    assert "already holds a project" in capsys.readouterr().err


def test_certificates_hold_for_the_hosts_and_secrets_are_for_the_owner(tmp_path: Path) -> None:
    x509 = pytest.importorskip("cryptography.x509", reason="comes with Flower: gossamer[flower]")
    written = certs.make(tmp_path, ["10.0.0.7", "server.example"], 2)
    assert len(written) == 4 + 2 + 2 * 2
    for path in written:
        secret = path.suffix == ".key" or path.name in ("node-0", "node-1", "operator")
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == secret
    root, server = (
        x509.load_pem_x509_certificate((tmp_path / name).read_bytes())
        for name in (certs.CA, certs.SERVER)
    )
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == [
        "10.0.0.7",
        "127.0.0.1",  # by which the server reaches its own SuperLink
    ]
    before = (tmp_path / "node-0").read_bytes()
    with pytest.raises(ValueError, match=r"server\.pem is not for other; make certificates in ano"):
        certs.make(tmp_path, ["10.0.0.7", "other"], 3)
    more = certs.make(tmp_path, [], 3)
    assert [path.name for path in more] == ["node-2", "node-2.pub"]
    assert (tmp_path / "node-0").read_bytes() == before
    assert len({certs.short(tmp_path / f"node-{index}.pub") for index in range(3)}) == 3


def test_links_are_encrypted_and_nodes_authenticated_unless_asked_otherwise(tmp_path: Path) -> None:
    link = Link("10.0.0.7", 9093, tmp_path, 9999)
    server = commands.superlink(link, tmp_path / "state.db")
    member = Member(1, 3, tmp_path / "states", 9101, trusted=tmp_path / "trusted.yaml")
    node = commands.supernode(link, member)
    assert "--enable-supernode-auth" in server and "--ssl-keyfile" in server
    assert "--insecure" not in server + node and "--trusted-entities" in node
    assert node[node.index("--auth-supernode-private-key") + 1] == str(tmp_path / "node-1")
    assert f'partition-id=1 num-partitions=3 state-dir="{tmp_path / "states"}"' in node
    told = tomllib.loads(commands.configuration(link))["superlink"][commands.CONNECTION]
    assert told == {"address": "127.0.0.1:9999", "root-certificates": str(tmp_path / certs.CA)}
    everywhere = Link("0.0.0.0", 9093, tmp_path, 9999)
    assert everywhere.near == "127.0.0.1"
    for each in (link, everywhere):  # the SuperLink is for its own machine, whatever the address
        words = commands.superlink(each, tmp_path / "state.db")
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert words[words.index("--port") + 1] == "9999"
    bare = Link("10.0.0.7", 9093, None)
    assert "--insecure" in commands.superlink(bare, tmp_path / "state.db")
    assert tomllib.loads(commands.configuration(bare))["superlink"]["gossamer"]["insecure"] is True


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["serve", "APP"], "name certificates with --certs"),
        (["serve", "APP", "--certs", "X", "--insecure"], "exclude each other"),
        (["serve", "APP", "--certs", "APP"], "has no ca.crt; `gossamer flower certs"),
        (["serve", "NOTHING", "--insecure"], "is not a project"),
        (
            ["join", "here", "--node", "0", "--nodes", "2"],
            "the server must be HOST:PORT, not 'here'",
        ),
        (["join", "a:1", "--node", "2", "--nodes", "2"], "--node 2 is out of range; 2 nodes"),
        (["join", "a:1", "--node", "0", "--nodes", "2"], "name certificates with --certs"),
        (["flower"], "use `gossamer flower init FOLDER"),
        (["flower", "certs", "X", "--nodes", "0"], "--nodes and --days must be at least 1"),
    ],
)
def test_commands_refuse_what_cannot_work(
    words: list[str],
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if "APP" in words:
        init(tmp_path / "APP")
    for name in ("flower", "serve", "join"):
        monkeypatch.setattr(f"gossamer.cli.{name}.needs_flower", lambda: None)
    assert main(words) == 2
    assert reason in capsys.readouterr().err


def test_without_flower_commands_say_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["join", "a:1", "--node", "0", "--nodes", "1", "--insecure"]) == 2
    assert "pip install 'gossamer[flower]'" in capsys.readouterr().err
