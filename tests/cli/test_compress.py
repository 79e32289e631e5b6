"""`--compress`: on the command line, in files, when resumed, in comparisons and in prices."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]
QUIET = ["--json", "--quiet"]


def test_replies_are_compressed_and_runs_resume_to_the_same_bits(gossamer: Command) -> None:
    words = [*SMALL, "--compress", "topk:0.05+ef", *QUIET]
    whole = gossamer("run", "fedavg", *words, "--out", "whole").json
    gossamer("run", "fedavg", *words, "--out", "cut", "--until", "bits=1")
    resumed = gossamer("resume", "cut", "--until", "flops=1e30", "--workers", "2", *QUIET).json
    assert resumed["state_hash"] == whole["state_hash"] and resumed["rounds"] == 3
    dense = gossamer("run", "fedavg", *SMALL, "--out", "dense", *QUIET).json
    assert whole["bits"]["up"] < 0.1 * dense["bits"]["up"]
    assert whole["bits"]["down"] == dense["bits"]["down"]
    fields = {row["leaf"] for e in events("whole")[1:] for row in e.get("traffic", [])}
    assert {"payload.masks", "payload.values", "params"} <= fields


def test_a_configuration_has_the_compressor_and_repeats_the_run(gossamer: Command) -> None:
    ways = "up=sign+ef,down=qsgd:16"
    first = gossamer("run", "fedavgm", *SMALL, "--compress", ways, "--out", "a", *QUIET).json
    config = tomllib.loads(Path("a/config.toml").read_text())
    assert config["experiment"]["compress"] == ways and "compress_up" not in config["settings"]
    again = gossamer("run", "a/config.toml", "--out", "b", *QUIET).json
    assert again["state_hash"] == first["state_hash"]


def test_named_entries_have_their_compressors_as_settings(gossamer: Command) -> None:
    words = [*SMALL, "--compress-up", "ternary:0.1+ef", "--out", "a", *QUIET]
    found = gossamer("run", "stc", *words)
    assert found.code == 0
    settings = events("a")[0]["settings"]
    assert settings["compress_up"] == "ternary:0.1+ef"
    assert settings["compress_down"] == "ternary:0.0025+ef" and settings["server_momentum"] == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["fedpm", "--compress", "qsgd:16"], "send no changes of numbers that they were sent"),
        (["fedavg", "--compress", "topq:0.1"], "did you mean 'topk'?"),
        (["fedavg", "--compress", "up=,down=sign"], "--compress takes up=COMPRESSOR"),
        (["stc", "--compress", "sign"], "use --compress-up or --compress-down"),
        (["spdst", "--compress", "sign+ef"], "leave out +ef and +ef21"),
        (["fedavg", "--compress", "sign", "--dp", "clip=1,noise=1,delta=1e-5"], "noise cannot"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    words: list[str], reason: str, gossamer: Command
) -> None:
    found = gossamer("run", words[0], *SMALL, *words[1:])
    assert found.code == 2 and reason in found.err and "Traceback" not in found.err


def test_a_comparison_has_methods_with_and_without_compression(gossamer: Command) -> None:
    small = "fedavg:compress=qsgd:16,lr=0.1", "fedavg:compress=qsgd:16:0/topk:0.1"
    words = ["fedavg", *small, *SMALL, "--json", "--out", "c"]
    found = gossamer("compare", *words)
    assert found.code == 0, found.err
    up = [run["bits"]["up"] for run in found.json["runs"]]
    assert up[1] < 0.2 * up[0] and up[2] < up[1]
    assert {path.name for path in Path("c").iterdir() if path.is_dir()} == {
        "fedavg",
        "fedavg,compress=qsgd:16,lr=0.1",
        "fedavg,compress=qsgd:16:0_topk:0.1",
    }


def test_a_compressed_method_has_a_price(gossamer: Command) -> None:
    words = ["--data", "fmnist-mini", "--model", "mlp:hidden=16", "--pool", "20", "--rounds", "3"]
    run = gossamer("run", "fedavg", *SMALL, "--compress", "qsgd:16", "--out", "a", *QUIET).json
    found = gossamer("cost", "fedavg", *words, "--clients", "4", "--compress", "qsgd:16", "--json")
    assert found.code == 0, found.err
    figures = found.json
    assert figures["bits_least"]["up"] <= run["bits"]["up"] <= figures["bits"]["up"]
    assert "depends on training" in found.out


def test_a_method_is_checked_with_a_compressor(gossamer: Command) -> None:
    found = gossamer("check", "fedavg", "--compress", "randk:0.1", "--json")
    assert found.code == 0 and found.json["failed"] == []
    refused = gossamer("check", "fedpm", "--compress", "sign")
    assert refused.code == 2 and "nothing to compress" in refused.err
