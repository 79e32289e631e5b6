"""A compacted model computes what the masked one does, forwards and backwards, and is smaller."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from gossamer import Key, Params, Task, submodels
from gossamer.models import build
from gossamer.optim import sgd
from gossamer.task.layout import Layout
from helpers import batch_of, same

Keep = dict[str, Tensor]

COLOUR = (3, 8, 8)
SHAPES = {
    "lenet5_caffe": (1, 16, 16),
    "lenet5": (3, 16, 16),
    "lenet_cifar": (3, 14, 14),
    "cnn7": (3, 28, 28),
    "mlp:hidden=9x7": (1, 4, 4),
    "resnet8": COLOUR,
    "resnet18:width=8": COLOUR,
    "resnet18:width=8,preact=true,norm=group": COLOUR,
    "resnet20": COLOUR,
}
SMALL = ("lenet5_caffe", "mlp:hidden=9x7", "resnet8", "resnet20")


@cache
def task_of(name: str) -> Task:
    """In float64, so that nothing but a mistake makes a difference."""
    module = build(name, SHAPES[name], 5).double()
    return Task.of(module, torch.zeros(2, *SHAPES[name], dtype=torch.float64), start="seed")


def chain(*layers: nn.Module, shape: tuple[int, ...] = (2, 4, 4)) -> Task:
    module = nn.Sequential(*layers).double()
    return Task.of(module, torch.zeros(2, *shape, dtype=torch.float64), start="seed")


@cache
def start_of(task: Task) -> Params:
    return task.init(Key(1))


def params_of(task: Task, seed: int = 1) -> Params:
    """Values without zeros or ones at which a mistake could hide; variances are positive."""
    draw = Key(seed).generator()
    return {
        name: (tensor + 0.3 * torch.randn(tensor.shape, generator=draw)).to(tensor.dtype)
        if not name.endswith("running_var")
        else (0.5 + torch.rand(tensor.shape, generator=draw)).to(tensor.dtype)
        for name, tensor in start_of(task).items()
    }


def keep_of(task: Task, seed: int, rate: float = 0.5) -> Keep:
    """Random units of every layer; layers that share units mostly agree, or none would go."""
    structure, draw = submodels.trace(task), Key(seed).generator()
    keep = {}
    for space in structure.spaces:
        most = max(structure.units[name] for name in space)
        common = torch.rand(most, generator=draw) < rate
        common[0] = True
        for name in space:
            own = torch.rand(structure.units[name], generator=draw) < 0.05
            keep[name] = common[: len(own)] | (own if len(space) > 1 else False)
    return keep


def batch_for(task: Task, count: int = 3) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, *task.layout.input.shape, generator=Key(5).generator())
    return x.to(task.layout.input.dtype), torch.arange(count) % 2


def run(task: Task, params: Params, train: bool) -> tuple[Tensor, Params, Params]:
    """Outputs, gradients, and running statistics afterwards, in the precision of the parameters."""
    x, y = batch_for(task)
    leaves = {name: tensor.clone() for name, tensor in params.items()}
    for name in task.layout.parameters:
        leaves[name].requires_grad_()
    out = functional_call(task.module.train(train), leaves, (x,))
    loss = functional.cross_entropy(out, y)
    wanted = list(task.layout.parameters)
    grads = torch.autograd.grad(loss, [leaves[name] for name in wanted], allow_unused=True)
    found = {
        name: torch.zeros_like(params[name]) if grad is None else grad
        for name, grad in zip(wanted, grads, strict=True)
    }
    after = {name: leaves[name].detach() for name in task.layout.buffers}
    return out.detach(), found, after


def close(left: Params, right: Params, tolerance: float = 1e-9) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        scale = max(float(right[name].abs().max()), 1.0)
        assert tensor.shape == right[name].shape
        assert float((tensor - right[name]).abs().max()) < tolerance * scale, name


def check(task: Task, keep: Keep, seed: int = 1) -> submodels.Cut:
    """The compacted model and the masked one: outputs, gradients, statistics and layout."""
    params, cut = params_of(task, seed), submodels.trace(task).cut(keep)
    small, values = submodels.compact(task, params, keep)
    full = submodels.masked(task, params, keep)
    for train in (True, False):
        expected, gradients, statistics = run(task, full, train)
        out, own_gradients, own_statistics = run(small, values, train)
        close({"out": out}, {"out": expected})
        close(own_gradients, cut.take(gradients))
        close(own_statistics, cut.take(statistics))
    return cut


# the same function ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHAPES)
@settings(max_examples=2)
@given(seed=st.integers(0, 2**20), rate=st.sampled_from([0.1, 0.5, 0.9]))
def test_a_compacted_model_computes_what_the_masked_one_does(
    name: str, seed: int, rate: float
) -> None:
    task = task_of(name)
    cut = check(task, keep_of(task, seed, rate), seed)
    assert cut.layout.count < task.layout.count or rate == 0.9


@settings(max_examples=10)
@given(data=st.data())
def test_single_inputs_of_linear_layers_can_be_left_out(data: st.DataObject) -> None:
    task = task_of("mlp:hidden=9x7")
    keep = {
        name: torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
        for name, count in (("fc1.weight:in", 16), ("fc2.weight", 7), ("fc2.weight:in", 9))
    }
    for flags in keep.values():
        flags[0] = True
    cut = check(task, keep | {"fc1.weight": torch.arange(9) < 5})
    assert cut.layout["fc1.weight"].shape == (5, int(keep["fc1.weight:in"].sum()))
    assert cut.layout["fc2.weight"].shape[1] == int(keep["fc2.weight:in"][:5].sum())


def test_features_of_an_image_can_be_left_out_one_by_one() -> None:
    task = chain(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4))
    features = torch.tensor([1, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0]).bool()
    cut = check(task, {"3.weight:in": features, "0.weight": torch.tensor([1, 1, 0]).bool()})
    assert cut.layout["3.weight"].shape == (4, 3)
    assert cut.keep["3.weight:in"].tolist() == (features & (torch.arange(12) < 8)).tolist()


ZERO_TO_ZERO = [
    *(nn.ReLU(), nn.GELU(), nn.Tanh(), nn.SiLU(), nn.LeakyReLU(), nn.ELU(), nn.Hardswish()),
    *(nn.Identity(), nn.PReLU(), nn.PReLU(6), nn.Softsign(), nn.Mish(), nn.Dropout(0.0)),
    *(nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveMaxPool2d(1), nn.InstanceNorm2d(6)),
    *(nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False, track_running_stats=False)),
    nn.BatchNorm2d(6, track_running_stats=False),
    *(nn.GroupNorm(3, 6), nn.GroupNorm(6, 6), nn.GroupNorm(1, 6)),
    *(nn.InstanceNorm2d(6, affine=True, track_running_stats=True),),
    nn.Conv2d(6, 6, 3, padding=1, groups=6),
]


@pytest.mark.parametrize("part", ZERO_TO_ZERO, ids=str)
def test_units_pass_whatever_leaves_zero_at_zero(part: nn.Module) -> None:
    layers = (nn.Conv2d(2, 6, 3, padding=1), part, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    task = chain(*layers, nn.Linear(6, 3))
    keep = {name: torch.tensor([1, 0, 1, 0, 0, 1]).bool() for name in submodels.trace(task).units}
    cut = check(task, keep)
    assert cut.layout["0.weight"].shape[0] == cut.layout["4.weight"].shape[1] == 3


class Functional(nn.Module):
    """Residual, without modules for what has no parameters; one layer is called twice."""

    def __init__(self, last: str = "view") -> None:
        super().__init__()
        self.last = last
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.twice = nn.Conv2d(4, 4, 3, padding=1)
        self.other = nn.Conv2d(4, 3, 1)
        self.head = nn.Linear(28 if last != "mean" else 7, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.stem(x))
        x = x + torch.tanh(self.twice(x)) * 0.5
        x = functional.max_pool2d(self.twice(x).relu(), 2)
        x = torch.cat([x, self.other(x)], 1)
        match self.last:
            case "view":
                x = x.view(x.size(0), -1)
            case "reshape":
                x = x.reshape(x.shape[0], -1)
            case "flatten":
                x = torch.flatten(x, 1)
            case "mean":
                x = x.mean((2, 3))
            case "fixed":
                x = x.view(-1, 28)
        return self.head(x)


@pytest.mark.parametrize("last", ["view", "reshape", "flatten", "mean"])
def test_functions_and_layers_that_are_called_twice_are_followed(last: str) -> None:
    module = Functional(last).double()
    task = Task.of(module, torch.zeros(2, 2, 4, 4, dtype=torch.float64), start="seed")
    assert submodels.trace(task).units == {"stem.weight": 4, "twice.weight": 4, "other.weight": 3}
    assert submodels.trace(task).tied["stem.weight"] == ("twice.weight",)
    flags = torch.tensor([1, 0, 1, 1]).bool()
    keep = {"stem.weight": flags, "twice.weight": flags, "other.weight": flags[1:]}
    cut = check(task, keep)
    assert cut.layout["twice.weight"].shape[:2] == (3, 3)
    assert cut.layout["head.weight"].shape[1] == (5 if last == "mean" else 20)


def test_groups_may_be_left_empty_or_uneven() -> None:
    task = chain(nn.Conv2d(2, 6, 3), nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(24, 3))
    cut = check(task, {"0.weight": torch.tensor([1, 0, 0, 0, 1, 1]).bool()})
    assert cut.layout["1.weight"].shape == (3,)


def test_training_the_compacted_model_is_training_the_masked_one() -> None:
    task = Task.of(build("resnet8", COLOUR, 5), torch.zeros(2, *COLOUR), start="seed")
    keep, params = keep_of(task, 3), task.init(Key(1))
    cut = submodels.trace(task).cut(keep)
    small = cut.task(task)
    dense, thin = task.own(submodels.masked(task, params, keep)), small.own(cut.take(params))
    x, y = batch_for(task, 6)
    for step in range(3):
        batch = batch_of(x, y, Key(step))
        for each, values, masks in ((task, dense, cut.masks()), (small, thin, {})):
            grads = each.gradients(values, batch, masks).grads
            sgd([values[name] for name in grads], list(grads.values()), [], rate=0.1)
    close(thin, cut.take(dense), 1e-4)


# there and back ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**20))
def test_giving_back_is_the_inverse_of_taking(name: str, seed: int) -> None:
    task = task_of(name)
    params, others = params_of(task), params_of(task, 2)
    before = {name: tensor.clone() for name, tensor in others.items()}
    cut = submodels.trace(task).cut(keep_of(task, seed))
    assert same(cut.give(cut.take(params), params), params)
    changed = cut.give(cut.take(params), others)
    assert same(cut.take(changed), cut.take(params))
    assert same(others, before)
    masks = cut.masks()
    assert tuple(masks) == task.layout.prunable
    for weight, mask in masks.items():
        assert torch.equal(changed[weight], torch.where(mask, params[weight], others[weight]))
        assert int(mask.sum()) == cut.layout[weight].count


def test_a_restored_model_is_silent_where_units_were_removed() -> None:
    task = task_of("resnet8")
    keep, params = keep_of(task, 4), params_of(task)
    small, values = submodels.compact(task, params, keep)
    restored = submodels.restore(task, values, keep)
    assert list(restored) == list(params)
    close({"out": run(task, restored, True)[0]}, {"out": run(small, values, True)[0]})
    close(
        {"out": run(task, restored, False)[0]},
        {"out": run(task, submodels.masked(task, params, keep), False)[0]},
    )
    assert same(submodels.restore(task, values, keep, into=params), params)


def test_keeping_everything_changes_nothing() -> None:
    task = task_of("resnet20")
    small, values = submodels.compact(task, params_of(task), {})
    assert same(values, params_of(task))
    assert small.layout == task.layout
    assert all(bool(mask.all()) for mask in submodels.trace(task).cut({}).masks().values())


@pytest.mark.parametrize("name", [*SMALL, "cnn7", "resnet18:width=8,preact=true,norm=group"])
def test_the_layout_is_the_one_that_tracing_finds(name: str) -> None:
    task = task_of(name)
    keep = keep_of(task, 7)
    if name == "lenet5_caffe":
        keep["fc2.weight:in"] = torch.arange(500) % 3 > 0
    cut = submodels.trace(task).cut(keep)
    example = torch.zeros(2, *SHAPES[name], dtype=torch.float64)
    assert cut.task(task).layout == Layout.trace(cut.task(task).module, example)
    assert cut.layout.macs < task.layout.macs


# which units there are --------------------------------------------------------------------------


def test_layers_that_are_added_share_their_units() -> None:
    structure = submodels.trace(task_of("resnet8"))
    stage = "stages.1.0"
    assert structure.spaces[0] == ("conv.weight", "stages.0.0.conv2.weight")
    assert structure.tied[f"{stage}.conv2.weight"] == (f"{stage}.shortcut.conv.weight",)
    inner = [name for name in structure.units if not structure.tied[name]]
    assert inner == [f"stages.{index}.0.conv1.weight" for index in range(3)]


def test_a_shared_unit_goes_only_if_every_layer_drops_it() -> None:
    task = task_of("resnet8")
    two = torch.arange(16) >= 2
    cut = submodels.trace(task).cut(
        {"conv.weight": two, "stages.0.0.conv2.weight": two | (two < 1)}
    )
    assert cut.keep["conv.weight"].all()
    cut = submodels.trace(task).cut({"conv.weight": two, "stages.0.0.conv2.weight": two.roll(1)})
    gone = torch.arange(16) == 1
    assert torch.equal(cut.keep["conv.weight"], ~gone)
    assert torch.equal(cut.keep["stages.0.0.conv2.weight"], ~gone)
    assert torch.equal(cut.masks()["stages.1.0.conv1.weight"][0, :, 0, 0], ~gone)


def test_padded_shortcuts_tie_the_channels_that_they_pass_on() -> None:
    structure = submodels.trace(task_of("resnet20"))
    stream = max(structure.spaces, key=len)
    assert len(stream) == 10 and {structure.units[name] for name in stream} == {16, 32, 64}
    drop = {name: torch.arange(structure.units[name]) != 20 for name in stream}
    cut = structure.cut({name: flags for name, flags in drop.items() if len(flags) > 16})
    assert [cut.layout[name].rows for name in stream] == [16] * 4 + [31] * 3 + [63] * 3


def test_the_sub_models_of_federated_dropout_have_the_published_sizes() -> None:
    task = Task.of(build("resnet20", COLOUR, 100), torch.zeros(2, *COLOUR), start="seed")
    structure = submodels.trace(task)
    inner = {name: count for name, count in structure.units.items() if not structure.tied[name]}
    keep = {name: torch.arange(count) >= count // 10 for name, count in inner.items()}
    assert task.layout.rows - 100 == 688
    assert structure.cut(keep).layout.count == 250_888


@pytest.mark.parametrize(
    ("shape", "classes", "conv", "rest", "rounds", "inputs", "whole"),
    [
        ((3, 32, 32), 10, 0.1, 0.5, 1e3, 34.56, 31.17),
        ((1, 28, 28), 62, 0.2, 0.4, 6e3, 174.14, 138.7),
    ],
)
def test_lenets_sub_models_have_the_published_sizes(
    shape: tuple[int, ...],
    classes: int,
    conv: float,
    rest: float,
    rounds: float,
    inputs: float,
    whole: float,
) -> None:
    task = Task.of(build("lenet5", shape, classes), torch.zeros(2, *shape), start="seed")
    structure = submodels.trace(task)

    def gibibytes(**rates: float) -> float:
        keep = {}
        for name, rate in rates.items():
            layer, _, side = name.partition("_")
            leaf = task.layout[f"{layer}.weight"]
            count = leaf.fan_in if side else leaf.rows
            keep[f"{leaf.name}{':in' if side else ''}"] = torch.arange(count) >= int(rate * count)
        return structure.cut(keep).layout.count * 4 * 2 * 10 * rounds / 2**30

    assert gibibytes(conv1=conv, fc1_in=rest) == pytest.approx(inputs, abs=0.005)
    assert gibibytes(conv1=conv, conv2=conv, fc1=rest) == pytest.approx(whole, abs=0.05)


# what cannot be removed ---------------------------------------------------------------------------


def refused(task: Task, name: str, drop: int = 0) -> str:
    count = task.layout[name].rows
    with pytest.raises(ValueError) as caught:
        submodels.compact(task, params_of(task), {name: torch.arange(count) != drop})
    assert name in str(caught.value)
    return str(caught.value)


def test_the_models_output_stays() -> None:
    task = task_of("lenet5_caffe")
    assert "fc2.weight" not in submodels.trace(task).units
    assert "the model's output" in refused(task, "fc2.weight")


class Rows(nn.Module):
    """An LSTM over what a linear layer makes of every row."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 5)
        self.lstm = nn.LSTM(5, 3, batch_first=True)
        self.fc = nn.Linear(3, 6)
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.embed(x))
        return self.head(self.fc(states[:, -1]).relu())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.first(self.second(x).relu()).relu())


class Direct(nn.Module):
    """Uses the weight of a layer once more, by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.fc(functional.linear(x, self.fc.weight)).relu())


@pytest.mark.parametrize(
    ("module", "shape", "name", "reason"),
    [
        (Rows(), (3, 4), "embed.weight", "LSTM 'lstm'"),
        (Tied(), (4,), "first.weight", "shares its weight"),
        (Direct(), (4,), "fc.weight", "without its module"),
        (Functional("fixed"), (2, 4, 4), "other.weight", "flatten"),
    ],
)
def test_what_cannot_be_followed_is_fixed_with_the_reason(
    module: nn.Module, shape: tuple[int, ...], name: str, reason: str
) -> None:
    task = Task.of(module.double(), torch.zeros(2, *shape, dtype=torch.float64), start="seed")
    assert name not in submodels.trace(task).units
    assert reason in refused(task, name)


def test_layers_behind_one_that_cannot_be_followed_can_be_cut() -> None:
    task = Task.of(Rows().double(), torch.zeros(2, 3, 4, dtype=torch.float64), start="seed")
    assert submodels.trace(task).units == {"fc.weight": 6}
    check(task, {"fc.weight": torch.arange(6) > 2})
    with pytest.raises(ValueError, match=r"'lstm.weight_ih_l0' has no units"):
        submodels.trace(task).cut({"lstm.weight_ih_l0": torch.ones(12).bool()})


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (nn.Sigmoid(), "Sigmoid '1' does not turn zero into zero"),
        (nn.Softmax(1), "Softmax '1' does not turn zero into zero"),
        (nn.Conv2d(6, 6, 1, groups=2), "Conv2d '1' works in 2 groups"),
        (nn.Conv2d(6, 12, 1, groups=6), "Conv2d '1' works in 6 groups"),
        (nn.GroupNorm(2, 6, affine=False), "GroupNorm '1' has no scale"),
        (nn.BatchNorm2d(6, affine=False), "BatchNorm2d '1' has no scale"),
        (nn.LayerNorm([6, 4, 4]), "LayerNorm '1' works across them"),
    ],
    ids=str,
)
def test_units_stay_before_what_would_not_keep_them_silent(part: nn.Module, reason: str) -> None:
    layers = (
        nn.Conv2d(2, 6, 3, padding=1),
        part,
        nn.Conv2d(part(torch.zeros(1, 6, 4, 4)).shape[1], 4, 1),
    )
    task = chain(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    assert reason in refused(task, "0.weight")
    check(task, {"2.weight": torch.arange(4) > 1})


def test_a_model_that_cannot_be_traced_is_named() -> None:
    task = Task.of(build("lstm:hidden=4", (4, 3), 2), torch.zeros(2, 4, 3), start="seed")
    with pytest.raises(ValueError, match=r"RowLstm.* cannot be traced"):
        submodels.trace(task)


class Branch(nn.Module):
    """Looks at numbers to decide what to do."""

    def forward(self, x: Tensor) -> Tensor:
        return x if bool(x.sum() > 0) else -x


def test_a_part_that_cannot_be_traced_is_left_whole() -> None:
    task = chain(nn.Linear(4, 5), Branch(), nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2), shape=(4,))
    assert submodels.trace(task).units == {"2.weight": 6}
    assert "Branch '1'" in refused(task, "0.weight")
    check(task, {"2.weight": torch.arange(6) % 2 > 0})


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        ({"fc1.weight": torch.zeros(9).bool()}, "fc1.weight would keep none of its 9 units"),
        ({"fc1.weight:in": torch.zeros(16).bool()}, "fc1.weight would keep none of its inputs"),
        ({"fc1.weight": torch.ones(9)}, "fc1.weight takes 9 truth values"),
        ({"fc1.weight": torch.ones(8).bool()}, r"fc1.weight takes 9 .* shape \(8,\)"),
        ({"fc1.wait": torch.ones(9).bool()}, "did you mean 'fc1.weight'"),
        ({"fc1.bias": torch.ones(9).bool()}, "'fc1.bias' has no units"),
        ({"fc9.weight:in": torch.ones(9).bool()}, "fc9.weight cannot leave out single inputs"),
    ],
)
def test_mistakes_are_named(keep: Keep, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        submodels.trace(task_of("mlp:hidden=9x7")).cut(keep)


def test_tensors_that_have_no_place_are_refused() -> None:
    task = task_of("mlp:hidden=9x7")
    cut, params = submodels.trace(task).cut({}), params_of(task)
    with pytest.raises(KeyError, match="no leaf 'fc7'"):
        cut.take({"fc7": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"no full tensor 'fc1.bias'"):
        cut.give(params, {"fc1.weight": params["fc1.weight"]})


# the small task ---------------------------------------------------------------------------------


def test_the_small_task_is_like_the_full_one() -> None:
    def criterion(out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out, y) * 2

    shape = SHAPES["lenet5"]
    module = build("lenet5:dropout=true", shape, 5)
    task = Task.of(
        module, torch.zeros(2, *shape), criterion=criterion, precision="bf16", start="seed"
    )
    small, params = submodels.compact(
        task, task.init(Key(1)), {"conv2.weight": torch.arange(64) > 50}
    )
    assert (small.criterion, small.precision, small.device) == (criterion, "bf16", "cpu")
    x, y = batch_for(task)
    first = small.loss(params, batch_of(x, y, Key(3)))
    assert torch.equal(first, small.loss(params, batch_of(x, y, Key(3))))
    assert not torch.equal(first, small.loss(params, batch_of(x, y, Key(4))))
    assert small.init(Key(1)).keys() == params.keys()
    assert all(small.init(Key(1))[name].shape == params[name].shape for name in params)
    assert module.state_dict()["conv2.weight"].shape[0] == 64


def test_group_norms_of_few_channels_compute_in_full_precision() -> None:
    module = nn.Sequential(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(24, 3))
    rough = Task.of(module, torch.zeros(2, 2, 4, 4), precision="bf16", start="seed")
    keep = {"0.weight": torch.tensor([1, 0, 0, 1, 1, 1]).bool()}
    params, (x, _) = params_of(rough), batch_for(rough)
    small, values = submodels.compact(rough, params, keep)
    expected = rough.logits(submodels.masked(rough, params, keep), x)
    close({"out": small.logits(values, x)}, {"out": expected}, 0.02)


def test_tasks_of_one_shape_are_made_once_and_of_other_indices_are_not_confused() -> None:
    task = task_of("lenet5_caffe")
    structure = submodels.trace(task)
    first = structure.cut({"fc1.weight": torch.arange(500) < 100})
    second = structure.cut({"fc1.weight": torch.arange(500) >= 400})
    assert first.task(task) is second.task(task)
    assert first.task(task) is not first.task(task.copy())
    for name, other in (("fc1.weight:in", "fc1.weight:in"), ("conv2.weight", "conv1.weight")):
        count = {"fc1.weight:in": 50, "conv2.weight": 50, "conv1.weight": 20}
        left = structure.cut({name: torch.arange(count[name]) > 4})
        right = structure.cut({other: torch.arange(count[other]) < count[other] - 5})
        assert left.task(task) is not right.task(task)
    normed = chain(nn.Conv2d(2, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(24, 3))
    for flags in ([1, 0, 0, 1, 1, 1], [1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 1]):
        check(normed, {"0.weight": torch.tensor(flags).bool()})


def test_narrow_projections_are_not_laid_out_with_channels_last() -> None:
    task = task_of("resnet8")
    for kept, images in ((4, torch.contiguous_format), (9, torch.channels_last)):
        stream = torch.arange(16) < kept
        names = ("conv.weight", "stages.0.0.conv2.weight")
        small = submodels.trace(task).cut(dict.fromkeys(names, stream)).task(task)
        weight = small.own(small.init(Key(0)))["conv.weight"]
        assert weight.is_contiguous(memory_format=images)


def test_a_structure_is_found_once_for_all_copies_of_a_task() -> None:
    task = task_of("resnet8")
    assert submodels.trace(task) is submodels.trace(task.copy())


def test_tracing_leaves_the_module_as_it_was() -> None:
    module = build("resnet8", COLOUR, 5).eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    state = torch.get_rng_state()
    submodels.trace(Task.of(module, torch.zeros(2, *COLOUR), start="seed"))
    assert not any(part.training for part in module.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())


class Meanwhile(nn.Module):
    """While its forward pass is followed, another thread computes."""

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__()
        self.work = work
        self.fc = nn.Linear(4, 3)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as other:
            other.submit(self.work).result()
        return self.head(self.fc(x))


def test_tracing_does_not_disturb_other_threads() -> None:
    busy = task_of("resnet8")
    params, found = params_of(busy), list[Tensor]()
    x, _ = batch_for(busy)

    def work() -> None:
        found.append(busy.logits(params, x))
        found.append(module.fc(torch.ones(1, 4)))

    module = Meanwhile(work)
    task = Task.of(module, torch.zeros(2, 4), start="seed")
    found.clear()
    assert submodels.trace(task).units == {"fc.weight": 3}
    assert len(found) == 2
    assert torch.equal(found[0], busy.logits(params, x))
    assert torch.equal(found[1], module.fc(torch.ones(1, 4)))


def test_the_example_in_the_docstring_is_true() -> None:
    found = doctest.testmod(submodels)
    assert found.attempted > 0 and found.failed == 0


# units that a trained model can do without --------------------------------------------------------


@pytest.mark.parametrize("name", [*SMALL, "resnet18:width=8,preact=true,norm=group"])
@given(seed=st.integers(0, 10**6), density=st.sampled_from([0.02, 0.1, 0.3]))
@settings(max_examples=5, deadline=None)
def test_outputs_are_the_same_without_units_that_are_not_needed(
    name: str, seed: int, density: float
) -> None:
    """Whatever the weights are that were pruned, and with units that were silenced besides."""
    task = task_of(name)
    draw = Key(seed).generator()
    params = submodels.masked(task, params_of(task, seed), keep_of(task, seed, 0.7))
    for leaf in task.layout.prunable:
        params[leaf] *= torch.rand(params[leaf].shape, generator=draw) < density
    small, left = submodels.compact(task, params, submodels.needed(task, params))
    x = torch.randn(3, *SHAPES[name], generator=draw, dtype=torch.float64)
    torch.testing.assert_close(small.logits(left, x), task.logits(params, x))
    assert sum(map(torch.numel, left.values())) < sum(map(torch.numel, params.values()))


def test_units_are_needed_that_speak_and_are_heard() -> None:
    """Of four: one that is heard, one unread, one silent, one read by a unit that is unread."""
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2), nn.ReLU(), nn.Linear(2, 1))
    task = Task.of(net, torch.zeros(1, 2), start="seed")
    params = {name: torch.ones_like(tensor) for name, tensor in task.init(Key(0)).items()}
    params["0.weight"][2] = params["0.bias"][2] = 0
    params["2.weight"] = torch.tensor([[1.0, 0, 1, 0], [1, 0, 1, 1]])
    params["4.weight"] = torch.tensor([[1.0, 0]])
    found = submodels.needed(task, params)
    assert found["0.weight"].tolist() == [True, False, False, False]
    assert found["2.weight"].tolist() == [True, False]
    params["4.weight"][:] = 0
    nothing = {name: flags.tolist() for name, flags in submodels.needed(task, params).items()}
    assert nothing == {"0.weight": [True, False, False, False], "2.weight": [True, False]}
