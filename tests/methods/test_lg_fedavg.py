"""LG-FedAvg: what travels and what stays, against the published sets and against FedAvg."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from gossamer import (
    METHODS,
    Client,
    Ctx,
    Examples,
    Exchange,
    FedAvg,
    Key,
    Options,
    Params,
    Task,
    Training,
    run,
)
from gossamer.accounting import Accounting
from gossamer.engine.client import train
from gossamer.engine.events import Clock, Event, RoundFinished
from gossamer.methods.fedavg import Server
from gossamer.methods.lg_fedavg import LGFedAvg, Local, shared
from gossamer.methods.parts.dense_model import Down, Up
from helpers import Toy, client_ctx, lines, mlp, normed, same, server_ctx
from paper_models import COLOUR, GREY, layout_of

METHOD = LGFedAvg(clients=2, training=Training(batch=8, momentum=0.9))
HEAD = ("4.weight", "4.bias")
"""What the last layer of `normed` has."""


def test_the_defaults_are_those_of_the_specification() -> None:
    method = METHODS["lg_fedavg"]
    assert isinstance(method, LGFedAvg)
    assert method.shared == "1" and method.weighting == "uniform"
    assert method.training.momentum == 0.9 and method.accounting == Accounting()


# the shared set ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "shape", "classes", "wish", "names", "count"),
    [
        ("lenet5_caffe", GREY, 10, "1", "fc2.weight", 5_000),
        ("cnn7", COLOUR, 10, "3", "fc2.weight fc3.weight", 17_664),
        ("cnn7", COLOUR, 10, "2", "fc3.weight", 1_280),
        ("resnet8", COLOUR, 100, "3", "stages.2.0.shortcut.conv.weight fc.weight fc.bias", 8_548),
        ("resnet8", COLOUR, 100, "1", "fc.weight fc.bias", 6_500),
        ("mlp", GREY, 10, "1", "fc2.weight fc2.bias", 2_010),
        ("vgg16", COLOUR, 10, "1", "fc3.weight fc3.bias", 40_970),
        ("lstm", GREY, 10, "1", "fc.weight fc.bias", 1_290),
        ("lstm", GREY, 10, "fc, lstm.weight_hh_l1", "lstm.weight_hh_l1 fc.weight fc.bias", 66_826),
        ("cnn7", COLOUR, 10, "fc[23].*", "fc2.weight fc3.weight", 17_664),
        ("cnn7", COLOUR, 10, "norm6.running*", "norm6.running_mean norm6.running_var", 256),
    ],
)
def test_what_travels(
    model: str, shape: tuple[int, ...], classes: int, wish: str, names: str, count: int
) -> None:
    layout = layout_of(model, shape, classes)
    assert tuple(shared(layout, wish)) == tuple(names.split())
    assert layout.total("count", names.split()) == count


def test_a_part_of_the_module_means_all_below_it() -> None:
    layout = layout_of("resnet8", COLOUR, 100)
    found = shared(layout, "stages.2,fc")
    assert {name.split(".")[0] for name in found} == {"stages", "fc"}
    assert all(name.startswith(("stages.2.", "fc.")) for name in found)
    assert "stages.2.0.norm1.running_mean" in found and len(found) == 3 + 2 * 4 + 2


def test_rows_of_a_tensor_may_be_shared() -> None:
    """The classifier and the output gate of SpaFL's LSTM: rows 384 to 511 of each gate matrix."""
    layout = layout_of("lstm", GREY, 10)
    rows = shared(layout, "fc,lstm.weight_*[384:512]")
    gates = [f"lstm.weight_{way}_l{layer}" for layer in (0, 1) for way in ("ih", "hh")]
    assert rows == {**dict.fromkeys(gates, slice(384, 512)), "fc.weight": None, "fc.bias": None}
    assert sum(128 * layout[name].shape[1] for name in gates) + 1_290 == 54_026
    assert shared(layout, "lstm.weight_ih_l0[0:512]") == {"lstm.weight_ih_l0": None}


def test_a_model_divided_by_rows_is_put_together_again() -> None:
    task = normed()
    method = replace(METHOD, shared="4, 0.weight[2:5]")
    ctx = client_ctx(task, Toy(pool=1).client(0).train)
    state = method.init(server_ctx(task))
    assert len(state.params["0.weight"]) == 3
    found = train(method, ctx, Down(state.params), None).result
    kept, sent = found.local.params["0.weight"], found.up.params["0.weight"]
    assert len(kept) + len(sent) == task.layout["0.weight"].shape[0]
    server = Server({**found.up.params, "0.weight": torch.full_like(sent, 7.0)})
    model = method.model(server_ctx(task), server, found.local)
    assert torch.equal(model["0.weight"][2:5], torch.full_like(sent, 7.0))
    assert torch.equal(torch.cat([model["0.weight"][:2], model["0.weight"][5:]]), kept)


def test_more_layers_than_there_are_means_all_but_norms() -> None:
    layout = layout_of("cnn7", COLOUR, 10)
    assert tuple(shared(layout, "99")) == layout.prunable


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("fc2.wieght", r"called 'fc2\.wieght'; did you mean 'fc2\.weight'\?"),
        ("fc9", r"did you mean 'fc\d'\?"),
        ("fc2,cnov2.*", r"called 'cnov2\.\*'; did you mean 'conv2"),
        ("head", r"called 'head'; it has conv1, norm1, conv2"),
        ("-1", "called '-1'"),
        ("0", "`shared='0'` leaves nothing to share; use a larger number"),
        (" , ", "leaves nothing to share"),
        ("fc3.weight[4:11]", "fc3.weight has rows 0 to 10, not 4:11"),
        ("fc3.weight[4:4]", "not 4:4"),
    ],
)
def test_what_cannot_be_shared_is_said(wish: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        shared(layout_of("cnn7", COLOUR, 10), wish)


def test_norms_alone_are_nothing_to_share() -> None:
    ends = Task.of(
        nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)), torch.zeros(2, 5), start="seed"
    )
    with pytest.raises(ValueError, match="`shared='1'` leaves nothing to share"):
        METHOD.init(server_ctx(ends))
    assert tuple(shared(ends.layout, "2")) == ("0.weight", "0.bias")


def test_a_module_of_one_layer_names_its_tensors() -> None:
    lone = Task.of(nn.Linear(5, 3), torch.zeros(2, 5), start="seed").layout
    assert tuple(shared(lone, "1")) == ("weight", "bias")
    with pytest.raises(ValueError, match="it has weight, bias"):
        shared(lone, "head")


# one client, by hand ----------------------------------------------------------------------------


def part(params: Params, names: tuple[str, ...] = HEAD, *, other: bool = False) -> Params:
    return {name: tensor for name, tensor in params.items() if (name in names) != other}


def start(ctx: Ctx) -> Params:
    return ctx.task.init(ctx.common.fold("init"))


def test_local_tensors_are_in_no_message_and_shared_ones_in_no_state() -> None:
    task = normed()
    ctx = server_ctx(task)
    state = METHOD.init(ctx)
    down = METHOD.down(ctx, state, Client(0, 20))
    done = train(METHOD, client_ctx(task, Toy().make(Key(9), 20)), down, None).result
    assert tuple(state.params) == tuple(down.params) == tuple(done.up.params) == HEAD
    assert done.local is not None
    kept = {"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"}
    assert set(done.local.params) == kept == set(task.layout.names) - set(HEAD)


def test_training_moves_both_parts() -> None:
    task = normed()
    ctx = server_ctx(task)
    state = METHOD.init(ctx)
    done = train(METHOD, client_ctx(task, Toy().make(Key(9), 20)), Down(state.params), None).result
    assert done.local is not None
    before, after = start(ctx), {**done.local.params, **done.up.params}
    still = {name for name, tensor in after.items() if torch.equal(tensor, before[name])}
    assert still <= {"0.bias"}  # which normalisation takes out again


def test_a_client_trains_like_one_of_fedavg_that_starts_there() -> None:
    """With its own part in the place of the server's, and momentum."""
    task = normed()
    own = client_ctx(task, Toy().make(Key(9), 20))
    mine, current = task.init(Key(1)), task.init(Key(2))
    whole = {**mine, **part(current)}
    wanted = train(FedAvg(training=METHOD.training), own, Down(whole), None).result
    found = train(METHOD, own, Down(part(current)), Local(part(mine, other=True))).result
    assert found.local is not None
    assert same(found.up.params, part(wanted.up.params))
    assert same(found.local.params, part(wanted.up.params, other=True))
    assert found.metrics == wanted.metrics


def test_a_new_client_begins_with_the_common_start_and_the_current_shared_part() -> None:
    task = normed()
    ctx = client_ctx(task, Toy().make(Key(9), 20), round=5)
    current = task.init(Key(2))
    work = METHOD.begin(ctx, Down(part(current)), None).work
    assert same(work.params, {**start(ctx), **part(current)})


def test_a_client_that_returns_goes_on_from_its_own_part() -> None:
    task = normed()
    ctx = client_ctx(task, Toy().make(Key(9), 20), round=5)
    first = train(METHOD, ctx, Down(part(start(ctx))), None).result
    kept = {name: tensor.clone() for name, tensor in first.local.params.items()}
    current = task.init(Key(2))
    work = METHOD.begin(ctx, Down(part(current)), first.local).work
    assert same(work.params, {**start(ctx), **kept, **part(current)})
    train(METHOD, ctx, Down(part(current)), first.local)
    assert same(first.local.params, kept)


def test_the_model_is_the_clients_part_with_the_current_shared_one() -> None:
    ctx = server_ctx(normed())
    mine, current = ctx.task.init(Key(1)), ctx.task.init(Key(2))
    state, local = Server(part(current)), Local(part(mine, other=True))
    assert same(METHOD.model(ctx, state, local), {**mine, **part(current)})
    assert same(METHOD.model(ctx, state, None), {**start(ctx), **part(current)})
    assert same(METHOD.model(ctx, METHOD.init(ctx), None), FedAvg().init(ctx).params)


@pytest.mark.parametrize(("weighting", "wanted"), [("uniform", 3.0), ("samples", 3.5)])
def test_clients_count_the_same_unless_asked_otherwise(weighting: str, wanted: float) -> None:
    ctx = server_ctx(normed())
    method = replace(METHOD, weighting=weighting)  # type: ignore[arg-type]
    state = method.init(ctx)
    sent = [
        {name: torch.full_like(tensor, value) for name, tensor in state.params.items()}
        for value in (2.0, 4.0)
    ]
    exchanges = [
        Exchange(Client(id, size), Down(state.params), Up(params))
        for (id, size), params in zip(enumerate((10, 30)), sent, strict=True)
    ]
    merged = method.merge(ctx, state, exchanges)
    assert tuple(merged.params) == HEAD
    assert all((tensor == wanted).all() for tensor in merged.params.values())


# whole runs -------------------------------------------------------------------------------------


class Watch:
    """Notes what every client has kept at the end of every round."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.seen: list[tuple[list[int], dict[int, bytes]]] = []

    def emit(self, event: Event, clock: Clock) -> None:
        if isinstance(event, RoundFinished):
            files = sorted(self.out.glob("rounds/*/local/*.bin"))
            kept = {int(path.stem): path.read_bytes() for path in files}
            self.seen.append((list(event.clients), kept))

    def close(self) -> None:
        pass


def test_what_a_client_keeps_changes_when_it_takes_part_and_only_then(tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    run(METHOD, normed(), Toy(), rounds=8, out=tmp_path, sinks=[watch])
    before: dict[int, bytes] = {}
    idle = returned = 0
    for clients, kept in watch.seen:
        assert kept.keys() == before.keys() | set(clients)
        for id, data in kept.items():
            if id in before:
                assert (data == before[id]) == (id not in clients)
                idle, returned = idle + (id not in clients), returned + (id in clients)
        before = kept
    assert idle > 5 and returned > 5


def logs(tmp_path: Path) -> Iterator[list[str]]:
    for name in ("fedavg", "lg"):
        yield lines(tmp_path / name / "events.jsonl")


@pytest.mark.parametrize(
    ("task", "wish"), [(normed, "*"), (mlp, "*"), (mlp, "99")], ids=["norm", "plain", "layers"]
)
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_sharing_everything_is_fedavg(
    tmp_path: Path, task: object, wish: str, weighting: str
) -> None:
    training = Training(batch=8, momentum=0.9, epochs=2)
    settings = {"clients": 3, "training": training, "weighting": weighting}
    methods = {
        "fedavg": FedAvg(**settings),  # type: ignore[arg-type]
        "lg": LGFedAvg(shared=wish, **settings),  # type: ignore[arg-type]
    }
    plain, all_shared = (
        run(method, task(), Toy(), rounds=4, out=tmp_path / name)  # type: ignore[operator]
        for name, method in methods.items()
    )
    assert plain.state_hash == all_shared.state_hash
    assert plain.accuracy == all_shared.accuracy and plain.cost == all_shared.cost
    first, second = logs(tmp_path)
    assert first[1:] == second[1:] and first[0] != second[0]


def test_a_run_is_judged_by_its_personal_models(tmp_path: Path) -> None:
    """Every client shuffles the inputs its own way: one representation cannot serve all."""
    method = replace(METHOD, clients=6, training=Training(epochs=3, batch=8, lr=0.1, momentum=0.9))
    summary = run(method, mlp(), Shuffled(), rounds=12, out=tmp_path)
    accuracy = summary.accuracy
    assert accuracy["best"] == accuracy["personal_best"]
    assert accuracy["personal_density"] == 1.0
    shared_by_all = run(
        FedAvg(clients=6, training=method.training), mlp(), Shuffled(), rounds=12
    ).accuracy
    assert accuracy["personal_mean"] is not None and shared_by_all["personal_mean"] is not None
    assert accuracy["personal_mean"] > shared_by_all["personal_mean"] + 0.1


class Shuffled(Toy):
    """Clients with inputs in an order of their own."""

    def client(self, id: int):  # type: ignore[no-untyped-def]
        data = super().client(id)
        order = torch.randperm(5, generator=Key(3).fold(id).generator())
        turned = {
            name: Examples(getattr(data, name).x[:, order], getattr(data, name).y)
            for name in ("train", "test")
        }
        return replace(data, **turned)


def test_what_goes_down_may_be_charged_to_everybody(tmp_path: Path) -> None:
    """As the authors' code hands it out; what is sent stays what is sent."""
    everybody = replace(METHOD, accounting=Accounting(recipients="all"))
    some, all_of_them = (
        run(method, normed(), Toy(), rounds=2, options=Options(eval_every=0)).cost
        for method in (METHOD, everybody)
    )
    one = 32 * (8 * 3 + 3)
    assert some.paper_up == some.paper_down == all_of_them.paper_up == 2 * 2 * one
    assert all_of_them.paper_down == 2 * 6 * one and all_of_them.down == some.down


def test_a_saved_state_has_no_tensor_that_travels(tmp_path: Path) -> None:
    """Read from the files themselves, names and all."""
    run(METHOD, normed(), Toy(), rounds=2, out=tmp_path)
    files = list(tmp_path.glob("rounds/*/local/*.bin"))
    assert files
    for path in files:
        text = path.read_bytes().split(b"GOSSAMER1\n")[1][4:]
        schema, _ = json.JSONDecoder().raw_decode(text.decode("latin-1"))
        assert "1.running_mean" in json.dumps(schema) and "4.weight" not in json.dumps(schema)
