"""FLASH's other masks: in groups, churned on purpose; and settings that are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from flash_cases import KEPT, LAYERS, bench, equal, heard, played, rows, total, toy, zero_outside
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gossamer import Masks, Task, sparsity
from gossamer.conformance.bench import Bench
from gossamer.engine import check
from gossamer.methods.as_published.flash import layers
from gossamer.methods.nst import NST
from gossamer.methods.parts import mask_learning
from gossamer.sparsity.budgets import MOST
from helpers import Toy, linear, refused

GROUP = 4
NAMES = tuple(LAYERS)


# groups -----------------------------------------------------------------------------------------


def fair(masks: Masks, size: int = GROUP) -> bool:
    """Whether every whole group has the floor or the ceiling of its layer's share."""
    for name, counts in sparsity.group_counts(masks, size).items():
        kept, whole = int(masks[name].sum()), masks[name].numel()
        least, most = kept * size // whole, -(-kept * size // whole)
        short = masks[name].shape[1] % size and masks[name][0].numel() % size
        low = 0 if short else least
        if not bool(((counts >= low) & (counts <= most)).all()):
            return False
    return True


def test_some_layers_have_short_groups() -> None:
    """Inputs of the first layer do not divide by four, those of the others do."""
    sizes = {name: counts.numel() for name, counts in groups_of(torch.ones).items()}
    assert sizes == {"0.weight": 4 * 3, "2.weight": 54, "5.weight": 18}
    lopsided = {name: torch.zeros(shape_of(name), dtype=torch.bool) for name in NAMES}
    lopsided["2.weight"].view(-1)[: 216 // 4] = True
    assert not fair(lopsided)  # so that the tests below can fail


def shape_of(name: str) -> tuple[int, ...]:
    return bench(toy()).task.layout[name].shape


def groups_of(fill: Any) -> dict[str, torch.Tensor]:
    return sparsity.group_counts({name: fill(shape_of(name)) > 0 for name in NAMES}, GROUP)


@settings(max_examples=8)
@given(
    st.sampled_from(["spdst", "pdst", "jmwst"]),
    st.sampled_from([0.1, 0.2, 0.5, 0.8]),
    st.sampled_from([1.0, 2.0]),
    st.booleans(),
)
def test_groups_keep_their_share_wherever_masks_come_from(
    name: str, density: float, epochs: float, norm: bool
) -> None:
    """As they are drawn, as clients move them, and as the server chooses them."""
    method = toy(name, group=GROUP, density=density, epochs=epochs, prune_rate=0.5)
    for round_ in played(method, 4, norm=norm):
        assert len(round_.merged.masks) == 1
        assert fair(round_.merged.masks[0])
        assert total(round_.merged.masks[0]) == round(density * 324)
        assert zero_outside(round_.merged.params, round_.merged.masks[0])
        if round_.number == 1 and name != "pdst":
            continue  # see below
        assert fair(round_.state.masks[0])
        assert all(fair(result.masks) for result in round_.results)
        moved = [not equal(result.masks, round_.state.masks[0]) for result in round_.results]
        assert all(moved) == any(moved) == (name == "jmwst")


def test_masks_that_are_probed_have_no_groups() -> None:
    """Groups would keep every layer at the density that it had."""
    (first,) = played(toy(group=GROUP, prune_rate=0.5, probe_epochs=4.0), 2)[:1]
    plain = bench(toy(prune_rate=0.5, probe_epochs=4.0)).init()
    assert equal(first.state.masks[0], plain.masks[0]) and not fair(plain.masks[0])
    for result in first.results:
        assert sparsity.count(result.masks) != sparsity.count(first.state.masks[0])
    assert sparsity.count(first.merged.masks[0]) != sparsity.count(first.state.masks[0])


def test_a_server_keeps_the_largest_weights_of_each_group() -> None:
    *_, last = played(toy("jmwst", group=GROUP), 4)
    mask = last.merged.masks[0]["5.weight"]
    union = toy("jmwst", group=GROUP, eval_model="union")
    *_, last = played(union, 4)
    mean = last.merged.tested["5.weight"].abs().reshape(-1, GROUP)
    rows_of = mask.reshape(-1, GROUP)
    smallest = torch.where(rows_of, mean, torch.inf).amin(1)
    largest = torch.where(rows_of, -torch.inf, mean).amax(1)
    assert (smallest >= largest).all() and rows_of.any() and (largest > 0).any()


@pytest.mark.parametrize("name", ["spdst", "jmwst"])
def test_groups_go_over_the_wire(name: str) -> None:
    """And the N of every layer, which no group exceeds, is told."""
    found = heard(toy(name, group=GROUP), 4)
    assert found.summary.failed == 0 and fair(found.state.masks[0])
    assert [event.density for event in found.measured] == [KEPT / 324] * 5
    told = found.measured[-1].metrics
    for layer, counts in sparsity.group_counts(found.state.masks[0], GROUP).items():
        most = -(-int(counts.sum()) * GROUP // LAYERS[layer])
        assert told[f"pattern.{layer}"] == most >= int(counts.max())
    assert not any(name.startswith("pattern") for name in heard(toy(), 2).measured[-1].metrics)


def test_groups_grow_where_they_are_told_to() -> None:
    settings = {"group": GROUP, "allocation": "uniform", "prune_rate": 0.5}
    one, two = (played(toy("jmwst", **settings, growth=by), 1) for by in ("random", "gradient"))
    assert equal(one[0].state.masks[0], two[0].state.masks[0])
    masks = [[result.masks for result in each[0].results] for each in (one, two)]
    assert not any(equal(first, second) for first, second in zip(*masks, strict=True))


# churn ------------------------------------------------------------------------------------------


def swapped(kept: int, distance: float) -> float:
    """What a layer's distance comes to when a whole number of weights is exchanged."""
    moves = round(kept * distance / (2 - distance))
    return 2 * moves / (kept + moves)


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [("", NAMES), ("2-3", NAMES[1:]), ("5.weight", NAMES[2:]), ("1, 3", (NAMES[0], NAMES[2]))],
)
@pytest.mark.parametrize("distance", [0.5, 0.8])
def test_masks_move_as_far_as_asked_in_chosen_layers(
    distance: float, wish: str, chosen: tuple[str, ...]
) -> None:
    found = heard(toy(churn=distance, churn_layers=wish, density=0.3), 4)
    assert found.summary.failed == 0
    kept = sparsity.count(found.state.masks[0])
    for event in found.measured[2:]:  # the first round draws a new mask
        for name, layer in event.layers.items():
            wanted = swapped(kept[name], distance) if name in chosen else 0.0
            assert layer["mismatch"] == pytest.approx(wanted)
            assert name not in chosen or wanted == pytest.approx(distance, abs=0.1)
        assert event.density == 97 / 324


@pytest.mark.parametrize("name", ["spdst", "jmwst"])
def test_churned_weights_begin_at_zero_and_others_stay(name: str) -> None:
    """Also where clients of a mask round had a weight that the server did not choose."""
    changes = {"prune_rate": 0.5, "clients": 12, "eval_model": "union"}
    plain, moved = (played(toy(name, churn=far, **changes), 2)[-1].merged for far in (0.0, 0.5))
    before, after = plain.masks[0], moved.masks[0]
    assert not equal(before, after) and sparsity.count(before) == sparsity.count(after)
    known = 0
    for layer, mask in after.items():
        new, both = mask & ~before[layer], mask & before[layer]
        assert new.any() and not moved.params[layer][~mask | new].any()
        assert torch.equal(moved.params[layer][both], plain.params[layer][both])
        known += int(plain.tested[layer][new].count_nonzero())
    assert (known > 0) == (name == "jmwst")


def test_what_is_tested_is_the_model_before_it_was_moved() -> None:
    method = toy(churn=0.8)
    found = bench(method, 3)
    *_, last = found.history()
    tested = method.model(found.server(3), last.merged, None)
    assert zero_outside(tested, last.state.masks[-1])
    trained = sum(int(tested[name].count_nonzero()) for name in last.state.masks[-1])
    left = sum(int(last.merged.params[name].count_nonzero()) for name in last.state.masks[-1])
    assert left < 0.6 * trained  # two thirds of the weights were moved, and began anew


def test_churned_masks_go_down_to_everybody() -> None:
    found = heard(toy(churn=0.5), 5)
    assert all("mask" in rows(event, "down") for event in found.finished)
    assert not any("mask" in rows(event, "up") for event in found.finished)


def test_rounds_are_churned_each_in_its_own_way() -> None:
    first, *others = played(toy(churn=0.3), 4)
    seen = [first.merged.masks[0], *(round.merged.masks[0] for round in others)]
    pairs = [(i, j) for i in range(len(seen)) for j in range(i)]
    assert all(sparsity.mismatch(seen[i], seen[j]) > 0.2 for i, j in pairs)


# refusals ---------------------------------------------------------------------------------------


def refuse(method: Any, *budgets: float, rounds: int = 4) -> None:
    """If there is a reason to: by `check`, which is what a run does before anything else."""
    found = bench(method, rounds, *budgets)
    check(method, found.task, found.federation, rounds=rounds)


@pytest.mark.parametrize(
    ("changes", "budgets", "rounds", "said"),
    [
        ({}, (), 1, "use --rounds 2 or more, or --allocation erk"),
        ({}, (0.05, 0.1), 4, r"largest budget is 0\.1 and the density 0\.2.* use --density 0\.1"),
        ({"group": 4}, (0.1, 0.2), 4, "use --group or --budgets, not both"),
        ({"growth": "momentum"}, (), 4, "--momentum above 0"),
        ({"density": 0.0}, (), 4, "--density must be above 0"),
        ({"density": 1.1}, (), 4, "--density must be at most 1"),
        ({"churn": 0.5, "churn_layers": "4"}, (), 4, "numbers up to 3"),
        ({"churn": 0.5, "churn_layers": "0"}, (), 4, "--churn-layers"),
        ({"churn": 0.5, "churn_layers": "3-1"}, (), 4, "'3-1'"),
        ({"churn": 0.5, "churn_layers": "1,"}, (), 4, "not ''"),
        ({"churn_layers": "head"}, (), 4, r"names of 0\.weight, 2\.weight, 5\.weight, not 'head'"),
        ({"churn": 0.5, "group": 4}, (), 4, "use --group or --churn, not both"),
        ({"group": 4, "mask_every": 1, "growth": "bernoulli"}, (), 4, "every group .* keeps its"),
        ({"group": 4, "mask_every": 1, "exact": False}, (), 4, "--exact and --growth random"),
        ({"prune_end": 0.5}, (), 4, "let the end be lower"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, Any], budgets: tuple[float, ...], rounds: int, said: str
) -> None:
    method = toy(**changes)
    with refused(said):
        refuse(method, *budgets, rounds=rounds)


@pytest.mark.parametrize(
    ("changes", "budgets", "rounds"),
    [
        ({"allocation": "erk"}, (), 1),
        ({"density": 0.1}, (0.05, 0.1), 4),
        ({"group": 4}, (0.2, 0.5), 4),
        ({"growth": "momentum", "momentum": 0.9, "momentum_of_inactive": True}, (), 4),
        ({"churn": 0.5, "churn_layers": "2-3"}, (), 4),
        ({"group": 4, "exact": False, "growth": "bernoulli"}, (), 4),  # in the probe alone
        ({"prune_end": 0.25}, (), 4),
    ],
)
def test_settings_next_to_them_are_not(
    changes: dict[str, Any], budgets: tuple[float, ...], rounds: int
) -> None:
    refuse(toy(**changes), *budgets, rounds=rounds)


def test_a_server_keeps_masks_for_so_many_budgets() -> None:
    toys = Toy(40)
    method = toy(density=0.9)
    for count, many in ((MOST - 1, False), (MOST, True)):
        budgets = [*((1 + place) / 100 for place in range(count)), 1.0, 0.95]
        found = Bench(method, linear(), toys, 4)
        pool = [budgets[client.id % len(budgets)] for client in toys.pool]
        toys.pool = [
            type(client)(client.id, client.examples, budget)
            for client, budget in zip(toys.pool, pool, strict=True)
        ]
        if not many:
            assert len(found.init().masks) == MOST
            continue
        with pytest.raises(ValueError, match=r"17 budgets up to the density.* 16; round them"):
            found.init()


@pytest.mark.parametrize("method", [toy(), NST()])
def test_a_model_without_prunable_layers_is_refused(method: Any) -> None:
    task = Task.of(nn.Linear(5, 3), torch.zeros(2, 5), prunable=[], start="seed")
    with pytest.raises(ValueError, match="`prunable=`"):
        check(method, task, Toy(), rounds=4)


def test_layers_are_counted_from_one() -> None:
    names = [f"layer{number}" for number in range(1, 17)]
    assert layers(names, "9-16") == names[8:]
    assert layers(names, "1-16") == names
    assert layers(names, "2, layer7,16") == ["layer2", "layer7", "layer16"]


def test_a_full_layer_of_groups_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is pruned there could only grow at its own place, from zero."""
    pruned: list[int] = []

    def spy(by: Any, params: Any, masks: Any, removed: Any, size: int) -> sparsity.Change:
        pruned.extend(removed.values())
        return sparsity.regrow_in_groups(by, params, masks, removed, size)

    watched = SimpleNamespace(**{**vars(sparsity), "regrow_in_groups": spy})
    monkeypatch.setattr(mask_learning, "sparsity", watched)
    played(toy("jmwst", group=GROUP, density=1.0, prune_rate=0.5), 3)
    assert pruned and not any(pruned)
    played(toy("jmwst", group=GROUP, density=0.5, prune_rate=0.5), 3)
    assert any(pruned)
