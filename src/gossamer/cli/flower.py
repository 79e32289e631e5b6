"""`gossamer flower`: projects, certificates and signatures for a run on the network."""

from __future__ import annotations

import hashlib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gossamer import engine, fields
from gossamer.cli.flower_security import PORT, needs_flower
from gossamer.cli.parsing import Parser, Refusal, add_settings, given, refusing, say
from gossamer.config import Config, Experiment, absolute, absolute_paths, find_method
from gossamer.engine import Options
from gossamer.engine.conditions import check_partial, on_network
from gossamer.flower import certs, project, signing
from gossamer.flower.server import at_server, set_up
from gossamer.flower.server_transport import Patience


def flower(arguments: Sequence[str]) -> int:
    """`gossamer flower init|certs|sign`: makes a project, its keys, or a signature."""
    known = {"init": _init, "certs": _certs, "sign": _sign}
    if set(arguments) & {"-h", "--help"} and arguments[0] not in known:
        Parser(prog="gossamer flower init|certs|sign", description=flower.__doc__).read(arguments)
    if not arguments or arguments[0] not in known:
        raise Refusal(
            "use `gossamer flower init FOLDER --method NAME`, `gossamer flower certs FOLDER` "
            "or `gossamer flower sign PROJECT --key FILE`"
        )
    return known[arguments[0]](arguments[1:])


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
    add_settings(parser, "patience", Patience(), known=True)
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
        fields.check(config.options)
        simple, real = on_network(config.options)
        config = replace(config, options=simple)
        words = {n: each for n, each in vars(options).items() if not hasattr(simple, n)}
        patience = fields.replace(Patience(), {**given(Patience(), Namespace(**words)), **real})
        fields.check(patience)
        run = at_server(config) if options.own_data else set_up(config)
        if patience.partial:
            check_partial(run)
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
        description="Creates a CA, and keys for the server, the operator and all nodes.",
    )
    parser.add_argument("folder", help="folder for certificates and keys")
    parser.add_argument(
        "--hosts", default="", help="names and addresses of the server, besides 127.0.0.1"
    )
    parser.add_argument("--nodes", type=int, required=True, help="number of nodes")
    parser.add_argument("--days", type=int, default=certs.DAYS, help="days of validity")
    options = parser.read(arguments)
    needs_flower()
    hosts = [host.strip() for host in options.hosts.split(",") if host.strip()]
    if options.nodes < 1 or options.days < 1:
        raise Refusal("--nodes and --days must be at least 1")
    with refusing():
        written = certs.make(Path(options.folder), hosts, options.nodes, options.days)
    for path in written:
        say(str(path))
    say(
        f"a node needs {certs.CA}, {certs.OPERATOR_PUBLIC} and its own node-I only; "
        f"keep {certs.CA_KEY} and {certs.OPERATOR} private"
    )
    return 0


def _sign(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="gossamer flower sign",
        description="Signs a project, so that a server without the operator's key can serve it.",
    )
    parser.add_argument("project", help="a folder created by `gossamer flower init`")
    parser.add_argument("--key", required=True, help="the operator's private key")
    options = parser.read(arguments)
    needs_flower()
    folder, key = Path(options.project), Path(options.key)
    if not (folder / "pyproject.toml").exists():
        raise Refusal(f"{folder} is not a project; create one with `gossamer flower init {folder}`")
    if not key.exists():
        raise Refusal(f"there is no key {key}; `gossamer flower certs` creates one")
    with refusing():
        made = signing.sign(folder, key)
    say(f"signed {folder}, app {made.app}")
    for path in project.own_files(folder):
        say(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}  (join --trust)")
    return 0


__all__ = ["flower"]
