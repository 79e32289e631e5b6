"""Sparse learning on a client: the masks are trained along with the weights.

After every epoch (in a round of one epoch: half-way) each layer loses its smallest weights, and as
many grow at random places, most of them in the layers whose weights are large on average.

Dettmers, Zettlemoyer: Sparse networks from scratch, 2019, https://arxiv.org/abs/1907.04840, in the
form of section 2 of FLASH (Babakniya et al., TMLR 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gossamer import sparsity
from gossamer.core import Batch, Ctx, Key, Masks, Params
from gossamer.methods.parts import masked_training, sparse_model
from gossamer.methods.parts.masked_training import Work
from gossamer.methods.parts.sparse_model import SparseModel
from gossamer.optim import Training
from gossamer.sparsity import Change
from gossamer.wire import Revision

SCHEDULE = Training(epochs=1, batch=32, lr=0.1, schedule="exponential-to", lr_end=0.001)
"""FLASH's local training (its Table 1)."""


@dataclass(frozen=True)
class Update:
    """A client's reply."""

    model: SparseModel
    mask: Revision | None
    """Its masks, if they moved in this round."""


def receive_update(
    ctx: Ctx,
    update: Update,
    sent: SparseModel,
    masks: Masks,
    affordable: Callable[[Masks, int], Masks] = sparse_model.affordable,
) -> tuple[Params, Masks]:
    """The parameters and masks of a client that was sent a model under `masks`.

    Args:
        affordable: checks masks that moved against the number of weights allowed.
    """
    if update.mask is not None:
        masks = affordable(update.mask.masks, sparse_model.total(masks))
    return sparse_model.receive_reply(ctx, update.model, sent, masks), masks


def step(
    ctx: Ctx, training: Training, work: Work, batch: Batch, prune_rate: float, group: int = 0
) -> None:
    """One step of SGD on the active weights and, where it is due, an update of the masks.

    Args:
        prune_rate: the part of each layer that is pruned; it decays linearly within the round.
        group: the size of the groups of an N:M mask; 0 for unstructured masks.
    """
    masked_training.step(ctx, training, work, batch)
    if not sparsity.updates_masks(batch):
        return
    key, weights = batch.key.fold("masks"), masked_weights(work)
    rate = sparsity.decayed(prune_rate, "linear", batch.step + 1, batch.steps)
    if group:
        removed = sparsity.removals(weights, work.masks, rate)
        change = evolve_in_groups(key, weights, work.masks, removed, group)
    else:
        change = sparsity.evolve(key, weights, work.masks, rate)
    masked_training.change_masks(ctx, work, change)


def masked_weights(work: Work) -> Params:
    """The tensors that have masks."""
    return {name: work.params[name] for name in work.masks}


def evolve_in_groups(
    by: Key | Params, weights: Params, masks: Masks, removed: Mapping[str, int], group: int
) -> Change:
    """Prunes `removed` weights of each layer and regrows as many within the same groups.

    Args:
        by: a key for random places, or scores whose largest are regrown.
    """
    kept = sparsity.count(masks)
    # In a full group only what was pruned could grow again.
    fitting = {name: min(n, weights[name].numel() - kept[name]) for name, n in removed.items()}
    return sparsity.regrow_in_groups(by, weights, masks, fitting, group)
