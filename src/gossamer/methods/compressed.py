"""Methods that are averaging with a compressor: what papers call them, as values.

All are `compress(FedAvgM(...))` with the server's momentum off. Clients train for local epochs;
`--epochs` may be a fraction, down to the single step that some of these papers take. `--compress`
gives any other method the same compressors (docs/compression.md).
"""

from __future__ import annotations

from gossamer.compression import Compressed, compress
from gossamer.methods.fedavgm import FedAvgM
from gossamer.optim import Training

FULL_BATCH = 1 << 20
"""Examples in a batch that has all of a client's."""


def fedpaq() -> Compressed:
    """FedPAQ: periodic averaging of quantised changes, some clients a round.

    Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani: FedPAQ: a communication-efficient federated
    learning method with periodic averaging and quantization. AISTATS 2020.
    https://arxiv.org/abs/1909.13014

    Differs from the paper: every tensor has a norm of its own.
    """
    return compress(FedAvgM(server_momentum=0.0, weighting="uniform"), up="qsgd:10:0")


def fedcom() -> Compressed:
    """FedCOM: quantised changes, and a learning rate of the server.

    Haddadpour, Kamani, Mokhtari, Mahdavi: Federated learning with compression: unified analysis and
    sharp guarantees. AISTATS 2021. https://arxiv.org/abs/2007.01154

    Numbers have 8 bits, as in the authors' FedTorch; there, levels lie between the least and the
    largest change of a tensor. Differs from the paper: this is Algorithm 1; gradient tracking
    (FedCOMGATE) is not part of it.
    """
    method = FedAvgM(server_momentum=0.0, server_lr=1.0, weighting="uniform")
    return compress(method, up="qsgd:127")


def stc() -> Compressed:
    """STC: sparse ternary changes in both directions, with error feedback.

    Sattler, Wiedemann, Müller, Samek: Robust and communication-efficient federated learning from
    non-i.i.d. data. IEEE TNNLS 2019. https://arxiv.org/abs/1903.02891

    Differs from the paper: clients train for local epochs, not for one step. Places and signs are
    range-coded, where the paper has Golomb codes; the paper's column of the ledger counts those.
    """
    method = FedAvgM(server_momentum=0.0, weighting="uniform")
    return compress(method, up="ternary:0.0025+ef", down="ternary:0.0025+ef")


def ef21() -> Compressed:
    """EF21: gradients whose differences to a shared estimate are compressed.

    Richtárik, Sokolov, Fatkhullin: EF21: a new, simpler, theoretically better, and practically
    faster error feedback. NeurIPS 2021. https://arxiv.org/abs/2106.05203

    A step is that of all local data, as in the paper's Algorithm 2.

    Differs from the paper: with fewer clients than the pool, estimates of absent clients have no
    part in the mean.
    """
    training = Training(epochs=1, batch=FULL_BATCH)
    method = FedAvgM(server_momentum=0.0, weighting="uniform", training=training)
    return compress(method, up="topk:0.01+ef21")


def powersgd() -> Compressed:
    """PowerSGD: changes as products of two thin matrices, with error feedback.

    Vogels, Karimireddy, Jaggi: PowerSGD: practical low-rank gradient compression for distributed
    optimization. NeurIPS 2019. https://arxiv.org/abs/1905.13727

    Differs from the paper: clients do not hear each other within a round, so every client has
    factors of its own, where workers agree on them by two all-reduces.
    """
    method = FedAvgM(server_momentum=0.0, weighting="uniform")
    return compress(method, up="low_rank:2+ef")


COMPRESSED = {
    "fedpaq": fedpaq(),
    "fedcom": fedcom(),
    "stc": stc(),
    "ef21": ef21(),
    "powersgd": powersgd(),
}
