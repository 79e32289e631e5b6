"""Names, options and users' factories become modules, or one helpful sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gossamer.models import MODELS, build, default, load, options

GREY, COLOUR = (1, 28, 28), (3, 32, 32)

MINE = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Sizes:
    hidden: int = 3

def build(shape, classes, hidden=5):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0], hidden), nn.Linear(hidden, classes))

def plain():
    return nn.Linear(4, 2)

def knobs(hidden=7, depth=2):
    return nn.Linear(hidden, depth)

def any(*arguments):
    return nn.Linear(arguments[0][0], arguments[1])

def one(width):
    return nn.Linear(width, width)

def wrong():
    return 3

number = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "my.py"
    path.write_text(MINE)
    return str(path)


def test_options_come_in_the_name_or_as_arguments() -> None:
    for module in (
        build("resnet18:width=8, norm=group", COLOUR, 4),
        build("resnet18:width=8", COLOUR, 4, norm="group"),
        build("resnet18", COLOUR, 4, width=8, norm="group"),
    ):
        assert module.fc.in_features == 64
        assert isinstance(module.norm, nn.GroupNorm)
    assert build("mlp", (3,), 2, hidden=[8, 4]).fc2.out_features == 4
    assert build("mlp", (3,), 2, hidden=()).fc1.out_features == 2
    assert build("vgg16:dropout=0", COLOUR, 2).dropout1.p == 0


def test_unknown_names_get_the_nearest_one() -> None:
    with pytest.raises(
        KeyError, match=r"no model 'lenet5_cafe'; did you mean 'lenet5_caffe'\? `gossamer ls`"
    ):
        build("lenet5_cafe", GREY, 10)
    with pytest.raises(KeyError, match="did you mean 'resnet18'"):
        build("resnet19:width=3", COLOUR, 10)
    with pytest.raises(KeyError, match="no model 'zzz'; `gossamer ls` lists them all"):
        build("zzz", GREY, 10)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet18:widht=3", r"has no option 'widht'; did you mean 'width'\? it takes width, norm"),
        ("cnn7:width=3", "has no option 'width'; it takes none"),
        ("resnet18:norm=grup", r"no resnet18:norm=grup; did you mean 'group'\? it is one of batch"),
        ("resnet18:width=0", "resnet18:width is a whole number above zero, not '0'"),
        ("resnet18:width=3.5", "resnet18:width is a whole number above zero, not '3.5'"),
        (
            "resnet18:width",
            "'width' in model 'resnet18:width' is not an option; write option=value",
        ),
        ("resnet18:width=5,norm=group", "cannot split width 5 into groups=2 equal parts"),
        ("vgg16:dropout=1", r"vgg16:dropout is in \[0, 1\), not '1'"),
        ("lenet5:dropout=0.1", "lenet5:dropout is true or false, not '0.1'"),
        ("mlp:hidden=3xx4", "mlp:hidden is one or more sizes such as 300x100, not '3xx4'"),
        ("mlp:hidden=0", "mlp:hidden is one or more sizes"),
    ],
)
def test_wrong_options_are_explained(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, COLOUR, 10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet5_caffe", (64,), r"lenet5_caffe takes images.*\(64,\); try text or mlp"),
        ("resnet8", (28, 28), r"resnet8 takes images.*\(28, 28\); try lstm or mlp"),
        ("lenet5", (1, 8, 8), r"lenet5 shrinks images of shape \(1, 8, 8\) to nothing"),
        ("text", COLOUR, r"text takes sequences of token ids.*\(3, 32, 32\); try resnet8"),
        ("char_lstm", (2, 3), r"char_lstm takes sequences of token ids.*\(2, 3\); try lstm"),
        ("lstm", (64,), r"lstm takes sequences.*\(64,\); try char_lstm"),
        ("text:heads=3", (8,), "text cannot split width 64 into heads=3 equal parts"),
    ],
)
def test_a_shape_that_does_not_fit_names_model_and_data(
    name: str, shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, shape, 10)


def test_a_model_needs_a_class() -> None:
    with pytest.raises(ValueError, match="at least one class, not 0"):
        build("mlp", (3,), 0)


def test_the_users_factory_gets_shape_and_classes_if_it_takes_them(mine: str) -> None:
    assert build(f"{mine}:build", (6,), 4)[2].out_features == 4
    assert build(f"{mine}:build:hidden=9", (6,), 4)[1].out_features == 9
    assert build(f"{mine}:build", (6,), 4, hidden=2)[1].out_features == 2
    assert build(f"{mine}:any", (6,), 4).in_features == 6
    assert build(f"{mine}:plain", (6,), 4).in_features == 4
    assert build(f"{mine}:knobs", (6,), 4).in_features == 7
    assert build(f"{mine}:one:width=3", (6,), 4).in_features == 3
    assert build("gossamer.models.residual:resnet8", COLOUR, 4).fc.out_features == 4


@pytest.mark.parametrize(
    ("target", "error", "message"),
    [
        ("biuld", KeyError, r"has no 'biuld'; did you mean 'build'\?"),
        ("number", ValueError, "is a int; name a function or a class"),
        ("wrong", ValueError, "returned a int; a model's factory returns an nn.Module"),
        ("one", ValueError, r"needs width, but a factory is called with \(shape, classes\)"),
    ],
)
def test_wrong_factories_are_explained(
    mine: str, target: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build(f"{mine}:{target}", (6,), 4)


def test_places_that_do_not_exist_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no file nothing.py"):
        build("nothing.py:build", GREY, 4)
    with pytest.raises(KeyError, match=r"no model 'no_such.module'; it is neither built in"):
        build("no_such.module:build", GREY, 4)
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_at_all\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        load(f"{broken}:build")


def test_every_model_says_what_it_is_and_what_it_takes() -> None:
    for name, factory in MODELS.items():
        assert factory.__doc__, name
        assert "vocabulary" not in options(name) or name in ("text", "char_lstm")
    assert options("lenet5_caffe") == {}
    assert options("mlp") == {"hidden": (200,)}


@pytest.mark.parametrize(
    ("shape", "dtype", "name"),
    [
        (GREY, torch.float32, "lenet5_caffe"),
        (COLOUR, torch.float32, "resnet8"),
        ((64,), torch.int64, "text"),
        ((64,), torch.float32, "mlp"),
        ((28, 28), torch.float32, "lstm"),
        ((1, 8, 8), torch.float32, "mlp"),
        ((), torch.float32, "mlp"),
    ],
)
def test_the_default_suits_the_data(shape: tuple[int, ...], dtype: torch.dtype, name: str) -> None:
    assert default(shape, dtype) == name
    build(default(shape, dtype), shape, 3)
