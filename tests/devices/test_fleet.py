"""Who has which device: exact shares, one client at a time, from the key alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gossamer.core import Key
from gossamer.devices import PRESETS, Device, Fleet, presets
from gossamer.devices.permutation import Order

MIXTURE = "phone-2024:50%,raspberry-pi-4:30%,mcu:20%"


@given(st.integers(0, 2**32), st.integers(1, 3000))
def test_an_order_has_every_number_once_one_by_one_or_all_together(seed: int, size: int) -> None:
    order = Order(Key(seed), size)
    together = order.places(np.arange(size))
    assert sorted(together.tolist()) == list(range(size))
    some = range(0, size, max(1, size // 10))
    assert [order.place(number) for number in some] == together[list(some)].tolist()


def test_orders_differ_by_key_and_look_random() -> None:
    first, second = (Order(Key(seed), 1000).places(np.arange(1000)) for seed in (1, 2))
    assert (first == second).sum() < 10 and (first == np.arange(1000)).sum() < 10
    assert abs(np.corrcoef(first, np.arange(1000))[0, 1]) < 0.1


def test_classes_have_exact_shares_and_depend_on_the_key_alone() -> None:
    fleet = Fleet.parse(MIXTURE, Key(3), 200)
    kinds = Counter(fleet.of(client).kind for client in range(200))
    assert kinds == {"phone-2024": 100, "raspberry-pi-4": 60, "mcu": 40}
    again = Fleet.parse(MIXTURE, Key(3), 200)
    assert [again.of(id) for id in reversed(range(200))] == [fleet.of(id) for id in range(200)][
        ::-1
    ]
    other = Fleet.parse(MIXTURE, Key(4), 200)
    assert any(other.of(id) != fleet.of(id) for id in range(200))
    assert fleet.of(5) == PRESETS[fleet.of(5).kind]


def test_speeds_spread_around_those_of_the_class() -> None:
    fleet = Fleet.parse("phone-2024", Key(0), 4000, spread=0.5)
    logs = np.log([fleet.of(id).up / PRESETS["phone-2024"].up for id in range(4000)])
    assert abs(logs.mean()) < 0.03 and abs(logs.std() - 0.5) < 0.03
    rates = np.array(
        [[fleet.of(id).flops, fleet.of(id).up, fleet.of(id).down] for id in range(500)]
    )
    assert np.abs(np.corrcoef(np.log(rates.T)) - np.eye(3)).max() < 0.15
    assert {fleet.of(id).latency for id in range(50)} == {PRESETS["phone-2024"].latency}


def test_failures_add_to_those_of_the_device() -> None:
    fleet = Fleet.parse("up=1,down=1,latency=0,flops=1,failure=0.5", Key(0), 3, failures=0.2)
    assert fleet.of(1).failure == pytest.approx(0.6)


def test_a_participation_takes_both_ways_both_latencies_and_the_work() -> None:
    device = Device("own", flops=10, up=100, down=200, latency=0.5, memory=1)
    assert device.seconds(up=300, down=800, flops=70) == 2 * 0.5 + 300 / 100 + 800 / 200 + 7
    parts = device.downloading(800) + device.training(70) + device.uploading(300)
    assert parts == device.seconds(300, 800, 70)


def test_devices_are_named_or_given_by_numbers() -> None:
    assert presets.parse("iot") == PRESETS["iot"]
    own = presets.parse("up=1e6,down=2e6,latency=0,flops=3,memory=7")
    assert own == Device("own", flops=3, up=1e6, down=2e6, latency=0, memory=7)


@pytest.mark.parametrize(
    "text",
    [
        "5g",
        "",
        "up=1",
        "up=1,down=1,latency=0,flops=1,more=1",
        "up=a,down=1,latency=0,flops=1",
        "up=0,down=1,latency=0,flops=1",
        "up=1,down=-1,latency=0,flops=1",
        "up=1,down=1,latency=-1,flops=1",
        "up=nan,down=1,latency=0,flops=1",
        "up=1,down=1,latency=inf,flops=1",
        "up=1,down=1,latency=0,flops=1,failure=1",
        "mcu:50%",
        "mcu:50%,mcu:50%",
        "mcu:50%,phone:50%",
        "mcu:50,iot:50%",
    ],
)
def test_devices_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="`devices=`"):
        Fleet.parse(text, Key(0), 10)


def listed(folder: Path, text: str) -> Fleet:
    path = folder / "devices.csv"
    path.write_text(text)
    return Fleet.parse(str(path), Key(0), 3)


def test_a_file_lists_devices_with_numbers_of_their_own(tmp_path: Path) -> None:
    fleet = listed(tmp_path, "client,device,up,failure\n2,mcu,,0.1\n0,iot,5,\n1,mcu,7,0\n")
    assert (fleet.of(0).kind, fleet.of(0).up, fleet.of(0).failure) == ("iot", 5, 0)
    assert (fleet.of(2).up, fleet.of(2).failure) == (PRESETS["mcu"].up, 0.1)
    assert fleet.of(1).up == 7 and fleet.of(1).down == PRESETS["mcu"].down


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("client,kind\n", "columns are client,device"),
        ("client,device\n0,mcu\n", "no device for client 1"),
        ("client,device\n0,mcu\n0,mcu\n", "client 0 again"),
        ("client,device\n9,mcu\n", "the pool has 0 to 2"),
        ("client,device\n0,toaster\n", "is one of phone-2018"),
        ("client,device,up\n0,mcu,x\n", "columns are"),
        ("client,device,up\n0,mcu,0\n1,mcu,\n2,mcu,\n", "client 0 up 0"),
    ],
)
def test_lists_that_make_no_sense_are_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        listed(tmp_path, text)


def test_budgets_follow_the_memory_of_devices() -> None:
    fleet = Fleet.parse(MIXTURE, Key(3), 100)
    budgets = fleet.budgets(prunable=430_000, dense=600)
    small = (0.25 * 1e6 - 12 * 600) / (16 * 430_000)
    for client in range(100):
        wanted = float(f"{small:.2g}") if fleet.of(client).kind == "mcu" else 1.0
        assert budgets[client] == np.float32(wanted)
    assert set(fleet.budgets(100, 10).tolist()) == {1.0}
    assert set(fleet.budgets(10**12, 10).tolist()) == {np.float32(0.001).item()}


def test_budgets_follow_the_memory_that_a_file_gives_a_client(tmp_path: Path) -> None:
    fleet = listed(tmp_path, "client,device,memory\n0,mcu,\n1,mcu,8e9\n2,phone-2024,1e6\n")
    small = np.float32(float(f"{0.25 * 1e6 / (16 * 430_000):.2g}"))
    assert fleet.budgets(430_000, 0).tolist() == [small, 1.0, small]
