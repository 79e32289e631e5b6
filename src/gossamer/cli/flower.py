"""`gossamer flower`, `serve` and `join`: a method on a network of machines, by Flower."""

from __future__ import annotations

import ctypes
import importlib.util
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
from dataclasses import replace
from pathlib import Path
from types import FrameType

from gossamer import engine, fields
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, say, warn
from gossamer.cli.run import refusing
from gossamer.config import Config, Experiment, absolute, anywhere, find_method
from gossamer.engine import Options
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.flower import certs, commands, project
from gossamer.flower.commands import Link
from gossamer.flower.server import at_server, set_up
from gossamer.flower.server_transport import Patience

READY = 120.0
"""Seconds in which a SuperLink must have started."""
SILENT = 10.0
"""Seconds in which a SuperLink must be gone whose server was killed."""
CONNECTED, PAUSE = 60.0, 2.0
"""Seconds after which a node that ends had been connected, and between two attempts to be."""
PATIENCE = (5.0, 60.0)
"""Seconds, at least and at most, in which Flower's own process must reach the server."""
PORT, NODE_PORT = 9093, 9100
PR_SET_PDEATHSIG = 1


def flower(arguments: Sequence[str]) -> int:
    """`gossamer flower init FOLDER --method NAME` and `gossamer flower certs FOLDER`."""
    known = {"init": _init, "certs": _certs}
    if set(arguments) & {"-h", "--help"} and arguments[0] not in known:
        Parser(prog="gossamer flower init|certs", description=flower.__doc__).read(arguments)
    if not arguments or arguments[0] not in known:
        raise Refusal(
            "say `gossamer flower init FOLDER --method NAME` or `gossamer flower certs FOLDER`"
        )
    return known[arguments[0]](arguments[1:])


def serve(arguments: Sequence[str]) -> int:
    """`gossamer serve PROJECT`: a SuperLink and the run of a project on it; again, to resume."""
    parser = Parser(prog="gossamer serve", description=serve.__doc__)
    parser.add_argument("project", help="a folder made by `gossamer flower init`")
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: this host)")
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}")
    _add_security(parser)
    options = parser.read(arguments)
    _needs_flower()
    folder = Path(options.project)
    if not (folder / project.PACKAGE / CONFIG).exists():
        raise Refusal(f"{folder} is no project; make one with `gossamer flower init {folder}`")
    link = Link(options.host, options.port, _security(options, (certs.CA, certs.SERVER)))
    home = folder / ".flower"
    home.mkdir(exist_ok=True)
    write_atomically(home / "config.toml", commands.configuration(link).encode())
    environment = commands.environment(home)
    _await_silence(link)
    with _running(commands.superlink(link, home / "state.db"), environment) as process:
        await_link(link, process)
        keys = sorted(link.certificates.glob("node-*.pub")) if link.certificates else []
        for key in keys:
            register(key, home, environment)
        say(f"the server listens at {link.address}; nodes may join")
        subprocess.run(commands.run(folder, len(keys)), env=environment, check=False)
    return 0 if _finished(folder) else 1


def join(arguments: Sequence[str]) -> int:
    """`gossamer join HOST:PORT --node I --nodes N`: a node with its share of the clients."""
    parser = Parser(prog="gossamer join", description=join.__doc__)
    parser.add_argument("server", help="host and port of the server, e.g. 192.168.0.5:9093")
    parser.add_argument("--node", type=int, required=True, help="the number of this node, from 0")
    parser.add_argument("--nodes", type=int, required=True, help="how many nodes there are")
    parser.add_argument("--states", default="states", help="folder for what its clients keep")
    parser.add_argument(
        "--data",
        default="",
        help="of this node only, e.g. npz:own.npz, if the project has own data",
    )
    parser.add_argument(
        "--wait", type=float, default=600.0, help="seconds to try to get in (default: 600)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help=f"its own, on this machine (default: {NODE_PORT} + I)"
    )
    _add_security(parser)
    options = parser.read(arguments)
    _needs_flower()
    host, colon, port = options.server.rpartition(":")
    if not colon or not port.isdecimal():
        raise Refusal(f"the server is HOST:PORT, not {options.server!r}")
    if not 0 <= options.node < options.nodes:
        raise Refusal(f"--node is {options.node}, but {options.nodes} nodes are numbered from 0")
    key = f"node-{options.node}"
    link = Link(host, int(port), _security(options, (certs.CA, key)))
    states = Path(options.states)
    home = states / f".flower-{options.node}"
    home.mkdir(parents=True, exist_ok=True)
    own = options.port or NODE_PORT + options.node
    patience = max(PATIENCE[0], min(options.wait, PATIENCE[1]))
    data = anywhere(replace(Experiment(), data=options.data)).data if options.data else ""
    until = time.monotonic() + options.wait
    from gossamer.flower.warm_worker import warm_worker

    with warm_worker() as worker:
        path = worker.path if worker else None
        who = (options.node, options.nodes)
        command = commands.supernode(link, *who, states, own, patience, path, data)
        while True:
            began = time.monotonic()
            with _running(command, commands.environment(home)) as process:
                code = worker.wait(process) if worker else process.wait()
            if time.monotonic() - began > CONNECTED:  # it was in, so the server will be back
                until = time.monotonic() + options.wait
            if code <= 0 or time.monotonic() > until:
                return abs(code)
            warn(f"{options.server} is not there yet or does not know {key}; trying again")
            time.sleep(PAUSE)


def _init(arguments: Sequence[str]) -> int:
    first = Parser(prog="gossamer flower init", description=flower.__doc__)
    first.add_argument("--method", default="fedavg")
    name = first.parse_known_args([word for word in arguments if word not in ("-h", "--help")])[0]
    with refusing():
        method = find_method(name.method)
    parser = Parser(
        prog="gossamer flower init", description="Writes a project that `flwr run` accepts."
    )
    parser.add_argument("folder", help="of the project")
    parser.add_argument("--method", default="fedavg", help="a name of `gossamer ls`")
    parser.add_argument("--out", default="", help="of the run, at the server (default: beside it)")
    parser.add_argument(
        "--own-data",
        action="store_true",
        help="every client is a node with data of its own; --data is for the server's tests",
    )
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "patience", Patience())
    add_settings(parser, "method", method)
    options = parser.read(arguments)
    config = Config(
        absolute(options.method),
        given(method, options),
        anywhere(fields.replace(Experiment(), given(Experiment(), options))),
        fields.replace(Options(), given(Options(), options)),
    )
    folder = Path(options.folder)
    out = Path(options.out) if options.out else folder / "run"
    with refusing():
        patience = fields.replace(Patience(), given(Patience(), options))
        fields.check(patience)
        found = at_server(config) if options.own_data else set_up(config)
        wish, federation = config.experiment, found.federation
        what = (found.method, found.task, federation)
        engine.check(*what, rounds=wish.rounds, seed=wish.seed, options=config.options)
        project.write(folder, config, out, patience, options.own_data)
    say(
        f"{folder} is a project for {len(federation.pool)} clients; next:\n"
        f"  gossamer flower certs {folder / 'certs'} --hosts ADDRESS --nodes N\n"
        f"  gossamer serve {folder} --certs {folder / 'certs'} --host ADDRESS\n"
        f"  gossamer join ADDRESS:{PORT} --certs certs --node I --nodes N    (on every node)"
    )
    return 0


def _certs(arguments: Sequence[str]) -> int:
    parser = Parser(prog="gossamer flower certs", description="Makes a CA, and keys for all.")
    parser.add_argument("folder", help="where certificates and keys are to lie")
    parser.add_argument(
        "--hosts", default="", help="names and addresses of the server, besides 127.0.0.1"
    )
    parser.add_argument("--nodes", type=int, required=True, help="how many nodes get a key")
    parser.add_argument("--days", type=int, default=certs.DAYS, help="how long they are valid")
    options = parser.read(arguments)
    _needs_flower()
    hosts = [host.strip() for host in options.hosts.split(",") if host.strip()]
    if options.nodes < 1 or options.days < 1:
        raise Refusal("certificates need at least one of --nodes and one of --days")
    with refusing():
        written = certs.make(Path(options.folder), hosts, options.nodes, options.days)
    for path in written:
        say(str(path))
    say(f"a node needs {certs.CA} and its own node-I and no more; {certs.CA_KEY} stays where it is")
    return 0


def _add_security(parser: Parser) -> None:
    parser.add_argument("--certs", default="", help="a folder made by `gossamer flower certs`")
    parser.add_argument(
        "--insecure", action="store_true", help="no encryption, and anybody may take part"
    )


def _security(options: object, needed: Sequence[str]) -> Path | None:
    """The folder of certificates; none only if that was asked for."""
    folder, insecure = getattr(options, "certs", ""), getattr(options, "insecure", False)
    if insecure:
        if folder:
            raise Refusal("--certs and --insecure exclude each other; use one of the two")
        return None
    if not folder:
        raise Refusal(
            "name certificates with --certs (`gossamer flower certs` makes them), "
            "or ask for --insecure"
        )
    for name in needed:
        if not (Path(folder) / name).exists():
            raise Refusal(f"{folder} has no {name}; `gossamer flower certs {folder}` makes it")
    return Path(folder)


def _needs_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise Refusal("this needs Flower: pip install 'gossamer[flower]'")


def _follow() -> None:
    """In a new process: asks the system to end it when its parent dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def _running(
    command: Sequence[str], environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive this one, be it interrupted, terminated or (Linux) killed."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    process = subprocess.Popen(
        command, env=environment, preexec_fn=_follow if sys.platform == "linux" else None
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


def _await_silence(link: Link) -> None:
    """Refuses to start beside a SuperLink that is there, such as one whose server was killed."""
    until = time.monotonic() + SILENT
    while _listens(link):
        if time.monotonic() > until:
            raise Refusal(
                f"something listens at {link.address} already; if it was left by a server that was "
                "killed, end it (`flower-superlink`), or use another --port"
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
                    f"{link.certificates} does not hold for {link.near}: {problem}; "
                    f"make others with `gossamer flower certs --hosts {link.near}`"
                ) from None
            time.sleep(0.2)
    raise Refusal(f"the SuperLink did not start at {link.address}; what it said is above")


def register(key: Path, home: Path, environment: dict[str, str]) -> None:
    """Lets a node take part; a SuperLink remembers those of before."""
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


def _finished(folder: Path) -> bool:
    """Whether the log of the project's run tells of its end."""
    import tomllib

    told = tomllib.loads((folder / "pyproject.toml").read_text())
    out = Path(told["tool"]["flwr"]["app"]["config"]["out"])
    log = engine.events.read(out / "events.jsonl") if (out / "events.jsonl").exists() else []
    ended = bool(log) and log[-1]["event"] == "finished"
    (say if ended else warn)(
        f"the run in {out} is over" if ended else f"the run in {out} is not over; serve it again"
    )
    return ended


__all__ = ["flower", "join", "serve"]
