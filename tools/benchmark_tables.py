"""Tables of the pages from benchmarks/results: what the engine, messages and sub-models take."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import arithmetic
from arithmetic import read

MASKS = {
    "lenet": "LeNet's shapes, random",
    "lenet_trained": "trained LeNet, largest tenth",
    "resnet20": "ResNet-20's shapes, random",
    "lenet_given": "LeNet's shapes, a few percent moved",
}
MODELS = {
    "lenet5_caffe": "LeNet-5-Caffe",
    "resnet8": "ResNet-8",
    "resnet20": "ResNet-20, group norm",
}
JOBS = {
    "lenet": "LeNet, 100 clients, 10 a round, one epoch of 600 examples",
    "mlp": "MLP 784-200-10, 1,000 clients, 50 a round, one step on 60 examples",
}


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    body = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *body])


def numbers() -> str:
    """Speed and size of coded levels."""
    found = read("numbers")
    rows = [
        [
            each["case"],
            str(each["levels"]),
            f"{each['encode']:.0f} / {each['decode']:.0f}",
            f"{each['over_entropy']:.4f}",
        ]
        for each in found["cases"]
    ]
    return markdown(["values", "levels", "encode / decode, MB/s", "size"], rows)


def prose(text: str) -> str:
    """A paragraph in lines of at most 118 characters."""
    return textwrap.fill(text, 118, break_on_hyphens=False)


def speed() -> str:
    """Local training by the engine, beside a plain loop."""
    found = read("speed")
    each = found["examples_per_second"]
    rows = [
        ["plain loop", f"{each['plain']:,}", "1"],
        [
            "plain loop, tensors prepared beforehand",
            f"{each['plain_preloaded']:,}",
            f"{found['engine_over_plain'] / found['engine_over_plain_preloaded']:.2f}",
        ],
        [
            f"engine, {found['workers']} workers",
            f"{each['engine']:,}",
            f"**{found['engine_over_plain']:.2f}**",
        ],
    ]
    words = (
        f"In {100 * found['share_outside_local_training']:.1f} % of the time no client trains, and "
        f"{100 * found['share_of_cores_not_training']:.1f} % of the two cores' time is not spent "
        "in local training (idle at the end of a round included). Over the loop with prepared "
        f"tensors the engine's ratio is {found['engine_over_plain_preloaded']:.2f}."
    )
    narrow = (
        "`--precision bf16` pays only on processors with bfloat16 arithmetic (AMX, AVX-512 BF16): "
        "on the machine of these figures, which has none, it ran at "
        f"{found['bf16_over_plain']:.2f} of the plain loop. Measure before using it."
    )
    table = markdown(["", "examples/s", "ratio to the plain loop"], rows)
    return "\n\n".join([table, prose(words), prose(narrow)])


def small_clients() -> str:
    """Clients of 50 examples, beside pfl-research."""
    found = read("small-clients")
    titles = {
        "cnn": "two convolutions, one hidden layer (1.6 million parameters)",
        "mlp": "MLP 3072-64-10",
    }
    rows = [[title, f"{found[name]['pfl_over_engine']:.2f}"] for name, title in titles.items()]
    return markdown(["model", "pfl over engine"], rows)


def registered() -> str:
    """Time and memory by the number of registered clients."""
    found = read("scale")
    rows = [
        [f"{int(size):,}", f"{time:g}", f"{found['peak_MiB'][size]:g}"]
        for size, time in found["milliseconds_per_round"].items()
    ]
    time, memory = (100 * found[name] for name in ("time_growth", "memory_growth"))
    table = markdown(["registered clients", "ms per round", "peak memory, MiB"], rows)
    grows = f"time grows by {time:.1f} % and memory by {memory:.1f} %."
    return f"{table}\n\nFrom the smallest pool to the largest, {grows}"


def million() -> str:
    """Start-up, time per event and memory with many devices."""
    rows = [
        [
            name,
            f"{each['start_up_seconds']:.1f}",
            f"{each['milliseconds_per_event']:.1f}",
            f"{each['peak_MiB']:.0f}",
        ]
        for name, each in read("devices").items()
        if "devices" in name
    ]
    return markdown(["run", "start-up, s", "ms per reply", "peak memory, MiB"], rows)


def clock() -> str:
    """Predicted and measured seconds of rounds."""
    found = read("clock")
    rows = [
        [
            name,
            f"{each['GFLOP_per_second']:.2f}",
            f"{each['measured_seconds']:.3f}",
            *(
                f"{each[way]:.3f} ({100 * (each[way] / each['measured_seconds'] - 1):+.0f} %)"
                for way in ("own speed", "dense speed")
            ),
        ]
        for name, each in found["rounds"].items()
    ]
    head = ["model", "GFLOP/s", "measured, s", "predicted, own speed", "predicted, dense speed"]
    worst = found["worst_deviation"]
    told = (
        f"The largest deviation is {100 * worst['own speed']:.0f} % with a speed that was "
        f"measured at the same density, and {100 * worst['dense speed']:.0f} % with that of the "
        "dense model."
    )
    return f"{markdown(head, rows)}\n\n{told}"


def masks() -> str:
    """Speed and size of the Rice code, and what messages take of a round."""
    found, wire = read("masks"), read("wire")["messages"]
    rows = [
        [
            title,
            f"{found['rice'][name]['encode_MB_per_second']} / "
            f"{found['rice'][name]['decode_MB_per_second']}",
            f"{found['rice'][name]['bits_over_limit']:.4f}",
        ]
        for name, title in MASKS.items()
    ]
    takes = [
        100 * wire[kind][f"{way}_share_of_round"]
        for way in ("encoding", "decoding")
        for kind in ("dense", "density 0.1")
    ]
    cut = found["cut_over_partition"]
    return "\n\n".join(
        [
            markdown(["mask", "encode / decode, MB/s", "size"], rows),
            prose(
                f"Encoding takes {takes[0]:.1f} % of a LeNet round for dense messages, and "
                f"{takes[1]:.1f} % where both directions carry a new mask and its values at "
                f"density 0.1 in every message; decoding {takes[2]:.1f} % and {takes[3]:.1f} %."
            ),
            prose(
                "Where the largest weights of a sparse layer end is found "
                f"{cut['0.1']:.0f} times faster than by NumPy's partition at density 0.1, and "
                f"{cut['0.02']:.0f} times at 0.02 ({cut['1.0']:g} of its speed in a dense layer, "
                f"{cut['0.5']:g} at a half): partition is slow where many numbers are equal, as "
                "zeros are."
            ),
        ]
    )


def compact() -> str:
    """Training of masked models over training without the masked units."""
    rows = [
        [
            MODELS[name],
            f"**{each['masked_to_compacted']:.2f}**",
            f"{each['parameters']:.3f}",
            f"{each['products']:.3f}",
            f"{each['milliseconds_to_make']:.0f}",
            f"{each['milliseconds_to_trace']:.0f}",
        ]
        for name, each in read("compact")["models"].items()
    ]
    head = ["", "masked over removed", "parameters left", "products left", "ms to make"]
    return markdown([*head, "ms to trace, once"], rows)


def page() -> str:
    """Size and speed of a report."""
    found = read("page")
    opened = found["seconds_to_open"]
    return prose(
        f"The page of ten runs of 500 rounds with ten clients each has {found['megabytes']:.1f} MB "
        f"and takes {found['seconds_to_make']:.1f} s to make. Headless Chromium draws it in "
        f"{opened['desktop']:.1f} s at the width of a desktop (1280) and {opened['phone']:.1f} s "
        "at that of a phone (390), the median of five."
    )


def training() -> str:
    """Seconds of local training of whole runs, sparse and dense."""
    found = read("training")
    workers = prose(
        f"SPDST with LeNet takes {found['two_workers_over_one']:.2f} times as long with one worker "
        "as with two. Two processes at once, which share nothing but the machine, do "
        f"{found['two_processes_over_one']:.2f} times the work of one: memory is shared, and the "
        "server merges while no client trains."
    )
    return f"{arithmetic.training()}\n\n{workers}"


def swat() -> str:
    """A step of SWAT by the kernels, over torch's."""
    found = read("swat")["times_as_fast"]
    return markdown(list(found), [[f"{each:.1f}" for each in found.values()]])


def gated() -> str:
    """A client's step of FedSparse without pruned groups, over the same with the whole model."""
    rows = [
        [
            f"`{name}`",
            f"{each['parameters']['compacted'] / 1e3:.0f} thousand of "
            f"{each['parameters']['whole'] / 1e3:.0f}",
            f"{each['compacted_to_whole']:.2f}",
        ]
        for name, each in read("compact")["fedsparse"].items()
    ]
    return markdown(["", "parameters trained", "time"], rows)


def sockets() -> str:
    """Bytes of a message on the socket."""
    found, parts = read("messages"), ("body", "head", "flower")
    fedavg, spafl = ([found[name][part] for part in parts] for name in ("fedavg", "spafl"))
    rows = [
        [name, *(f"{count:,.0f}" for count in each)]
        for name, each in (("`fedavg`", fedavg), ("`spafl`", spafl))
    ]
    head = ["method", "body, as the ledger counts it", "head", "Flower, HTTP and TLS"]
    words = (
        f"So Flower adds {100 * (sum(fedavg) / fedavg[0] - 1):.1f} % to the messages of FedAvg. "
        f"Those of SpaFL are {fedavg[0] / spafl[0]:.0f} times smaller than FedAvg's as the ledger "
        f"counts, and {sum(fedavg) / sum(spafl):.0f} times on the socket: with messages so small, "
        "most of what a network carries is Flower's requests around them."
    )
    return f"{markdown(head, rows)}\n\n{prose(words)}"


def simulation() -> str:
    """The engine beside Flower's simulation, on two jobs."""
    found, rows = read("flower"), []
    for job, title in JOBS.items():
        for kind, tests in (("tested", "as the quickstart"), ("trained", "none")):
            each = found[job][kind]
            ratios = each["flower_over_engine"]
            seconds = {
                n: f"{', '.join(f'{s:.1f}' for s in v)} s" for n, v in each["seconds"].items()
            }
            rows.append(
                [
                    *(title if kind == "tested" else "", tests, seconds["engine"]),
                    *(seconds["running"], f"{ratios['running']:.1f}"),
                    *(seconds["from nothing"], f"{ratios['from nothing']:.1f}"),
                ]
            )
    head = ["job", "tests", "`gossamer run`", "Flower, SuperLink running", "ratio"]
    return markdown([*head, "Flower, from nothing", "ratio"], rows)
