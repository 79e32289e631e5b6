"""The processes of a Flower deployment: start them, await them, end them, register keys."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

from gossamer._locks import locked
from gossamer.cli.parsing import Refusal, warn
from gossamer.engine.checkpoint import write_atomically
from gossamer.flower import certs, commands
from gossamer.flower.commands import Link

READY = 120.0
"""Seconds within which a SuperLink must start."""
SILENT = 10.0
"""Seconds within which what a killed server left behind must end."""
PR_SET_PDEATHSIG = 1


def follow_parent() -> None:
    """Called in a new process: asks the system to end it when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def running(
    command: Sequence[str], environment: dict[str, str], log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with this one, even if this one is terminated or (on Linux) killed.

    Args:
        command: What to run.
        environment: Of the process.
        log: A file to which its output is appended; None: it goes where this process's goes.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    file = log.open("ab") if log is not None else None
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=file,
        stderr=file,
        preexec_fn=follow_parent if sys.platform == "linux" else None,
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
        if file is not None:
            file.close()


@contextmanager
def alone(home: Path, what: str) -> Iterator[None]:
    """Nobody else uses a home directory of Flower's inside; what a killed process left is ended.

    Flower's processes start others, which outlive a killed parent for a while and hold the lock of
    the run. They all know the home directory, which belongs to whoever has its lock.
    """
    with ExitStack() as stack:
        home.mkdir(parents=True, exist_ok=True)
        try:
            stack.enter_context(locked(home, wait=False))
        except BlockingIOError:
            raise Refusal(f"{what} is running already, in another process here") from None
        end_leftovers(home)
        yield


def end_leftovers(home: Path) -> None:
    """Kills the processes whose home directory this is; needs a Linux-like /proc."""
    found = leftovers(home)
    if found:
        warn(f"ends what a killed process left behind: processes {', '.join(map(str, found))}")
    until = time.monotonic() + SILENT
    while found and time.monotonic() < until:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
        found = leftovers(home)


def leftovers(home: Path) -> list[int]:
    """Processes of this user's, other than this one, that Flower's home directory marks."""
    mark = f"FLWR_HOME={home.resolve()}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is somebody else's
            if mark in (place / "environ").read_bytes().split(b"\0"):
                found.append(int(place.name))
    return [process for process in found if process != os.getpid()]


def free_port() -> int:
    """A port on 127.0.0.1 that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def await_silence(link: Link) -> None:
    """Refuses to start while somebody else listens at the address."""
    until = time.monotonic() + SILENT
    while listens(link):
        if time.monotonic() > until:
            raise Refusal(f"{link.address} is already in use; use another --port")
        time.sleep(0.2)


def listens(link: Link) -> bool:
    """Whether anybody listens at the address."""
    try:
        with socket.create_connection((link.near, link.port), timeout=2):
            return True
    except OSError:
        return False


def await_link(link: Link, process: subprocess.Popen[bytes]) -> None:
    """Waits until the SuperLink answers through its front."""
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
    raise Refusal(f"the SuperLink did not start at {link.address}; see its output")


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
