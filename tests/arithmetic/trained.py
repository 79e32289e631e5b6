"""Trains all models for some steps and writes them to a file; see test_builds.py."""

from __future__ import annotations

import sys

import torch
from arithmetic_cases import NETS, draw, examples, net

from gossamer import Key, Training
from gossamer.arithmetic.library import library
from gossamer.arithmetic.model import Model


def main(build: str, path: str) -> None:
    kernels = library()
    assert kernels is not None
    assert kernels.build == build
    torch.set_num_threads(1)
    found = {}
    for name, (_, shape) in NETS.items():
        task = net(name)
        for density in (0.1, 1.0):
            params, masks = draw(task.layout, density)
            model = Model(task, task.own(params), masks)
            for size in (10, 37, 3, 64, 20, 5):
                batch = examples(shape, size, key=Key(size))
                model.step(batch, Training(momentum=0.9, weight_decay=0.01, clip=5.0), 0.02)
            outputs = task.logits(model.params, examples(shape, 70).x)
            found[f"{name} at {density}"] = {**model.params, "outputs": outputs}
    torch.save(found, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
