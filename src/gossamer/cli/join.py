"""`gossamer join`: a node of a federated run on the network, with Flower."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gossamer.cli.flower_processes import alone, listens, running
from gossamer.cli.flower_security import add_security, needs_flower, security
from gossamer.cli.parsing import Parser, Refusal, say, warn
from gossamer.config import Experiment, absolute_paths
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.files import private_files
from gossamer.flower import certs, commands, journal, signing
from gossamer.flower.commands import Link, Member
from gossamer.report.live import Tail

CONNECTED, PAUSE = 60.0, 2.0
"""Seconds after which an ended node counts as having been connected, and between attempts."""
PATIENCE = (5.0, 60.0)
"""Minimum and maximum seconds within which Flower's own process must reach the server."""
NODE_PORT = 9100
LOG = "node.log"
"""What Flower's processes print, in the node's home directory."""
REASONS = {
    # What a SuperNode does when it is told that nobody has registered its key.
    "SuperNode terminated gracefully": "the server does not know the key {key}",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is not of the CA in {certs}",
    "disconnected without sending": "the server speaks TLS; use --certs instead of --insecure",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS; is it served with --insecure?",
    "Connection refused": "nobody listens at {server}",
    "Name or service not known": "there is no host of that name",
    "timed out": "{server} does not answer",
    "address already in use": "port {port} of this machine is taken; use another --port",
}
"""Why a node cannot connect, by what Flower prints."""
REFUSED = ("FAB verification failed", "The FAB could not be verified")


@private_files()
def join(arguments: Sequence[str]) -> int:
    """`gossamer join HOST:PORT --node I --nodes N`: runs a node with its share of the clients."""
    parser = Parser(prog="gossamer join", description=join.__doc__)
    parser.add_argument("server", help="host and port of the server, e.g. 192.168.0.5:9093")
    parser.add_argument("--node", type=int, required=True, help="the number of this node, from 0")
    parser.add_argument("--nodes", type=int, required=True, help="the number of nodes")
    parser.add_argument("--states", default="states", help="folder for the states of its clients")
    parser.add_argument(
        "--data",
        default="",
        help="this node's own data, e.g. npz:own.npz, in a project with --own-data",
    )
    parser.add_argument(
        "--trust",
        default="",
        metavar="FILE-HASH",
        help="run Gossamer's own code and files of the operator's with these SHA-256 (or `none`), "
        "separated by commas; refuse an app with any other file",
    )
    parser.add_argument(
        "--wait", type=float, default=600.0, help="seconds to keep trying to connect (default: 600)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help=f"local port of the node (default: {NODE_PORT} + I)"
    )
    add_security(parser)
    options = parser.read(arguments)
    needs_flower()
    host, colon, port = options.server.rpartition(":")
    if not colon or not port.isdecimal():
        raise Refusal(f"the server must be HOST:PORT, not {options.server!r}")
    if not 0 <= options.node < options.nodes:
        raise Refusal(
            f"--node {options.node} is out of range; {options.nodes} nodes are numbered from 0"
        )
    key = f"node-{options.node}"
    link = Link(host, int(port), security(options, (certs.CA, key, certs.OPERATOR_PUBLIC)))
    hashes = _hashes(options.trust, link)
    states = Path(options.states)
    home = states / f".flower-{options.node}"
    with alone(home, f"node {options.node} of {states}"):
        return _stay(options, link, _member(options, link, home), hashes)


def _member(options: argparse.Namespace, link: Link, home: Path) -> Member:
    """The node that the options describe."""
    data = absolute_paths(replace(Experiment(), data=options.data)).data if options.data else ""
    trusted = None
    if link.certificates is not None:
        public = link.certificates / certs.OPERATOR_PUBLIC
        trusted = home / "trusted.yaml"  # JSON is YAML
        entry = {signing.key_name(public): public.read_text(encoding="ascii").strip()}
        write_atomically(trusted, json.dumps(entry).encode())
    return Member(
        options.node,
        options.nodes,
        Path(options.states),
        options.port or NODE_PORT + options.node,
        max(PATIENCE[0], min(options.wait, PATIENCE[1])),
        data=data,
        trusted=trusted,
    )


def _hashes(text: str, link: Link) -> list[str]:
    """What follows --trust: SHA-256 as hexadecimal digits; `none` trusts no file."""
    hashes = [word.strip().lower() for word in text.split(",") if word.strip()]
    for each in hashes:
        if each != "none" and (len(each) != 64 or set(each) - set("0123456789abcdef")):
            raise Refusal(f"--trust takes SHA-256 hashes of files, not {each!r}; see sha256sum")
    if hashes and link.certificates is None:
        raise Refusal("--trust needs --certs: without a signature any app would run")
    return hashes


@dataclass
class _Watch:
    """What a node shows while it runs: its journal, and the reasons in Flower's log."""

    link: Link
    notes: Tail
    log: Tail
    over: bool = False
    reason: str = ""

    def look(self) -> bool:
        """Shows what is new.

        Returns:
            Whether the run is over and the server gone, so that nothing is left to wait for.
        """
        for line in self.notes.read()[1]:
            entry = json.loads(line)
            say(str(entry["text"]))
            self.over = bool(entry["over"])
        for raw in self.log.read()[1]:
            text = raw.decode(errors="replace")
            if any(words in text for words in REFUSED):
                warn("refused an app: it is not signed by the operator, or has an untrusted file")
            self.reason = next((text for words in REASONS if words in text), self.reason)
        return self.over and not listens(self.link)


def _stay(options: argparse.Namespace, link: Link, member: Member, hashes: list[str]) -> int:
    """Runs the node, again and again while the server is away, until it gives up."""
    from gossamer.flower.warm_worker import warm_worker

    home = member.states / f".flower-{member.index}"
    watch = _Watch(
        link, Tail(member.states / f"node-{member.index}" / journal.FILE), Tail(home / LOG)
    )
    for tail in (watch.notes, watch.log):  # what happened before is not shown again
        tail.read()
    until, told = time.monotonic() + options.wait, ""
    with warm_worker() as worker:
        member = replace(member, worker=worker.path if worker else None)
        command = commands.supernode(link, member, hashes)
        while True:
            began = time.monotonic()
            with running(command, commands.environment(home), home / LOG) as process:
                wait: Callable[[subprocess.Popen[bytes], Callable[[], bool]], int]
                wait = worker.wait if worker else _wait
                code = wait(process, watch.look)
            over = watch.look() or watch.over
            if over:
                say("the server has ended; so does this node")
                return 0
            if time.monotonic() - began > CONNECTED:  # the server will be back
                until = time.monotonic() + options.wait
            reason = _reason(watch.reason, options, member)
            if code < 0:  # somebody ended it
                return -code
            if time.monotonic() > until:
                warn(f"gives up after {options.wait:g} s: {reason}; see {home / LOG}")
                return code or 1
            if reason != told:
                warn(f"cannot join {options.server}: {reason}; keeps trying")
                told = reason
            time.sleep(PAUSE)


def _wait(process: subprocess.Popen[bytes], look: Callable[[], bool]) -> int:
    """Waits for a process; `look` says when to stop."""
    while (code := process.poll()) is None and not look():
        time.sleep(0.2)
    return code or 0


def _reason(line: str, options: argparse.Namespace, member: Member) -> str:
    """Why the node could not connect, in words."""
    known = {
        "key": f"node-{member.index}",
        "certs": options.certs,
        "server": options.server,
        "port": member.port,
    }
    found = (text for words, text in REASONS.items() if words in line)
    return next((text.format(**known) for text in found), "Flower's process ended")


__all__ = ["join"]
