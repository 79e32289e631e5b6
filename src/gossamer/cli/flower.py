"""`gossamer flower`, `serve` and `join`: federated training on a network, with Flower."""

from __future__ import annotations

import importlib.util
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gossamer import engine, fields
from gossamer.cli.flower_processes import await_link, await_silence, register, running
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, refusing, say, warn
from gossamer.config import Config, Experiment, absolute, absolute_paths, find_method
from gossamer.engine import Options
from gossamer.engine.checkpoint import write_atomically
from gossamer.engine.events import CONFIG
from gossamer.engine.files import private_files
from gossamer.flower import certs, commands, project
from gossamer.flower.commands import Link
from gossamer.flower.server import at_server, set_up
from gossamer.flower.server_transport import Patience

CONNECTED, PAUSE = 60.0, 2.0
"""Seconds after which an ended node counts as having been connected, and between attempts."""
PATIENCE = (5.0, 60.0)
"""Minimum and maximum seconds within which Flower's own process must reach the server."""
PORT, NODE_PORT = 9093, 9100


def flower(arguments: Sequence[str]) -> int:
    """`gossamer flower init FOLDER --method NAME` and `gossamer flower certs FOLDER`."""
    known = {"init": _init, "certs": _certs}
    if set(arguments) & {"-h", "--help"} and arguments[0] not in known:
        Parser(prog="gossamer flower init|certs", description=flower.__doc__).read(arguments)
    if not arguments or arguments[0] not in known:
        raise Refusal(
            "use `gossamer flower init FOLDER --method NAME` or `gossamer flower certs FOLDER`"
        )
    return known[arguments[0]](arguments[1:])


@private_files()
def serve(arguments: Sequence[str]) -> int:
    """`gossamer serve PROJECT`: runs a project on a SuperLink; repeat it to resume."""
    parser = Parser(prog="gossamer serve", description=serve.__doc__)
    parser.add_argument("project", help="a folder created by `gossamer flower init`")
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"default: {PORT}")
    _add_security(parser)
    options = parser.read(arguments)
    _needs_flower()
    folder = Path(options.project)
    if not (folder / project.PACKAGE / CONFIG).exists():
        raise Refusal(f"{folder} is not a project; create one with `gossamer flower init {folder}`")
    link = Link(options.host, options.port, _security(options, (certs.CA, certs.SERVER)))
    home = folder / ".flower"
    home.mkdir(exist_ok=True)
    write_atomically(home / "config.toml", commands.configuration(link).encode())
    environment = commands.environment(home)
    await_silence(link)
    with running(commands.superlink(link, home / "state.db"), environment) as process:
        await_link(link, process)
        keys = sorted(link.certificates.glob("node-*.pub")) if link.certificates else []
        for key in keys:
            register(key, home, environment)
        say(f"the server listens at {link.address}; nodes can join")
        subprocess.run(commands.run(folder, len(keys)), env=environment, check=False)
    return 0 if _finished(folder) else 1


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
        "--wait", type=float, default=600.0, help="seconds to keep trying to connect (default: 600)"
    )
    parser.add_argument(
        "--port", type=int, default=0, help=f"local port of the node (default: {NODE_PORT} + I)"
    )
    _add_security(parser)
    options = parser.read(arguments)
    _needs_flower()
    host, colon, port = options.server.rpartition(":")
    if not colon or not port.isdecimal():
        raise Refusal(f"the server must be HOST:PORT, not {options.server!r}")
    if not 0 <= options.node < options.nodes:
        raise Refusal(
            f"--node {options.node} is out of range; {options.nodes} nodes are numbered from 0"
        )
    key = f"node-{options.node}"
    link = Link(host, int(port), _security(options, (certs.CA, key)))
    states = Path(options.states)
    home = states / f".flower-{options.node}"
    home.mkdir(parents=True, exist_ok=True)
    own = options.port or NODE_PORT + options.node
    patience = max(PATIENCE[0], min(options.wait, PATIENCE[1]))
    data = absolute_paths(replace(Experiment(), data=options.data)).data if options.data else ""
    until = time.monotonic() + options.wait
    from gossamer.flower.warm_worker import warm_worker

    with warm_worker() as worker:
        path = worker.path if worker else None
        place = (options.node, options.nodes)
        command = commands.supernode(link, *place, states, own, patience, path, data)
        while True:
            began = time.monotonic()
            with running(command, commands.environment(home)) as process:
                code = worker.wait(process) if worker else process.wait()
            connected = time.monotonic() - began > CONNECTED
            if connected:  # the server will be back
                until = time.monotonic() + options.wait
            if code <= 0 or time.monotonic() > until:
                return abs(code)
            warn(f"{options.server} is unreachable or does not know {key}; trying again")
            time.sleep(PAUSE)


def _init(arguments: Sequence[str]) -> int:
    first = Parser(prog="gossamer flower init", description=flower.__doc__)
    first.add_argument("--method", default="fedavg")
    name = first.parse_known_args([word for word in arguments if word not in ("-h", "--help")])[0]
    with refusing():
        method = find_method(name.method)
    parser = Parser(
        prog="gossamer flower init", description="Creates a project that `flwr run` accepts."
    )
    parser.add_argument("folder", help="the folder to create")
    parser.add_argument("--method", default="fedavg", help="a method of `gossamer ls --all`")
    parser.add_argument(
        "--out", default="", help="folder of the run on the server (default: in the project)"
    )
    parser.add_argument(
        "--own-data",
        action="store_true",
        help="every client is a node with its own data; --data is the server's test data",
    )
    add_settings(parser, "experiment", Experiment())
    add_settings(parser, "execution", Options())
    add_settings(parser, "patience", Patience())
    add_settings(parser, "method", method)
    options = parser.read(arguments)
    config = Config(
        absolute(options.method),
        given(method, options),
        absolute_paths(fields.replace(Experiment(), given(Experiment(), options))),
        fields.replace(Options(), given(Options(), options)),
    )
    folder = Path(options.folder)
    out = Path(options.out) if options.out else folder / "run"
    with refusing():
        patience = fields.replace(Patience(), given(Patience(), options))
        fields.check(patience)
        run = at_server(config) if options.own_data else set_up(config)
        experiment, federation = config.experiment, run.federation
        what = (run.method, run.task, federation)
        engine.check(*what, rounds=experiment.rounds, seed=experiment.seed, options=config.options)
        project.write(folder, config, out, patience, options.own_data)
    say(
        f"created {folder}, a project for {len(federation.pool)} clients; next:\n"
        f"  gossamer flower certs {folder / 'certs'} --hosts ADDRESS --nodes N\n"
        f"  gossamer serve {folder} --certs {folder / 'certs'} --host ADDRESS\n"
        f"  gossamer join ADDRESS:{PORT} --certs certs --node I --nodes N    (on every node)"
    )
    return 0


def _certs(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="gossamer flower certs",
        description="Creates a CA, and keys for the server and all nodes.",
    )
    parser.add_argument("folder", help="folder for certificates and keys")
    parser.add_argument(
        "--hosts", default="", help="names and addresses of the server, besides 127.0.0.1"
    )
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--days", type=int, default=certs.DAYS, help="days of validity")
    options = parser.read(arguments)
    _needs_flower()
    hosts = [host.strip() for host in options.hosts.split(",") if host.strip()]
    if options.nodes < 1 or options.days < 1:
        raise Refusal("--nodes and --days must be at least 1")
    with refusing():
        written = certs.make(Path(options.folder), hosts, options.nodes, options.days)
    for path in written:
        say(str(path))
    say(f"a node needs {certs.CA} and its own node-I only; keep {certs.CA_KEY} private")
    return 0


def _add_security(parser: Parser) -> None:
    parser.add_argument("--certs", default="", help="a folder created by `gossamer flower certs`")
    parser.add_argument("--insecure", action="store_true", help="no encryption; anybody can join")


def _security(options: object, needed: Sequence[str]) -> Path | None:
    """The folder of certificates; None only with --insecure."""
    folder, insecure = getattr(options, "certs", ""), getattr(options, "insecure", False)
    if insecure:
        if folder:
            raise Refusal("--certs and --insecure exclude each other; use one of the two")
        return None
    if not folder:
        raise Refusal(
            "name certificates with --certs (`gossamer flower certs` creates them), "
            "or use --insecure"
        )
    for name in needed:
        if not (Path(folder) / name).exists():
            raise Refusal(f"{folder} has no {name}; `gossamer flower certs {folder}` creates it")
    return Path(folder)


def _needs_flower() -> None:
    if importlib.util.find_spec("flwr") is None:
        raise Refusal("this needs Flower: pip install 'gossamer[flower]'")


def _finished(folder: Path) -> bool:
    """Whether the run of the project has finished, according to its log."""
    import tomllib

    settings = tomllib.loads((folder / "pyproject.toml").read_text())
    out = Path(settings["tool"]["flwr"]["app"]["config"]["out"])
    path = out / "events.jsonl"
    reader = engine.events.LogReader(path)
    log = [event for _, event in reader] if path.exists() else []
    if reader.problem:
        warn(reader.problem)
    ended = bool(log) and log[-1]["event"] == "finished" and not reader.problem
    (say if ended else warn)(
        f"the run in {out} has finished"
        if ended
        else f"the run in {out} is unfinished; serve it again"
    )
    return ended


__all__ = ["flower", "join", "serve"]
