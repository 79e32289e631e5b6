"""What reports, tables and kept results say of devices."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.accounting.log import STOPPED, ledger
from gossamer.cli import main
from gossamer.engine import events
from gossamer.report import report
from gossamer.report.kept import keep, read_kept
from gossamer.report.reading import read_run
from gossamer.report.waiting import Waiting, take, together

SHORT = ["--rounds", "6", "--pool", "20", "--clients", "4", "--model", "mlp:hidden=16", "--quiet"]
DEVICES = ["--devices", "phone-2024:50%,mcu:50%", "--failures", "0.1"]


def test_rounds_are_added_up_by_class() -> None:
    def row(client: int, device: str, ended: float, outcome: str, staleness: int = 0) -> object:
        return {
            "client": client,
            "device": device,
            "began": 10.0,
            "ended": ended,
            "outcome": outcome,
            "staleness": staleness,
        }

    known: dict[str, Waiting] = {}
    rows = [
        row(1, "mcu", 40.0, "merged", 2),
        row(2, "phone", 15.0, "merged"),
        row(3, "mcu", 20, "failed"),
    ]
    take(known, {"began": 10.0, "ended": 40.0, "waited_for": 1, "clients": rows})
    assert known["mcu"] == Waiting(2, 1, failed=1, seconds=40.0, last=1, alone=20.0, staleness=2)
    assert known["phone"] == Waiting(1, 1, seconds=5.0)
    assert together([known, known])["mcu"].alone == 40
    with pytest.raises(ValueError, match="no outcome"):
        take({}, {"began": 0, "ended": 1, "waited_for": 1, "clients": [row(1, "x", 1.0, "odd")]})


def test_a_run_with_devices_has_a_section_and_is_kept_with_it(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ["--deadline", "0.4s", "--oversample", "1.5", "--out", str(out)]
    assert main(["run", "fedavg", *SHORT, *DEVICES, *more]) == 0
    run = read_run(out)
    assert set(run.devices) == {"phone-2024", "mcu"} and not run.notices
    assert run.devices["mcu"].parts > run.devices["mcu"].merged
    html = report([out]).html
    assert "<h2>Devices</h2>" in html and "waited for it alone" in html
    assert "Accuracy against virtual time" in html
    kept = read_kept(keep(run, tmp_path / "kept.json"))
    assert kept.devices == run.devices
    assert "<h2>Devices</h2>" in report([tmp_path / "kept.json"]).html
    log = events.read(out / "events.jsonl")
    lines = ledger(log)
    vain = sum(event["up"] for event in log if event["event"] == "client-stopped")
    assert lines["up", STOPPED, "all"].sent == vain
    last = [event for event in log if event["event"] == "round-finished"][-1]
    assert sum(bits.sent for line, bits in lines.items() if line[0] == "down") == last["down"]


def test_a_run_without_devices_has_no_such_section(tmp_path: Path) -> None:
    assert main(["run", "fedavg", *SHORT, "--out", str(tmp_path / "run")]) == 0
    assert "<h2>Devices</h2>" not in report([tmp_path / "run"]).html


def test_an_asynchronous_run_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--asynchronous", "buffer=3,concurrency=6", "--out", str(tmp_path / "run"), "--json"]
    assert main(["run", "spafl", *SHORT, *DEVICES, *how]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["device_seconds"] > 0 and told["rounds"] == 6
    assert main(["resume", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["state_hash"] == told["state_hash"]
    assert main(["verify", str(tmp_path / "run")]) == 0


def test_budgets_by_memory_give_small_devices_small_models(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--budgets", "by-memory", "--density", "0.5", "--model", "lenet5_caffe"]
    assert main(["run", "pdst", *SHORT, *DEVICES, *words, "--rounds", "2", "--out", str(out)]) == 0
    log = events.read(out / "events.jsonl")
    budgets = log[0]["data"]["budgets"]
    assert budgets == {"0.036": 10, "1": 10}
    kinds = {
        row["client"]: row["device"]
        for e in log
        if e["event"] == "round-timed"
        for row in e["clients"]
    }
    for event in log:
        if event["event"] == "client-finished":
            wanted = 0.036 if kinds[event["client"]] == "mcu" else 0.5
            assert event["density"] == pytest.approx(wanted, abs=0.01)
    assert main(["resume", str(out), "--quiet"]) == 0


def test_budgets_by_memory_need_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "pdst", *SHORT, "--budgets", "by-memory"]) == 2
    assert "--budgets by-memory needs devices" in capsys.readouterr().err


def test_a_run_is_not_resumed_with_other_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices, hours, out = tmp_path / "devices.csv", tmp_path / "hours.csv", tmp_path / "run"
    rows = [f"{id},{'mcu' if id % 2 else 'phone-2024'}" for id in range(20)]
    devices.write_text("\n".join(["client,device", *rows]))
    hours.write_text("\n".join(["client,from,until", *(f"{id},0,900" for id in range(20))]))
    words = ["--devices", str(devices), "--availability", f"{hours}@1h", "--out", str(out)]
    assert main(["run", "fedavg", *SHORT, *words]) == 0
    longer = ["resume", str(out), "--rounds", "7", "--quiet"]
    for path in (devices, hours):
        text = path.read_text()
        path.write_text(text.replace("mcu", "iot").replace("900", "800"))
        capsys.readouterr()
        assert main(longer) == 2
        assert "is a run of" in (said := capsys.readouterr().err) and "devices" in said
        path.write_text(text)
    assert main(longer) == 0
