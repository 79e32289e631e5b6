"""A minority of hostile clients costs a run nothing but their own replies, whatever the method."""

from __future__ import annotations

from functools import cache

import pytest
from hostile_clients import ATTACKS, HOSTILE, POOL, QUIET, TINY, in_turn, trained

from gossamer import METHODS
from gossamer.conformance.toys import CLASSES, normed_task
from gossamer.engine.events import ClientFailed
from gossamer.engine.summary import Summary
from gossamer.trust.limits import is_finite

NOISE = 0.15
"""By how much accuracy on a few hundred small images may differ: hostile clients are missing from
the mean."""
SLOWED = 0.35
"""The same if hostile replies are within the limits, and pull the mean back."""
ROBUST = "trimmed:0.3"
"""What undoes such replies where they pull the mean further."""
TWINS = {"fedadam-kingma", "fedsparse-low", "fedsparse-high"}
"""Other names, or other prices, of entries that are tried anyway."""
RARE = ("-code", "-release", "-bytecode", "-paper", "-clean", "-sparing", "-static", "-sign")
"""Presets of methods that are tried anyway."""
OFTEN = [name for name in METHODS if not name.endswith(RARE) and name not in TWINS]
RAREST = [name for name in METHODS if name not in OFTEN]


@cache
def undisturbed(name: str) -> Summary:
    """The run without attacks, in which nobody is refused."""
    clean, events = trained(METHODS[name], normed_task())
    assert [event for event in events if isinstance(event, ClientFailed)] == []
    return clean


def check(name: str, attacks: list[str]) -> set[str]:
    """Runs a method under attacks in turn; returns the stages at which replies were refused."""
    clean = undisturbed(name)
    attacked, events = trained(METHODS[name], normed_task(), in_turn(attacks))
    refused = [event for event in events if isinstance(event, ClientFailed)]
    assert {event.client for event in refused} <= HOSTILE
    assert attacked.rounds == clean.rounds and is_finite(attacked.state)
    allowed = SLOWED if QUIET & set(attacks) else NOISE
    if QUIET & set(attacks) and lost(clean, attacked) > allowed:  # what no limit shows
        attacked, _ = trained(METHODS[name], normed_task(), in_turn(attacks), aggregate=ROBUST)
        allowed = NOISE
    assert lost(clean, attacked) <= allowed
    return {event.stage for event in refused}


def lost(clean: Summary, attacked: Summary) -> float:
    """How much accuracy fell, of the global model or of clients' own, whichever fell more."""
    fell = []
    for figure in ("global", "personal_mean"):
        before, after = clean.accuracy[figure], attacked.accuracy[figure]
        assert before is not None and after is not None
        if figure == "personal_mean":  # a hostile client whose replies are refused stays untrained
            theirs = len(HOSTILE) / POOL
            before = (1 - theirs) * before + theirs / CLASSES
        fell.append(before - after)
    return max(fell)


@pytest.mark.parametrize(
    "name", [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in RAREST)]
)
def test_every_method_withstands_attacks_in_turn(name: str) -> None:
    names, first = list(ATTACKS), 5 * list(METHODS).index(name)
    turn = [names[(first + 7 * place) % len(names)] for place in range(len(names))]
    assert sorted(turn) == sorted(names)
    stages = check(name, turn)
    assert "claim" in stages and ("limit" in stages or not has_numbers(name))


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", [name for name in METHODS if name not in TWINS])
def test_every_method_withstands_every_attack(name: str, attack: str) -> None:
    check(name, [attack])


@pytest.mark.parametrize("rule", ["median", "trimmed:0.3", "krum:2", "geometric-median"])
def test_a_robust_mean_undoes_what_no_limit_shows(rule: str) -> None:
    quiet = in_turn([name for name in ATTACKS if name.endswith(f"{TINY:g}")])
    task = normed_task()
    by_mean, _ = trained(METHODS["fedavg"], task, quiet)
    robust, events = trained(METHODS["fedavg"], task, quiet, aggregate=rule)
    assert not [event for event in events if isinstance(event, ClientFailed)]
    clean = undisturbed("fedavg").accuracy["global"]
    assert clean is not None and by_mean.accuracy["global"] is not None
    assert robust.accuracy["global"] is not None
    assert by_mean.accuracy["global"] < clean - 0.1
    assert robust.accuracy["global"] > clean - 0.05


def has_numbers(name: str) -> bool:
    """Whether clients send numbers; those of FedPM send bits alone."""
    return not name.startswith("fedpm")
