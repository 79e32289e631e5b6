"""Settings: found however deep, replaced by flat names, refused outside their bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from gossamer import METHODS, FedAvg, FedAvgM, FedOpt, Training, fields, option


@dataclass(frozen=True)
class Deep:
    share: float = option(0.5, "a share", above=0, below=1)
    kind: Literal["a", "b"] = option("a", "a kind")


@dataclass(frozen=True)
class Flat:
    count: int = option(3, "how many", least=1, most=9)
    deep: Deep = Deep()
    note: str | None = option(None, "anything")


def test_nested_settings_are_listed_with_their_paths_types_and_help() -> None:
    found = {setting.name: setting for setting in fields.settings(Flat())}
    assert list(found) == ["count", "share", "kind", "note"]
    assert found["share"].path == ("deep", "share")
    assert found["share"].type is float and found["share"].help == "a share"
    assert found["kind"].choices == ("a", "b") and found["count"].choices == ()


def test_replacing_by_flat_names_reaches_nested_records() -> None:
    changed = fields.replace(Flat(), {"count": 4, "share": 0.1, "kind": "b"})
    assert changed == Flat(4, Deep(0.1, "b"))


def test_a_name_that_does_not_exist_is_not_replaced() -> None:
    with pytest.raises(KeyError):
        fields.replace(Flat(), {"shar": 0.1})


@pytest.mark.parametrize(
    ("values", "refusal"),
    [
        ({"count": 0}, "`count=` must be at least 1, not 0"),
        ({"count": 10}, "`count=` must be at most 9, not 10"),
        ({"share": 0.0}, "`share=` must be above 0, not 0"),
        ({"share": 1.0}, "`share=` must be below 1, not 1"),
        ({"share": math.nan}, "`share=` must be above 0, not nan"),
        ({"kind": "c"}, "`kind=` is one of a, b, not 'c'"),
    ],
)
def test_values_outside_their_bounds_are_refused(values: dict[str, Any], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        fields.check(fields.replace(Flat(), values))


@pytest.mark.parametrize("values", [{"count": 1}, {"count": 9}, {"share": 0.999}, {"kind": "b"}])
def test_values_on_inclusive_bounds_are_accepted(values: dict[str, Any]) -> None:
    fields.check(fields.replace(Flat(), values))


def test_flags_have_hyphens() -> None:
    assert fields.flag("lr_end") == "lr-end"


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_has_help_and_a_name_of_its_own(name: str) -> None:
    found = list(fields.settings(METHODS[name]))
    assert all(setting.help for setting in found)
    assert len({setting.name for setting in found}) == len(found)
    fields.check(METHODS[name])


@pytest.mark.parametrize(
    ("method", "refusal"),
    [
        (FedAvg(clients=0), "`clients=` must be at least 1"),
        (FedAvg(training=Training(lr=0.0)), "`lr=` must be above 0"),
        (FedAvg(training=Training(epochs=-1.0)), "`epochs=` must be above 0"),
        (FedAvg(training=Training(batch=0)), "`batch=` must be at least 1"),
        (FedAvg(training=Training(momentum=1.0)), "`momentum=` must be below 1"),
        (FedAvg(weighting="size"), "`weighting=` is one of samples, uniform"),  # type: ignore[arg-type]
        (FedOpt(beta2=1.0), "`beta2=` must be below 1"),
        (FedOpt(server="rmsprop"), "`server=` is one of sgd, adam"),  # type: ignore[arg-type]
    ],
)
def test_bad_settings_of_methods_are_refused(method: object, refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        fields.check(method)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("clients", 2.5, "`clients=` is a whole number, not 2.5"),
        ("clients", "3", "`clients=` is a whole number, not '3'"),
        ("clients", True, "`clients=` is a whole number, not True"),
        ("lr", "fast", "`lr=` is a number, not 'fast'"),
        ("nesterov", 1, "`nesterov=` is true or false, not 1"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: Any, said: str) -> None:
    method = fields.replace(FedAvgM(), {name: value})
    with pytest.raises(ValueError, match=said):
        fields.check(method)


def test_a_value_is_found_however_deeply_it_is_nested() -> None:
    codes = METHODS["jmwst-code"]
    assert not hasattr(codes, "bn")
    assert fields.value(codes, "bn") == "running"
    assert fields.value(fields.replace(codes, {"bn": "static"}), "bn") == "static"
    assert fields.value(codes, "nothing", 7) == 7
    assert fields.value(object(), "bn", "running") == "running"
