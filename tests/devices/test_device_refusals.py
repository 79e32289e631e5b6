"""Combinations that make no sense are refused before the first round, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer import Options
from gossamer.compression import compress
from gossamer.engine import Run, check_run
from gossamer.fields import replace as with_settings
from gossamer.methods import METHODS
from helpers import Toy, mlp

ASYNCHRONOUS = {"devices": "mcu", "asynchronous": "buffer=2,concurrency=3"}


def check(method: Any, dp: str = "", **options: Any) -> None:
    check_run(Run(method, mlp(), Toy(), rounds=3, options=Options(**options), dp=dp))


def named(name: str) -> Any:
    return with_settings(METHODS[name], {"clients": 2})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deadline": "60s"}, "`deadline=` needs to know the devices"),
        ({"asynchronous": "fedbuff"}, "`asynchronous=` needs to know the devices"),
        ({"availability": "duty:24h:0.5"}, "`availability=` needs to know the devices"),
        ({"devices": "mcu", "network": "4g"}, "use one of them"),
        ({"devices": "toaster"}, "`devices=` is one of phone-2018"),
        ({"network": "5g"}, "`network=` is one of phone-2018"),
        ({"devices": "mcu", "deadline": "soon"}, "`deadline=` takes a length of time"),
        ({"devices": "mcu", "partial": True}, "add `deadline='60s'`"),
        ({"devices": "mcu", "sampling": "best"}, "`sampling=` is uniform"),
        ({"devices": "mcu", "time_by": "guess"}, "`time_by=` is flops, measured"),
        (
            {"devices": "mcu", "time_by": "measured", "deadline": "9s"},
            "`time_by='measured'` depends on this machine",
        ),
        ({"devices": "mcu", "failures": 1.0}, "`failures=` must be below 1"),
        (
            {"devices": "mcu", "asynchronous": "buffer=4,concurrency=3"},
            "need 7 different clients, but the pool has 6",
        ),
        ({**ASYNCHRONOUS, "oversample": 1.3}, "`oversample=` is about rounds"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said) as found:
        check(named("fedavg"), **options)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jmwst", "moves its masks, so a stale reply has weights that the server no longer has"),
        ("feddst", "moves its masks"),
        ("prunefl", "does not declare that stale replies can be merged"),
        ("fedsparse", "does not declare"),
        ("scaffold", "does not declare"),
        ("subfedavg", "does not declare"),
    ],
)
def test_methods_that_cannot_merge_stale_replies_say_so(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(named(name), **ASYNCHRONOUS)


@pytest.mark.parametrize("how", [{"up": "topk:0.1+ef21"}, {"down": "qsgd:16"}])
def test_compression_that_keeps_copies_in_step_is_refused(how: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="keeps copies at server and clients in step"):
        check(compress(named("fedavg"), **how), **ASYNCHRONOUS)


@pytest.mark.parametrize("name", ["spafl", "fedrep", "prunefl"])
def test_methods_that_need_whole_jobs_refuse_parts(name: str) -> None:
    with pytest.raises(ValueError, match="needs whole jobs of its clients"):
        check(named(name), devices="mcu", deadline="9s", partial=True)


@pytest.mark.parametrize(
    "options",
    [
        {"availability": "duty:24h:0.5"},
        {"sampling": "utility"},
        {"oversample": 1.3},
        {"asynchronous": "buffer=2,concurrency=3"},
    ],
)
def test_differential_privacy_needs_clients_that_are_drawn_uniformly(
    options: dict[str, Any],
) -> None:
    pytest.importorskip("dp_accounting")
    with pytest.raises(ValueError, match="`dp=` counts on clients that are drawn uniformly"):
        check(named("fedavg"), "clip=1,noise=1,delta=1e-3", devices="mcu", **options)
