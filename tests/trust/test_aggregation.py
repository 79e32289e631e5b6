"""Robust means, by hand and for every method that averages replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hostile_clients import HOSTILE, in_turn, trained
from torch import Tensor

from gossamer import METHODS, merge
from gossamer.cli import main
from gossamer.conformance.toys import normed_task
from gossamer.core import Params
from gossamer.engine import Options
from gossamer.engine.loop import check
from gossamer.merge import Reply, Rule
from gossamer.sparsity import masked_mean
from gossamer.trust import aggregation
from gossamer.trust.aggregation import Clipped, GeometricMedian, Krum, Median, Trimmed
from helpers import Toy, fedavg, linear

RULES: list[Rule] = [Median(), Trimmed(0.25), Clipped(1.0), Krum(1), GeometricMedian()]


def vectors(*rows: Sequence[float]) -> list[tuple[Params, float]]:
    return [({"w": torch.tensor(row)}, 1.0) for row in rows]


def averaged(rule: Rule | None, updates: list[tuple[Params, float]]) -> list[float]:
    with merge.by(rule):
        numbers: list[float] = merge.mean(updates)["w"].tolist()
    return numbers


# by hand -----------------------------------------------------------------------------------------


def test_the_median_takes_the_middle_of_each_entry() -> None:
    rows = vectors([1, 9.0], [2, 7.0], [50, 8.0])
    assert averaged(Median(), rows) == [2, 8]
    assert averaged(Median(), [*rows, *vectors([4, 0.0])]) == [3, 7.5]


def test_the_trimmed_mean_leaves_out_a_share_at_either_end() -> None:
    rows = vectors([1.0], [2.0], [3.0], [7.0], [1000.0])
    assert averaged(Trimmed(0.2), rows) == [4.0]
    assert averaged(Trimmed(0.4), rows) == [3.0]
    assert averaged(Trimmed(0.1), rows) == averaged(None, rows)


def test_krum_averages_the_replies_that_lie_closest_to_others() -> None:
    rows = vectors([0, 0.0], [1, 0.0], [0, 1.0], [1, 1.0], [90, 90.0])
    assert averaged(Krum(1), rows) == [0.5, 0.5]
    # Chosen alike, averaged by weight.
    weighted = [(params, 3.0 if place == 1 else 1.0) for place, (params, _) in enumerate(rows)]
    assert averaged(Krum(1), weighted) == pytest.approx([4 / 6, 2 / 6])


def test_clipping_draws_far_replies_to_the_median_distance() -> None:
    rows = vectors([-2.0], [-1.0], [0.0], [1.0], [1002.0])
    # The median is 0, the median distance 1: the far one and -2 come to distance 1.
    assert averaged(Clipped(1.0), rows) == [0.0]
    assert averaged(Clipped(2.0), rows) == pytest.approx([0.0])
    assert averaged(Clipped(1e6), rows) == [200.0]


def test_the_geometric_median_of_a_line_is_its_median_and_of_a_triangle_its_fermat_point() -> None:
    assert averaged(GeometricMedian(), vectors([0.0], [1.0], [1e6])) == pytest.approx(
        [1.0], abs=0.1
    )
    height = 3**0.5
    corners = vectors([-1, 0.0], [1, 0.0], [0, height])
    assert averaged(GeometricMedian(), corners) == pytest.approx([0, height / 3], abs=1e-3)


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equal_replies_have_themselves_as_their_middle(rule: Rule) -> None:
    rows = vectors(*[[1.5, -2.0]] * 7)
    assert averaged(rule, rows) == [1.5, -2.0]
    assert averaged(rule, rows[:1]) == [1.5, -2.0]
    with merge.by(rule):
        assert merge.mean([]) == {}


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_one_of_six_cannot_move_the_middle_far(rule: Rule) -> None:
    generator = torch.Generator().manual_seed(1)
    honest = [({"w": torch.randn(20, generator=generator)}, 1.0) for _ in range(5)]
    outlier = ({"w": torch.full((20,), 1e6)}, 1.0)
    found = torch.tensor(averaged(rule, [*honest, outlier]))
    assert float(found.abs().max()) < 5


def test_the_order_of_replies_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(2)
    rows = [({"w": torch.randn(6, generator=generator)}, 1.0) for _ in range(9)]
    for rule in RULES:
        assert averaged(rule, rows) == pytest.approx(averaged(rule, rows[::-1]), abs=1e-6)


def test_counts_of_batches_are_averaged_but_do_not_decide() -> None:
    rows = [({"w": torch.tensor([float(n)]), "n": torch.tensor(10**n)}, 1.0) for n in range(5)]
    with merge.by(Krum(1)):
        assert merge.mean(rows)["n"].dtype == torch.int64


# masks -------------------------------------------------------------------------------------------


def masked(*rows: tuple[Sequence[float], Sequence[int]]) -> list[Reply]:
    return [
        ({"w": torch.tensor(values)}, {"w": torch.tensor(owned) > 0}, 1.0) for values, owned in rows
    ]


def test_each_entry_is_judged_among_its_owners() -> None:
    replies = masked(
        ([1.0, 5.0, 0.0], [1, 1, 0]), ([2.0, 0.0, 0.0], [1, 0, 0]), ([900.0, 7.0, 0.0], [1, 1, 0])
    )
    with merge.by(Median()):
        by_owner = masked_mean(replies, "wfa", {"w": torch.tensor([0.0, 0.0, 4.0])})
        over_all = masked_mean(replies, "fedavg")
    assert by_owner.params["w"].tolist() == [2.0, 6.0, 4.0]
    assert over_all.params["w"].tolist() == [2.0, 5.0, 0.0]
    assert by_owner.owned["w"].tolist() == [True, True, False]


def test_krum_leaves_out_the_masks_of_replies_that_it_leaves_out() -> None:
    near = [([1.0, 0.0], [1, 0]), ([1.1, 0.0], [1, 0]), ([0.9, 0.0], [1, 0]), ([1.0, 0.0], [1, 0])]
    replies = masked(*near, ([0.0, 99.0], [0, 1]))
    with merge.by(Krum(1)):
        average = masked_mean(replies, "wfa")
    assert average.owned["w"].tolist() == [True, False]
    assert average.params["w"].tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("averaging", ["wfa", "fedavg"])
def test_full_masks_change_nothing(rule: Rule, averaging: str) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(8, generator=generator) for _ in range(7)]
    whole = torch.ones(8, dtype=torch.bool)
    with merge.by(rule):
        plain = merge.mean(({"w": row}, 1.0) for row in rows)["w"]
        average = masked_mean([({"w": row}, {"w": whole}, 1.0) for row in rows], averaging)  # type: ignore[arg-type]
    assert torch.allclose(average.params["w"], plain)


def test_votes_are_counted_exactly_or_by_the_rule() -> None:
    masks = [{"w": torch.tensor(bits) > 0} for bits in ([1, 1, 0], [1, 0, 0], [1, 1, 1])]
    ones, count = merge.votes(masks)
    assert ones["w"].tolist() == [3, 2, 1] and ones["w"].dtype == torch.int32 and count == 3
    with merge.by(Median()):
        by_majority, _ = merge.votes(masks)
    assert by_majority["w"].tolist() == [3, 3, 0]


# words -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("mode", "is mean, median, trimmed:0.2, clipped:1, krum:2 or geometric-median, not 'mode'"),
        ("median:3", "median takes no number"),
        ("trimmed:0.5", r"a share in \[0, 0.5\)"),
        ("trimmed", "not 'trimmed'"),
        ("clipped:0", "a radius above 0"),
        ("krum:x", "a number of clients"),
    ],
)
def test_what_is_no_rule_is_refused_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        aggregation.parse(text)


def test_krum_needs_enough_clients() -> None:
    with pytest.raises(ValueError, match="krum:2 needs at least 7 clients per round, not 6"):
        check(fedavg(6), linear(), Toy(8), rounds=1, options=Options(aggregate="krum:2"))
    check(fedavg(7), linear(), Toy(8), rounds=1, options=Options(aggregate="krum:2"))


def test_the_command_line_refuses_a_rule_where_nothing_is_averaged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["run", "laplace", "--data", "synthetic", "--aggregate", "median"]
    assert main(words) == 2
    assert "laplace takes the clients' median or their signs" in capsys.readouterr().err


# every method ------------------------------------------------------------------------------------


class Counting:
    """The median, counting how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def kept(self, replies: Sequence[Reply], by_owner: bool) -> Sequence[Reply]:
        self.asked += bool(replies)
        return Median().kept(replies, by_owner)

    def middle(self, values: Sequence[Tensor], owned: Sequence[Tensor] | None) -> Tensor:
        return Median().middle(values, owned)


OWN = {"laplace", "laplace-sign", "laplace-variants", "mixture", "mixture-variants"}


@pytest.mark.parametrize("name", METHODS)
def test_every_method_averages_by_the_rule_of_the_run_or_refuses_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name in OWN:
        with pytest.raises(ValueError, match=f"replaces a mean, but {name}"):
            aggregation.check("median", METHODS[name], name)
        return
    aggregation.check("median", METHODS[name], name)
    rule = Counting()
    monkeypatch.setattr(aggregation, "parse", lambda text: rule)
    trained(METHODS[name], normed_task())
    assert rule.asked >= 3


def test_a_closed_form_refuses_a_rule() -> None:
    closed = replace(METHODS["fedsparse-variants"], server_step="closed")  # type: ignore[type-var]
    with pytest.raises(ValueError, match="maximises the likelihood in closed form"):
        aggregation.check("median", closed, "fedsparse-variants")


@pytest.mark.parametrize("name", ["fedavg", "spafl", "spdst", "fedpm"])
@pytest.mark.parametrize("rule", ["trimmed:0.3", "clipped:1", "krum:2", "geometric-median"])
def test_methods_of_the_table_learn_under_every_rule(name: str, rule: str) -> None:
    attacks = in_turn(["field 0 of 1e-40", "masks too dense"])
    done, events = trained(METHODS[name], normed_task(), attacks, aggregate=rule)
    assert all(event.client in HOSTILE for event in events if hasattr(event, "stage"))
    figure = done.accuracy["personal_mean"]
    assert figure is not None and figure > 0.4
