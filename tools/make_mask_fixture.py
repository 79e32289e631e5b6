"""Trains LeNet-5-Caffe for a short time and keeps the mask of its largest weights, for tests.

python tools/make_mask_fixture.py              # half a minute; the bits may differ between machines
"""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from gossamer import data, models

FILE = Path(__file__).parents[1] / "tests/wire/fixtures/lenet5_caffe_top10.npy.xz"
STEPS = 400
BATCH = 64
RATE = 0.05
MOMENTUM = 0.9
DENSITY = 0.1


def trained() -> torch.nn.Module:
    """The network after some steps of plain SGD on the embedded part of Fashion-MNIST."""
    generator = torch.Generator().manual_seed(1)
    client = data.federation("fmnist-mini", "iid", pool=1, seed=1).client(0)
    torch.manual_seed(1)
    model = models.build("lenet5_caffe", (1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM)
    for _ in range(STEPS):
        batch = torch.randint(len(client.train.y), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(client.train.x[batch]), client.train.y[batch])
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")
    return model


def main() -> None:
    torch.set_num_threads(1)
    weights = [p.detach().abs().flatten() for p in trained().parameters() if p.ndim > 1]
    size = torch.cat(weights)
    mask = np.zeros(len(size), np.bool_)
    mask[size.topk(round(DENSITY * len(size))).indices.numpy()] = True
    FILE.parent.mkdir(exist_ok=True)
    with lzma.open(FILE, "wb", preset=9) as file:
        np.save(file, np.packbits(mask, bitorder="little"))
    print(f"{FILE}: {FILE.stat().st_size:,} bytes, {mask.sum():,} of {len(mask):,} weights")


if __name__ == "__main__":
    main()
