"""Statistics of a division: sizes of clients, and how many classes they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gossamer.data.federation import Federation
from gossamer.data.tensors import Tensors


def statistics(federation: Federation) -> Mapping[str, Any]:
    """The federation's description, classes held per client, and the size of every client."""
    sizes = np.array([client.examples for client in federation.pool])
    known: dict[str, Any] = dict(federation.describe())
    if isinstance(federation, Tensors):
        held = (federation.counts() > 0).sum(1)
        known["classes_held_fewest"] = int(held.min())
        known["classes_held_median"] = float(np.median(held))
        known["classes_held_most"] = int(held.max())
        tests = [len(federation.own_test[client.id]) for client in federation.pool]
        known["clients_without_test_data"] = int(sum(not count for count in tests))
    return {**known, "sizes": sizes.tolist()}
