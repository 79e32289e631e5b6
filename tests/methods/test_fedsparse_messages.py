"""What FedSparse sends, to the bit; what its clients keep; and clients that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from fedsparse_cases import equal, groups_of, net, paper, pictures, pruned, sent, toy, trained
from flash_cases import Heard
from torch import Tensor

import gossamer as gs
from gossamer import Client, Ctx, Exchange, Result, Task, config, fields
from gossamer.accounting import paper_bits
from gossamer.accounting.dry_run import price
from gossamer.engine.client import train
from gossamer.methods.as_published import fedsparse as variants
from gossamer.methods.fedsparse import Down, FedSparse, Local, Server, Up
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.sparsity.gated_training import Work
from gossamer.wire import Mode, Schema, WireError, decode, dump, encode, pack, unpack
from helpers import Toy, client_ctx, mlp, server_ctx

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
LAYERS = ("conv1.weight", "conv2.weight", "fc1.weight")
ALIVE, OPEN = (30, 40, 200), (30, 38, 190)
DRY = gs.Options(workers=1, eval_every=0, checkpoint_every=100)


def left(counts: tuple[int, ...]) -> dict[str, range]:
    """The groups that go so that so many are left in each layer of LeNet-5."""
    wholes = (32, 64, 512)
    return {n: range(c, w) for n, c, w in zip(LAYERS, counts, wholes, strict=True)}


def biased(state: Server, bias: float) -> Server:
    """The state with the same number for all biases."""
    biases = {n: torch.full_like(t, bias) for n, t in state.params.items() if n.endswith(".bias")}
    return replace(state, params={**state.params, **biases})


def blank(task: Task) -> Ctx:
    x = task.layout.input.blank(2)
    return client_ctx(task, gs.Examples(x, torch.zeros(2, dtype=torch.int64)))


def reply(method: FedSparse, task: Task, down: Down, shut: dict[str, range]) -> Up:
    """A client's answer without training, with gates that are open for certain but for a few."""
    ctx = blank(task)
    work = method.begin(ctx, down, None).work
    places = torch.zeros(work.part.whole.total, dtype=torch.bool)
    for name, part in work.part.whole.split(places).items():
        part[list(shut.get(name, ()))] = True
    work.raw = torch.where(places[work.part.places], 30.0, -30.0)
    return method.finish(ctx, work).up


# O8 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "classes", "count", "full", "down", "up"),
    [
        (COLOUR, 10, 878_538, 28_133_280, 11_528_864, 10_956_686),
        (GREY, 62, 608_702, 19_498_528, 8_648_096, 8_260_238),
    ],
    ids=["cifar10", "femnist"],
)
def test_bits_of_messages(
    shape: tuple[int, ...], classes: int, count: int, full: int, down: int, up: int
) -> None:
    task, method = paper(shape, classes), toy()
    assert task.layout.count == count
    whole = sent(method, task, method.init(server_ctx(task, round=0)))
    assert paper_bits(whole) == full == 32 * count + 608 + 32 * 608
    told = sent(method, task, biased(pruned(method, task, left(ALIVE)), 0.1))
    assert paper_bits(told) == down
    answer = reply(method, task, told, left(OPEN))
    assert [int(opened.sum()) for opened in answer.opened.values()] == list(OPEN)
    assert paper_bits(answer) == up


@pytest.mark.parametrize(
    ("shape", "classes", "row", "inputs"), [(COLOUR, 10, 75, 25), (GREY, 62, 25, 16)]
)
def test_inputs_that_nothing_reaches_are_not_sent(
    shape: tuple[int, ...], classes: int, row: int, inputs: int
) -> None:
    """Biases that no ReLU lets pass: 30, 40 and 200 units are left, and feed what comes next."""
    task, method = paper(shape, classes), toy()
    told = sent(method, task, biased(pruned(method, task, left(ALIVE)), -0.1))
    beside = 30 + 40 + 200 + 201 * classes  # biases, and the last layer
    rows = 30 * row + 40 * 30 * 25 + 200 * 40 * inputs
    # A bit for each group and each pruned one, a threshold each, and the norms of what is missing.
    more = 608 + 338 + 32 * 270 + 32 * (40 + 200)
    assert paper_bits(told) == 32 * (rows + beside) + more
    opened = 30 * row + 38 * 30 * 25 + 190 * 40 * inputs
    assert paper_bits(reply(method, task, told, left(OPEN))) == 32 * (opened + beside) + 270


def test_a_reply_with_all_gates_open_costs_a_bit_for_each_beside_the_weights() -> None:
    task, method = paper(COLOUR, 10), toy()
    answer = reply(method, task, sent(method, task, method.init(server_ctx(task, round=0))), {})
    assert paper_bits(answer) == 28_113_216 + 608
    told = sent(method, task, biased(pruned(method, task, left(ALIVE)), 0.1))
    part = paper_bits(told) - 608 - 32 * 270
    assert paper_bits(reply(method, task, told, {})) == part + 270


def test_bytes_are_no_more_than_the_paper_counts_and_some() -> None:
    """Bits of groups are coded; a few bytes per tensor tell how much there is."""
    task, method = paper(COLOUR, 10), toy()
    told = sent(method, task, biased(pruned(method, task, left(ALIVE)), 0.1))
    data = encode(told, Schema.of(told))
    assert 8 * len(data) < 11_528_864 + 8 * 64
    again = decode(data, Schema.of(told))
    assert dump(again) == dump(told)


def test_the_ledger_has_these_bits() -> None:
    task, method = paper(COLOUR, 10), toy(clients=1, theta0=1 - 1e-6)
    cost = price(method, task, classes=10, pool=3, examples=2, rounds=1, options=DRY)
    assert cost.total("down").paper == 28_133_280
    # Gates are as good as certainly open, and all weights come back.
    assert cost.total("up").paper == 28_113_216 + 608


PAPERS = Path(gs.__file__).parent / "papers" / "fedsparse"


@pytest.mark.parametrize(
    ("name", "model", "shape", "classes", "gib", "printed"),
    [
        ("cifar10", "lenet5", COLOUR, 10, 65.46, 65),
        ("cifar100-resnet20", "resnet20", COLOUR, 100, 123.19, 123),
        ("femnist", "lenet5", GREY, 62, 272.11, 272),
    ],
)
def test_the_papers_gigabytes_are_gibibytes(
    name: str, model: str, shape: tuple[int, ...], classes: int, gib: float, printed: int
) -> None:
    found = config.read(PAPERS / f"{name}-fedavg.toml")
    wish = found.experiment
    assert wish.model.partition(":")[0] == model
    task = paper(shape, classes) if model == "lenet5" else resnet()
    method = found.build_method()
    assert method.clients == 10  # type: ignore[attr-defined]
    one = fields.replace(method, {"clients": 1})
    cost = price(one, task, classes=classes, pool=2, examples=2, rounds=1, options=DRY)
    bits = (cost.total("up").paper + cost.total("down").paper) * 10 * wish.rounds
    assert bits / 8 / 2**30 == pytest.approx(gib, abs=0.005)
    assert round(bits / 8 / 2**30) == printed != round(bits / 8 / 1e9)


def resnet() -> Task:
    return Task.of(gs.models.build("resnet20", COLOUR, 100), torch.zeros(2, *COLOUR), start="seed")


def test_thresholds_are_never_rounded() -> None:
    """A half of a threshold would be several logits."""
    method, task = toy(), net()
    told = sent(method, task, method.init(server_ctx(task, round=0)))
    half = Mode.parse("f16")
    found = decode(encode(told, Schema.of(told), half), Schema.of(told), half)
    assert equal(found.thresholds.values, told.thresholds.values)
    assert not equal(found.model.values.values, told.model.values.values)


def test_a_layer_without_any_group_left_still_travels() -> None:
    method, task = toy(), net()
    state = pruned(method, task, {"0.weight": range(4), "5.weight": range(10)})
    told = sent(method, task, state)
    found = decode(encode(told, Schema.of(told)), Schema.of(told))
    assert dump(found) == dump(told) and found.model.values.values["0.weight"].numel() == 0
    result = trained(method, task, state)
    answer = result.up
    again = decode(encode(answer, Schema.of(answer)), Schema.of(answer))
    after = method.merge(server_ctx(task), state, [Exchange(Client(0, 9), found, again)])
    assert not after.params["0.weight"].any() and not after.params["5.weight"].any()
    assert not equal(after.params, state.params)


@pytest.mark.parametrize(
    "settings",
    [{}, {"linear_axis": "in"}, {"granularity": "weights", "temperature": 1e-6}],
    ids=str,
)
def test_weights_travel_as_their_masks_have_them(settings: dict[str, object]) -> None:
    """Whole slices, in the order of the tensor, however it is laid out; nothing, some, and all."""
    method, task = toy(**settings), net()
    groups, state = groups_of(method, task), method.init(server_ctx(task, round=0))
    params = task.own(state.params)  # filters are laid out with their channels last
    draw, names, alive = gs.Key(3).generator(), groups.names, groups.split(state.alive)
    for share in (0.0, 0.5, 1.0):
        kept = {n: torch.rand(a.shape, generator=draw) < share for n, a in alive.items()}
        masks = groups.masks(groups.join(kept), params)
        wanted = pack({name: params[name] for name in names}, masks)
        found = groups.pack(params, kept)
        assert found.shapes == wanted.shapes and equal(found.values, wanted.values)
        back = groups.unpack(found, kept, wanted)
        assert equal(back, unpack(wanted, masks))


# what clients keep --------------------------------------------------------------------------------


def test_a_clients_own_model_is_what_it_sent_last() -> None:
    method, task = toy(theta0=0.6), net("batch")
    layers = [name for name, leaf in task.layout.leaves.items() if leaf.kind == "conv"]
    state = pruned(method, task, {layers[0]: [2]})
    ctx = client_ctx(task, pictures())
    down = sent(method, task, state)
    done = train(method, ctx, down, None).result
    own = method.model(server_ctx(task), state, done.local)
    assert list(own) == list(task.layout.names)
    shut = 0
    for name, opened in done.up.opened.items():
        alive = down.alive[name].nonzero().flatten()
        assert torch.equal(own[name][alive[opened]].flatten(), done.up.model.values.values[name])
        assert not own[name][alive[~opened]].any()
        shut += int((~opened).sum())
    assert shut > 0 and not own[layers[0]][2].any()
    model = done.up.model
    for name in (*down.model.dense, *down.model.buffers):
        assert torch.equal(own[name], {**model.dense, **model.buffers}[name])


def test_clients_that_are_to_have_the_global_model_keep_nothing() -> None:
    method, task = toy(personal_model="global"), net()
    state = method.init(server_ctx(task, round=0))
    assert trained(method, task, state).local is None
    kept = trained(toy(personal_model="global", client_moments="keep"), task, state).local
    assert isinstance(kept, variants.Local) and kept.steps == 3 and not kept.model.dense
    assert method.model(server_ctx(task), state, kept) is state.params


def test_the_tested_model_may_be_weighed_by_its_probabilities() -> None:
    task = net()
    state = pruned(toy(), task, {"5.weight": [1]})
    plain = toy().model(server_ctx(task), state, None)
    scaled = toy(test_gates="mean").model(server_ctx(task), state, None)
    assert plain is state.params
    assert torch.allclose(scaled["0.weight"], 0.99 * plain["0.weight"], rtol=1e-3)
    assert torch.equal(scaled["7.weight"], plain["7.weight"])
    assert not scaled["5.weight"][1].any()


def test_measures_tell_what_is_alive() -> None:
    task, method = paper(COLOUR, 10), toy()
    found = method.measures(server_ctx(task), pruned(method, task, left(ALIVE)))
    assert found.metrics["alive"] == pytest.approx(270 / 608)
    assert found.metrics["alive.fc1.weight"] == pytest.approx(200 / 512)
    assert found.metrics["theta"] == pytest.approx(0.99, abs=1e-3)
    zeros = 2 * 75 + 24 * 800 + 312 * 1600
    assert found.metrics["zeros"] == pytest.approx(zeros / 878_538)
    assert {name: int(mask.sum()) for name, mask in found.masks.items()} == {
        "conv1.weight": 30 * 75,
        "conv2.weight": 40 * 800,
        "fc1.weight": 200 * 1600,
    }


# clients that lie ---------------------------------------------------------------------------------

WEIGHT = "0.weight"


def gates(change: Callable[[Tensor], Tensor]) -> Callable[[Up], Up]:
    return lambda up: replace(up, opened={name: change(each) for name, each in up.opened.items()})


def model(change: Callable[[SparseModel], SparseModel]) -> Callable[[Up], Up]:
    return lambda up: replace(up, model=change(up.model))


def values(change: Callable[[Tensor], Tensor]) -> Callable[[Up], Up]:
    def lie(sent: SparseModel) -> SparseModel:
        changed = {name: change(each) for name, each in sent.values.values.items()}
        return replace(sent, values=replace(sent.values, values=changed))

    return model(lie)


def dense(**changes: Tensor) -> Callable[[Up], Up]:
    return model(lambda sent: replace(sent, dense={**sent.dense, **changes}))


LIES: dict[str, Callable[[Up], Up]] = {
    "a gate less": gates(lambda each: each[1:]),
    "gates of all groups": gates(lambda each: torch.cat([each, each])),
    "gates as numbers": lambda up: replace(up, opened={n: e.int() for n, e in up.opened.items()}),
    "no gates": lambda up: replace(up, opened={}),
    "gates of another tensor": lambda up: replace(up, opened={"3.weight": up.opened[WEIGHT]}),
    "another gate open": gates(lambda each: ~each),
    "too few values": values(lambda each: each[1:]),
    "too many values": values(lambda each: torch.cat([each[:1], each])),
    "no values": values(lambda each: each[:0]),
    "precise values": values(Tensor.double),
    "not a number": values(lambda each: each / 0),
    "a stretched bias": dense(**{"0.bias": torch.ones(1)}),
    "a precise bias": dense(**{"0.bias": torch.ones(8).double()}),
    "an unknown tensor": dense(**{"9.bias": torch.ones(8)}),
    "unknown statistics": model(lambda sent: replace(sent, buffers={"0.bias": torch.ones(8)})),
}
EVERYBODY = len(LIES) + 3


@dataclass(frozen=True)
class Lying(FedSparse):
    silent: bool = False

    def finish(self, ctx: Ctx, work: Work) -> Result[Up, Local]:
        done = super().finish(ctx, work)
        client = int(ctx.key.path[-1])
        if client >= len(LIES):
            return done
        if self.silent:
            raise RuntimeError("nothing to say")
        return replace(done, up=list(LIES.values())[client](done.up))


def test_liars_are_refused_and_change_nothing() -> None:
    states, sinks = [], [Heard(), Heard()]
    for sink, silent in zip(sinks, (False, True), strict=True):
        method = Lying(**vars(toy(clients=EVERYBODY, theta0=0.8)), silent=silent)
        options = gs.Options(workers=1, eval_every=0, checkpoint_every=100, on_client_error="skip")
        federation = Toy(sizes=[8] * EVERYBODY)
        found = gs.run(method, mlp(), federation, rounds=2, sinks=[sink], options=options)
        states.append(dump(found.state))
    names = [*LIES, *range(EVERYBODY)]
    failed = {(names[each.client], each.round) for each in sinks[0].failed}
    assert failed == {(name, number) for name in LIES for number in (1, 2)}
    assert all("WireError" in each.reason for each in sinks[0].failed)
    assert states[0] == states[1]
    assert len(sinks[1].finished) == 2 * 3


@pytest.mark.parametrize("name", [name for name in LIES if name != "not a number"])
def test_a_merge_refuses_them_without_a_wire_that_knows_the_form(name: str) -> None:
    method, task = toy(theta0=0.8), mlp()
    state = method.init(server_ctx(task, round=0))
    data = Toy().client(0).train
    down = method.down(server_ctx(task), state, Client(0, 20))
    up = train(method, client_ctx(task, data), down, None).result.up
    method.merge(server_ctx(task), state, [Exchange(Client(0, 20), down, up)])
    lied = Exchange(Client(0, 20), down, LIES[name](up))
    with pytest.raises(WireError):
        method.merge(server_ctx(task), state, [lied])
