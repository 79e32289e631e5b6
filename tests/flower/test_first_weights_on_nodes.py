"""First weights on nodes: the same bits if they are the server's, and a refusal if they are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from loopback import Loopback, log_of, node_clients, served, set_up, simulated
from torch import nn

from gossamer import Task
from gossamer.cli import main
from gossamer.conformance.toys import CLASSES, SIDE
from gossamer.engine import Run
from gossamer.flower.node import Node
from gossamer.models import build


def module(shift: float = 0.0, frozen: bool = False) -> nn.Module:
    """Weights that no seed gives; a shift of one of them makes it another module."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 6), nn.ReLU(), nn.Linear(6, CLASSES))
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=draw) / 4)
        net[1].bias[2] += shift
    net[1].requires_grad_(not frozen)
    return net


def with_weights(net: nn.Module, start: str = "module") -> Run:
    task = Task.of(net, torch.zeros(2, 1, SIDE, SIDE), start=start)
    return replace(set_up("spafl", rounds=3), task=task)


def saved(net: nn.Module, path: Path) -> str:
    files = pytest.importorskip("safetensors.torch", reason="needs gossamer[export]")
    files.save_file(net.state_dict(), str(path))
    return str(path)


def test_nodes_with_the_module_of_the_server_give_the_bits_of_threads(tmp_path: Path) -> None:
    setup = with_weights(module())
    here = simulated(setup, tmp_path / "here")
    there = served(setup, Loopback.of(setup, tmp_path / "nodes"), tmp_path / "there")
    assert there.state_hash == here.state_hash
    assert log_of(tmp_path / "there") == log_of(tmp_path / "here")
    drawn = simulated(replace(setup, task=with_weights(module(), "seed").task), tmp_path / "drawn")
    assert drawn.state_hash != here.state_hash


@pytest.mark.parametrize("kind", ["module", "frozen", "file", "seed"])
def test_a_node_with_other_first_weights_is_refused(kind: str, tmp_path: Path) -> None:
    """One number that differs is enough, also in a part that is never trained or sent."""
    if kind == "file":
        right = with_weights(module(), saved(module(), tmp_path / "right.safetensors"))
        wrong = with_weights(module(), saved(module(1e-6), tmp_path / "wrong.safetensors"))
    else:
        frozen = kind == "frozen"
        right = with_weights(module(frozen=frozen))
        wrong = with_weights(module(1e-6, frozen), "seed" if kind == "seed" else "module")
    loop = Loopback.of(right, tmp_path / "nodes")
    hosted = node_clients(right, 1)
    loop.nodes_by_id[101] = Node(wrong, tmp_path / "other", hosted)
    names = ", ".join(map(str, hosted))
    told = rf"9 of 12 clients came .* without {names}: node 101 is refused: .* first weights"
    with pytest.raises(TimeoutError, match=told):
        served(right, loop, tmp_path / "served")
    texts = (tmp_path / "other" / "network.jsonl").read_text().splitlines()
    assert "first weights" in json.loads(texts[0])["text"]
    assert not [sent for sent in loop.sent if sent.node == 101 and sent.purpose == "train"]
    loop.nodes_by_id[101] = Node(right, tmp_path / "other", hosted)  # restarted, as it should be
    assert served(right, loop, tmp_path / "served").rounds == 3


def test_a_project_with_weights_of_a_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = saved(build("mlp:hidden=16", (1, 28, 28), 10), tmp_path / "first.safetensors")
    words = ["--method", "fedavg", "--clients", "3", "--pool", "4", "--data", "fmnist-mini"]
    words += ["--model", "mlp:hidden=16"]
    app = tmp_path / "app"
    assert main(["flower", "init", str(app), *words, "--rounds", "3", "--start", file]) == 2
    assert "first weights of a file or a run do not travel to nodes" in capsys.readouterr().err
    assert not app.exists()
