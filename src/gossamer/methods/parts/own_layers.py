"""A model in two parts: layers that are averaged, and layers that every client keeps to itself."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias

import torch

from gossamer.core import Ctx, Params, Result
from gossamer.methods.parts import dense_model
from gossamer.methods.parts.dense_model import Up, Work
from gossamer.task.layout import Layout, did_you_mean

Rows: TypeAlias = dict[str, slice | None]
"""What is averaged: some rows of a tensor, or with None the whole of it."""


@dataclass(frozen=True)
class Local:
    """The part of the model that never leaves the client."""

    params: Params


def initial(ctx: Ctx, rows: Rows) -> Params:
    """The first weights of the averaged part."""
    return divided(ctx.task.init(ctx.common.fold("init")), rows)[0]


def joined(ctx: Ctx, params: Params, local: Local | None, rows: Rows) -> Params:
    """The averaged part with the client's own, or with the initial weights if it has none."""
    own = local.params if local else divided(ctx.task.init(ctx.common.fold("init")), rows)[1]
    whole = {**own, **params}
    for name, part in rows.items():
        if part and name in own:
            above, below = own[name][: part.start], own[name][part.start :]
            whole[name] = torch.cat([above, params[name], below])
    return {name: whole[name] for name in ctx.task.layout.names}


def finish(ctx: Ctx, work: Work, rows: Rows) -> Result[Up, Local]:
    """Sends the averaged part, and keeps the other."""
    sent, kept = divided(work.params, rows)
    metrics = {"loss": dense_model.mean_loss(work)}
    return Result(Up(sent), Local(kept) if kept else None, metrics=metrics)


def divided(params: Params, rows: Rows) -> tuple[Params, Params]:
    """The averaged part of a model, and the client's own."""
    own = {name: tensor for name, tensor in params.items() if name not in rows}
    for name, part in rows.items():
        if part:
            own[name] = torch.cat([params[name][: part.start], params[name][part.stop :]])
    return {n: params[n][part] if part else params[n] for n, part in rows.items()}, own


def last_layers(layout: Layout, wanted: str, option: str) -> tuple[str, ...]:
    """The names of the tensors of the last layers, in the layout's order.

    A number N takes the last N modules with parameters, in the order of their definition. Norms
    count as modules but are left out; 3 gives LG-FedAvg's published sets of CNN-7 and ResNet-8.
    Anything else is a comma-separated list of names or patterns of layers and tensors, norms
    included.

    Args:
        layout: the model.
        wanted: a number or names.
        option: which option asks, for error messages.
    """
    if wanted.isdecimal():
        layers = list(dict.fromkeys(map(layer_of, layout.parameters)))
        last = layers[len(layers) - min(int(wanted), len(layers)) :]
        names = {n for n in layout.parameters if layer_of(n) in last and layout[n].kind != "norm"}
    else:
        patterns = [each.strip() for each in wanted.split(",") if each.strip()]
        names = {name for pattern in patterns for name in matching(layout, pattern, option)}
    if not names:
        raise ValueError(
            f"`{option}={wanted!r}` leaves nothing to {'share' if option == 'shared' else 'keep'}; "
            f"use a larger number of last layers, e.g. 2, or names such as {layout.parameters[-1]}"
        )
    return tuple(name for name in layout.names if name in names)


def matching(layout: Layout, pattern: str, option: str) -> list[str]:
    """The tensors of a layer, or those that match a pattern."""
    names = [n for n in layout.names if n.startswith(f"{pattern}.") or fnmatchcase(n, pattern)]
    if not names:
        layers = [layer for layer in dict.fromkeys(map(layer_of, layout.names)) if layer]
        near = did_you_mean(pattern.rstrip(".*"), [*layout.names, *layers])
        raise ValueError(
            f"`{option}=`: no layer or tensor of this model is called {pattern!r}{near} "
            f"it has {', '.join(layers or layout.names)}"
        )
    return names


def layer_of(name: str) -> str:
    """The module that a tensor belongs to."""
    return name.rpartition(".")[0]
