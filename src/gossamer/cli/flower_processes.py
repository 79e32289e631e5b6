"""The processes of a Flower deployment: start them, await them, register keys."""

from __future__ import annotations

import ctypes
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from gossamer.cli.parsing import Refusal, warn
from gossamer.engine.checkpoint import write_atomically
from gossamer.flower import certs, commands
from gossamer.flower.commands import Link

READY = 120.0
"""Seconds within which a SuperLink must start."""
SILENT = 10.0
"""Seconds within which the SuperLink of a killed server must end."""
PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """Called in a new process: asks the system to end it when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def running(
    command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this one, even if this one is terminated or (on Linux) killed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    process = subprocess.Popen(
        command, env=environment, preexec_fn=follow_parent if sys.platform == "linux" else None
    )
    try:
        yield process
    finally:
        signal.signal(signal.SIGTERM, before)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def await_silence(link: Link) -> None:
    """Refuses to start while another SuperLink listens, such as that of a killed server."""
    until = time.monotonic() + SILENT
    while _listens(link):
        if time.monotonic() > until:
            raise Refusal(
                f"{link.address} is already in use; if by the SuperLink of a killed server, "
                "end that process, or use another --port"
            )
        time.sleep(0.2)


def _listens(link: Link) -> bool:
    try:
        with socket.create_connection((link.near, link.port), timeout=2):
            return True
    except OSError:
        return False


def await_link(link: Link, process: subprocess.Popen[bytes]) -> None:
    """Waits until the SuperLink answers."""
    context, scheme = None, "http"
    if link.certificates is not None:
        context, scheme = ssl.create_default_context(cafile=link.certificates / certs.CA), "https"
    until = time.monotonic() + READY
    while process.poll() is None and time.monotonic() < until:
        try:
            url = f"{scheme}://{link.near}:{link.port}/health"
            with urllib.request.urlopen(url, timeout=5, context=context):
                return
        except (urllib.error.URLError, OSError) as problem:
            if isinstance(getattr(problem, "reason", None), ssl.SSLCertVerificationError):
                raise Refusal(
                    f"{link.certificates} is not valid for {link.near}: {problem}; "
                    f"create others with `gossamer flower certs --hosts {link.near}`"
                ) from None
            time.sleep(0.2)
    raise Refusal(f"the SuperLink did not start at {link.address}; see its output above")


def register(key: Path, home: Path, environment: dict[str, str]) -> None:
    """Registers a node's key with the SuperLink, unless it was registered before."""
    note = home / "registered"
    known = set(note.read_text().split()) if note.exists() else set()
    name = certs.short(key)
    if name in known:
        return
    done = subprocess.run(
        commands.register(key), env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        warn(f"{key.name} was not registered: {(done.stdout + done.stderr).strip()[-300:]}")
        return
    write_atomically(note, "\n".join([*sorted(known | {name}), ""]).encode())
