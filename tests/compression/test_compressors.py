"""Compressors against cases that were worked out by hand, and against their defining properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from gossamer import Key
from gossamer.compression import (
    QSGD,
    Compressor,
    LowRank,
    Natural,
    RandK,
    Sign,
    Spec,
    Ternary,
    TopK,
    directions,
)
from gossamer.compression.compressors import (
    MatrixFactors,
    SampledValues,
    ScaledLevels,
    SparseValues,
    orthogonal,
)
from gossamer.core import Params
from gossamer.wire import Schema, decode, encode
from helpers import refused

SIX = {"a": torch.tensor([[0.5, -3.0], [0.1, 2.0]]), "b": torch.tensor([-0.2, 1.0])}


def there_and_back(compressor: Compressor, change: Params, seed: int = 0) -> Params:
    """What a receiver has, through the wire."""
    payload = compressor.compress(change, Key(seed), {})
    received = decode(encode(payload), Schema.of(payload))
    return compressor.restore(received, {name: torch.empty(t.shape) for name, t in change.items()})


def drawn(shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_top_k_keeps_the_largest_of_all_tensors_together() -> None:
    found = there_and_back(TopK(0.5), SIX)
    assert found["a"].tolist() == [[0.0, -3.0], [0.0, 2.0]] and found["b"].tolist() == [0.0, 1.0]
    payload = TopK(0.5).compress(SIX, Key(0), {})
    assert isinstance(payload, SparseValues)
    assert sum(int(mask.sum()) for mask in payload.masks.values()) == 3


def test_top_k_is_exact_under_ties_and_never_empty() -> None:
    equal = {"w": torch.ones(10)}
    assert there_and_back(TopK(0.25), equal)["w"].tolist() == [1.0] * 2 + [0.0] * 8
    assert int(there_and_back(TopK(1e-9), equal)["w"].count_nonzero()) == 1


def test_random_k_sends_a_seed_and_is_unbiased() -> None:
    change = {"w": drawn((40,))}
    payload = RandK(0.25).compress(change, Key(1), {})
    assert isinstance(payload, SampledValues) and payload.places.kept == {"w": 10}
    found = there_and_back(RandK(0.25), change, 1)["w"]
    kept = found != 0
    assert int(kept.sum()) == 10 and torch.equal(found[kept], 4 * change["w"][kept])
    mean = torch.stack([there_and_back(RandK(0.25), change, s)["w"] for s in range(3000)]).mean(0)
    assert torch.allclose(mean, change["w"], atol=0.25)
    plain = there_and_back(RandK(0.25, unbiased=False), change, 1)["w"]
    assert torch.equal(plain[kept], change["w"][kept])


def test_qsgd_has_the_levels_of_a_worked_case() -> None:
    # norm 5, 4 levels: 3 is at 2.4 of 4 parts (2 or 3), 4 at 3.2 (3 or 4), 0 at 0.
    change = {"w": torch.tensor([3.0, -4.0, 0.0])}
    seen = set()
    for seed in range(200):
        payload = QSGD(4).compress(change, Key(seed), {})
        assert isinstance(payload, ScaledLevels)
        assert payload.scales["w"].tolist() == [1.25]
        seen.add(tuple(payload.levels.values["w"].tolist()))
    assert seen == {(2, -3, 0), (2, -4, 0), (3, -3, 0), (3, -4, 0)}


def test_qsgd_is_unbiased_with_the_variance_of_the_paper() -> None:
    change = {"w": drawn((64,))}
    many = torch.stack([there_and_back(QSGD(4, 0), change, seed)["w"] for seed in range(4000)])
    assert torch.allclose(many.mean(0), change["w"], atol=0.12)
    error = float((many - change["w"]).square().sum(1).mean())
    bound = min(64 / 4**2, math.sqrt(64) / 4) * float(change["w"].square().sum())  # lemma 3.1
    assert 0 < error <= bound


def test_qsgd_gives_every_bucket_its_norm() -> None:
    change = {"w": torch.cat([torch.full((4,), 100.0), torch.full((3,), 0.01)])}
    payload = QSGD(8, bucket=4).compress(change, Key(0), {})
    assert isinstance(payload, ScaledLevels)
    wanted = [200 / 8, 0.01 * math.sqrt(3) / 8]
    assert payload.scales["w"].tolist() == pytest.approx(wanted)
    found = there_and_back(QSGD(8, bucket=4), change)["w"]
    assert found[:4].tolist() == [100.0] * 4 and float(found[4:].max()) < 0.02
    whole = there_and_back(QSGD(8, bucket=0), change)["w"]
    assert whole[:4].tolist() == pytest.approx([100.0] * 4, abs=26)


def test_natural_compression_rounds_to_neighbouring_powers_of_two() -> None:
    # 3 is half-way between 2 and 4; 2.5 is 2 with probability 3/4; powers stay what they are.
    change = {"w": torch.tensor([3.0, -2.5, 0.25, 0.0, -(2.0**-100)])}
    many = torch.stack([there_and_back(Natural(), change, seed)["w"] for seed in range(2000)])
    assert set(many[:, 0].tolist()) == {2.0, 4.0} and set(many[:, 1].tolist()) == {-2.0, -4.0}
    assert float((many[:, 0] == 2).double().mean()) == pytest.approx(0.5, abs=0.05)
    assert float((many[:, 1] == -2).double().mean()) == pytest.approx(0.75, abs=0.05)
    assert many[:, 2:].unique(dim=0).tolist() == [[0.25, 0.0, -(2.0**-100)]]


def test_signs_are_scaled_by_the_mean_magnitude_of_their_tensor() -> None:
    found = there_and_back(Sign(), SIX)
    assert found["a"].flatten().tolist() == pytest.approx([1.4, -1.4, 1.4, 1.4])
    assert found["b"].tolist() == pytest.approx([-0.6, 0.6])


def test_sparse_ternary_compression_of_a_worked_case() -> None:
    # Sattler et al., Algorithm 1: the three largest are -3, 2 and 1, their mean magnitude is 2.
    found = there_and_back(Ternary(0.5), SIX)
    assert found["a"].tolist() == [[0.0, -2.0], [0.0, 2.0]] and found["b"].tolist() == [0.0, 2.0]


def test_a_step_of_power_iteration_by_hand() -> None:
    # M q = (2, 1) / ..., made orthonormal; M has rank one, so one step restores it exactly.
    matrix = torch.tensor([2.0, 1.0])[:, None] * torch.tensor([3.0, 0.0, 4.0, 0.0])
    start = {"w": torch.tensor([[1.0], [0.0], [0.0], [0.0]])}
    payload = LowRank(1).compress({"w": matrix}, Key(0), start)
    assert isinstance(payload, MatrixFactors)
    root = math.sqrt(5)
    assert payload.left["w"].flatten().tolist() == pytest.approx([2 / root, 1 / root])
    wanted = [3 * root, 0, 4 * root, 0]
    assert payload.right["w"].flatten().tolist() == pytest.approx(wanted)
    assert torch.allclose(LowRank(1).restore(payload, {"w": matrix})["w"], matrix)


def test_starting_from_the_last_factors_comes_close_to_the_best_low_rank() -> None:
    change, start = {"w": drawn((30, 4, 3, 3))}, dict[str, Tensor]()
    errors = []
    for _ in range(20):
        payload = LowRank(2).compress(change, Key(0), start)
        start = payload.right
        errors.append(float((LowRank(2).restore(payload, change)["w"] - change["w"]).norm()))
    values = torch.linalg.svdvals(change["w"].reshape(30, 36))
    best = float(values[2:].square().sum().sqrt())
    assert errors[0] > 1.02 * best and errors[-1] < 1.02 * best


def test_tensors_that_factors_would_make_larger_are_sent_whole() -> None:
    change = {"bias": drawn((9,)), "small": drawn((2, 3)), "w": drawn((8, 9))}
    payload = LowRank(2).compress(change, Key(0), {})
    assert list(payload.whole) == ["bias", "small"] and list(payload.left) == ["w"]
    found = there_and_back(LowRank(2), change)
    assert torch.equal(found["bias"], change["bias"])
    assert found["w"].shape == (8, 9) and found.keys() == change.keys()


def test_columns_become_orthonormal_even_if_they_are_alike() -> None:
    matrix = drawn((7, 3))
    made = orthogonal(matrix)
    assert torch.allclose(made.T @ made, torch.eye(3), atol=1e-5)
    assert torch.isfinite(orthogonal(torch.zeros(4, 2))).all()


EVERY = ["topk:0.2", "randk:0.2", "qsgd:16", "natural", "sign", "ternary:0.2", "low_rank:1"]


@pytest.mark.parametrize("text", EVERY)
def test_odd_shapes_come_back_with_their_shapes(text: str) -> None:
    change = {"a": torch.tensor(0.5), "b": torch.zeros(0), "c": drawn((3, 5)), "d": torch.zeros(4)}
    found = there_and_back(Spec.parse(text).compressor, change)
    assert {n: t.shape for n, t in found.items()} == {n: t.shape for n, t in change.items()}
    assert all(torch.isfinite(tensor).all() for tensor in found.values())


@pytest.mark.parametrize("text", EVERY)
def test_the_same_key_gives_the_same_bytes(text: str) -> None:
    compressor, change = Spec.parse(text).compressor, {"w": drawn((50, 7))}
    one, two = (encode(compressor.compress(change, Key(3), {})) for _ in range(2))
    assert one == two


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("topp:0.1", "did you mean 'topk'?"),
        ("topk", "needs the share of values that are kept"),
        ("topk:0", "above 0 and at most 1"),
        ("topk:1.5", "above 0 and at most 1"),
        ("qsgd", "needs 1 to 2047 levels"),
        ("qsgd:5000", "needs 1 to 2047 levels"),
        ("qsgd:4:x", "share a norm"),
        ("sign:2", "sign takes no number"),
        ("low_rank:0", "a rank of at least 1"),
        ("topk:0.1+ef22", r"only \+ef or \+ef21"),
        ("topk:0.1+ef+ef21", r"only \+ef or \+ef21"),
    ],
)
def test_what_is_no_compressor_is_refused(text: str, words: str) -> None:
    with refused(words):
        Spec.parse(text)


def test_both_directions_are_read() -> None:
    assert directions("topk:0.1+ef") == ("topk:0.1+ef", "")
    assert directions("up=topk:0.1,down=qsgd:4:128") == ("topk:0.1", "qsgd:4:128")
    assert directions("topk:0.1/qsgd:4") == ("topk:0.1", "qsgd:4")
    assert directions("down=sign") == ("", "sign")
    with refused("up=COMPRESSOR,down=COMPRESSOR"):
        directions("sideways=sign")


def test_random_rounding_uses_no_global_generator() -> None:
    change = {"w": drawn((100,))}
    first = encode(QSGD(4).compress(change, Key(0), {}))
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    assert encode(QSGD(4).compress(change, Key(0), {})) == first
