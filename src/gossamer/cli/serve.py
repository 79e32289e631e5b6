"""`gossamer serve`: a federated run on the network, with Flower."""

from __future__ import annotations

import json
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

from gossamer import engine
from gossamer.cli.flower_processes import (
    alone,
    await_link,
    await_silence,
    free_port,
    register,
    running,
)
from gossamer.cli.flower_security import PORT, add_security, needs_flower, security
from gossamer.cli.parsing import Parser, Refusal, refusing, say, warn
from gossamer.cli.watch import Lines
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.engine.files import private_files
from gossamer.flower import certs, commands, journal, project, signing
from gossamer.flower.commands import Link
from gossamer.flower.signing import Signature
from gossamer.report.live import LiveRun, Tail

PAUSE = 0.2
"""Seconds between two looks at the log."""


@private_files()
def serve(arguments: Sequence[str]) -> int:
    """`gossamer serve PROJECT`: runs a project on a SuperLink; repeat it to resume."""
    parser = Parser(prog="gossamer serve", description=serve.__doc__)
    parser.add_argument("project", help="a folder created by `gossamer flower init`")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}")
    parser.add_argument("--out", default="", help="folder of the run (default: the project's)")
    add_security(parser)
    options = parser.read(arguments)
    needs_flower()
    folder = Path(options.project)
    if not (folder / project.PACKAGE / CONFIG).exists():
        raise Refusal(f"{folder} is not a project; create one with `gossamer flower init {folder}`")
    certificates = security(options, (certs.CA, certs.SERVER, certs.OPERATOR_PUBLIC))
    link = Link(options.host, options.port, certificates, free_port())
    home = folder / ".flower"
    with alone(home, f"a server for {folder}"):
        await_silence(link)
        signatures = [_signature(folder, certificates)] if certificates else []
        out = Path(options.out) if options.out else _out(folder)
        _run(link, folder, out, signatures)
    ended = _finished(out)
    (say if ended else warn)(
        f"the run in {out} has finished"
        if ended
        else f"the run in {out} is unfinished; serve it again (Flower's own log: {home / LOG})"
    )
    return 0 if ended else 1


LOG = "server.log"
"""What Flower's processes print, in the home directory of the project."""


def _run(link: Link, folder: Path, out: Path, signatures: Sequence[Signature]) -> None:
    """Starts the SuperLink and its front, submits the project and shows its progress."""
    from gossamer.flower.front import Front, facing, public_keys

    home = folder / ".flower"
    write_atomically(home / "config.toml", commands.configuration(link).encode())
    environment, log = commands.environment(home), home / LOG
    known = public_keys(link.certificates) if link.certificates else None
    with (
        running(commands.superlink(link, home / "state.db"), environment, log) as superlink,
        facing(Front(link, known, signatures), link),
    ):
        await_link(link, superlink)
        keys = sorted(link.certificates.glob("node-*.pub")) if link.certificates else []
        for key in keys:
            register(key, home, environment)
        say(f"the server listens at {link.address}; nodes can join")
        with running(commands.run(folder, len(keys), out), environment, log) as submitted:
            follow(out, submitted)


def follow(out: Path, process: subprocess.Popen[bytes]) -> None:
    """Shows what happens in a run, from now on until a process ends."""
    live, tail, notes = LiveRun(out), Tail(out / "events.jsonl"), Tail(out / journal.FILE)
    for line in tail.read()[1]:
        live.update(line)
    notes.read()
    if live.round:
        say(f"resumes after round {live.round}")
    show, running = Lines(live.round), True
    while running:
        try:
            process.wait(PAUSE)
            running = False
        except subprocess.TimeoutExpired:
            pass
        for line in notes.read()[1]:
            say(str(json.loads(line)["text"]))
        rewritten, lines = tail.read()
        live = LiveRun(out) if rewritten else live
        for line in lines:
            show.update(live.update(line), live)


def _signature(folder: Path, certificates: Path) -> Signature:
    """The project's signature; made now if the operator's private key is here."""
    private, public = certificates / certs.OPERATOR, certificates / certs.OPERATOR_PUBLIC
    if private.exists():
        return signing.sign(folder, private)
    with refusing():
        return signing.read(folder, public)


def _out(folder: Path) -> Path:
    settings = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    return Path(settings["tool"]["flwr"]["app"]["config"]["out"])


def _finished(out: Path) -> bool:
    """Whether a run has finished, according to its log."""
    reader = engine.events.LogReader(out / "events.jsonl")
    log = [event for _, event in reader] if (out / "events.jsonl").exists() else []
    if reader.problem:
        warn(reader.problem)
    return bool(log) and log[-1]["event"] == "finished"


__all__ = ["follow", "serve"]
