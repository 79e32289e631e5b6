"""`gossamer cost`: prices without training, and the ledger of a run."""

from collections.abc import Callable

import pytest

from .conftest import SMALL, Outcome, events

Command = Callable[..., Outcome]


def test_fedavg_on_lenet_costs_what_the_formula_says(gossamer: Command) -> None:
    words = [
        "--model",
        "lenet5_caffe",
        "--data",
        "fmnist",
        "--pool",
        "100",
        "--clients",
        "10",
        "--rounds",
        "500",
    ]
    found = gossamer("cost", "fedavg", *words, "--json")
    assert found.code == 0
    price = found.json["bits"]
    assert price["paper_up"] == price["paper_down"] == 32 * 430_500 * 10 * 500
    assert price["up"] == (32 * 430_500 + 72) * 10 * 500
    assert price["information_up"] == 32 * 430_500 * 10 * 500
    assert found.json["flops"] == 2 * 3 * 2_293_000 * 600 * 10 * 500
    assert "137.8 Mbit up" in found.out and "params" in found.out


def test_a_price_is_what_the_run_then_costs(gossamer: Command) -> None:
    words = ["--model", "mlp:hidden=16", "--pool", "20", "--clients", "4", "--rounds", "3"]
    price = gossamer("cost", "fedprox", *words, "--json").json
    run = gossamer("run", "fedprox", *words, "--out", "a", "--json").json
    assert price["bits"] == run["bits"] and price["flops"] == run["flops"]


def test_half_precision_halves_the_price(gossamer: Command) -> None:
    words = ["--model", "mlp:hidden=16", "--pool", "20", "--clients", "4", "--rounds", "3"]
    full = gossamer("cost", "fedavg", *words, "--json").json["bits"]
    half = gossamer("cost", "fedavg", *words, "--wire", "f16", "--json").json["bits"]
    assert half["up"] == pytest.approx(full["up"] / 2, rel=1e-3)
    assert half["paper_up"] == full["paper_up"]


def test_a_model_can_be_priced_without_its_data(gossamer: Command) -> None:
    words = [
        "--model",
        "resnet8",
        "--data",
        "cifar100",
        "--clients",
        "10",
        "--pool",
        "100",
        "--rounds",
        "500",
    ]
    price = gossamer("cost", "fedavg", *words, "--json").json["bits"]
    assert price["paper_up"] == 32 * (83_700 + 480) * 10 * 500  # trained, and running statistics


def test_what_is_learned_has_a_range_and_a_note(gossamer: Command) -> None:
    """Runs of 20 rounds of LeNet sent 1,768, 118, 1,007 and 1,275 Mbit up."""
    words = ["--model", "lenet5_caffe", "--data", "fmnist", "--pool", "100", "--rounds", "20"]
    runs = {"laplace": 1768e6, "fedsparse": 118e6, "prunefl": 1007e6, "subfedavg": 1275e6}
    for name, sent in runs.items():  # of eight clients a round
        found = gossamer("cost", name, *words, "--clients", "8", "--json")
        assert "\nnote: " in found.out and "learned" in found.json["learned"] + found.out
        assert found.json["bits_least"]["up"] < sent < found.json["bits"]["up"]
        assert found.json["bits_least"]["up"] <= found.json["bits"]["up"]
    certain = gossamer("cost", "fedavg", *words, "--clients", "10", "--json")
    assert certain.json["learned"] is None and "note:" not in certain.out
    assert certain.json["bits"] == certain.json["bits_least"]


def test_presets_are_priced_as_they_would_run(gossamer: Command) -> None:
    found = gossamer("cost", "papers/spafl/fmnist.toml", "--json")
    assert found.code == 0 and found.json["rounds"] == 500 and found.json["method"] == "spafl"
    assert found.json["bits"]["paper_up"] == 32 * 580 * 10 * 500
    natural = gossamer("cost", "papers/fedsparse/femnist-fedavg.toml", "--json")
    assert natural.code == 0 and "note: a pool of 100; set --pool and --examples" in natural.out


def test_lines_of_tensors_add_up_to_lines_of_fields(gossamer: Command) -> None:
    words = ["--model", "mlp:hidden=16", "--pool", "20", "--clients", "4", "--rounds", "3"]
    fields = gossamer("cost", "fedavg", *words, "--json").json
    told = gossamer("cost", "fedavg", *words, "--by", "tensor", "--json")
    tensors = told.json
    assert (fields["by"], tensors["by"]) == ("field", "tensor")
    assert tensors["bits"] == fields["bits"] and tensors["flops"] == fields["flops"]
    leaves = [line["leaf"] for line in tensors["lines"] if line["direction"] == "up"]
    names = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert leaves == ["header", *(f"params[{name}]" for name in names)]
    for line in fields["lines"]:
        for column in ("sent", "information", "paper"):
            parts = [
                each[column]
                for each in tensors["lines"]
                if each["direction"] == line["direction"]
                and each["leaf"].partition("[")[0] == line["leaf"]
            ]
            assert sum(parts) == pytest.approx(line[column])
    assert "params[fc1.weight]" in told.out


def test_the_ledger_of_a_run_adds_up(gossamer: Command) -> None:
    gossamer("run", "fedavg", *SMALL, "--out", "a", "--quiet", "--network", "4g")
    finished = [event for event in events("a") if event["event"] == "client-finished"]
    for event in finished:
        for direction in ("up", "down"):
            rows = [row for row in event["traffic"] if row["direction"] == direction]
            assert sum(row["sent"] for row in rows) == event[direction]
            assert sum(row["paper"] for row in rows) == event[f"paper_{direction}"]
    last = [event for event in events("a") if event["event"] == "round-finished"][-1]
    assert last["up"] == sum(event["up"] for event in finished)
    assert last["device_seconds"] > 0
    told = gossamer("cost", "a", "--target", "0.2", "--json")
    assert told.json["reached"]["device_seconds"] <= last["device_seconds"]
    total = sum(line["sent"] for line in told.json["lines"])
    assert total == last["up"] + last["down"]
    assert told.json["reached"]["of"] == "global"
    assert "was never reached" in gossamer("cost", "a", "--target", "0.999").out
    assert len(gossamer("cost", "a", "--by", "round").out.splitlines()) == 2 + 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("cost", "name a method or a run"),
        ("cost fedavgg", "did you mean 'fedavg'?"),
        ("cost fedavg --clients 200 --pool 100", "the pool has 100"),
        ("cost fedavg --shape 3xx", "--shape is e.g. 3x32x32"),
        ("cost fedavg --data npz:mine.npz", "set --shape, --classes and --examples"),
        ("cost fedavg --wire f8", "--wire is f32 or f16"),
        ("cost fedavg --by weight", "--by: invalid choice: 'weight'"),
        ("run fedavg --wire f32+zst", "did you mean 'zstd'?"),
        ("run fedavg --network 6g", "4g, wifi, iot"),
        ("run fedavg --network up=1,down=1,latency=0,flops=0", "needs positive speeds"),
        ("run fedavg --flops-model spaf", "did you mean 'spafl'?"),
    ],
)
def test_refusals(gossamer: Command, command: str, said: str) -> None:
    found = gossamer(*command.split())
    assert found.code == 2 and said in found.err and len(found.err.splitlines()) == 1


def test_time_to_accuracy_is_that_of_personal_models_where_there_are_any(
    gossamer: Command,
) -> None:
    gossamer("run", "lg_fedavg", *SMALL, "--out", "b", "--quiet")
    best = max(event["personal_mean"] for event in events("b") if event["event"] == "evaluated")
    reached = gossamer("cost", "b", "--target", str(best), "--json").json["reached"]
    assert reached["of"] == "personal" and reached["accuracy"] == best
    asked = gossamer("cost", "b", "--target", "0", "--of", "global", "--json").json["reached"]
    assert asked["of"] == "global" and asked["round"] == 0
