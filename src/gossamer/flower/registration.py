"""Registration: which node hosts which clients, and which nodes are refused."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gossamer.core import Client
from gossamer.flower import messages
from gossamer.flower.carrier import Incoming
from gossamer.wire import WireError

log = logging.getLogger("gossamer.flower")


@dataclass
class Registry:
    """The registered nodes; a client belongs to the first connected node that hosts it."""

    pool: Mapping[int, Client]
    agreement: str
    _clients: dict[int, frozenset[int]] = field(default_factory=dict)
    """By node; empty if the node was refused."""
    _refused: dict[int, str] = field(default_factory=dict)
    """Why, by client of a refused node."""
    open: bool = False
    """Whether only nodes know how many examples a client has."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Examples by client, as the first node reported them."""

    @classmethod
    def of(cls, pool: Iterable[Client], agreement: str, open: bool = False) -> Registry:
        """An empty registry."""
        return cls({client.id: client for client in pool}, agreement, open=open)

    def knows(self, node: int) -> bool:
        """Whether a node has answered, validly or not."""
        return node in self._clients

    def refused(self, node: int) -> bool:
        """Whether a node was refused."""
        return not self._clients.get(node, True)

    def node(self, client: int, online: Sequence[int]) -> int | None:
        """The node of a client; of several that are connected, the one that registered first."""
        hosts = (node for node in self._clients if client in self._clients[node])
        return next((node for node in hosts if node in online), None)

    def present(self, online: Sequence[int]) -> set[int]:
        """Clients that can be reached."""
        nodes = set(online)
        return {id for node, ids in self._clients.items() if node in nodes for id in ids}

    def reason(self, client: int) -> str:
        """Why a client cannot be reached."""
        return self._refused.get(client, f"no connected node hosts client {client}")

    def absence(self, present: Collection[int]) -> str:
        """Who is not there: clients of refused nodes with the reasons, and those who never came."""
        missing = sorted(self.pool.keys() - present)
        refused = {id: self._refused[id] for id in missing if id in self._refused}
        parts = [
            f"without {_listed([id for id in refused if refused[id] == reason])}: {reason}"
            for reason in dict.fromkeys(refused.values())
        ]
        if gone := [id for id in missing if id not in refused]:
            parts.append(f"missing: {_listed(gone)}; start their nodes")
        return "; ".join(parts)

    def enter(self, node: int, answer: Incoming, name: str = "", nodes: int = 0) -> str:
        """Registers a node by its answer; one that did not answer will be asked again.

        Args:
            node: The node's id.
            answer: What it answered.
            name: The name under which its key is registered.
            nodes: Number of nodes with keys: `node-2` may host clients 2, 2 + nodes and so on, and
                no others. 0: not checked.

        Returns:
            Why the node is refused; empty if it is not.
        """
        who = name or f"node {node}"
        if answer.message is None:
            log.warning("%s did not register: %s", who, answer.reason)
            return ""
        try:
            info = messages.read_registered(answer.message)
        except WireError as problem:
            log.warning("%s is refused: %s", who, problem)
            self._clients[node] = frozenset()
            return str(problem)
        reason = _mismatch(info.clients, name, nodes)
        if info.agreement != self.agreement:
            reason = (
                "its method, settings, rounds, seed, model, first weights or wire differ from the "
                "server's, or only one of them uses data of the node's own (--data)"
            )
        for client, examples in info.clients.items():
            if client not in self.pool:
                reason = reason or f"the federation has no client {client}"
            elif not examples:
                reason = reason or f"client {client} has no examples to train on"
            elif examples != (wanted := self._wanted(client, examples)):
                reason = reason or f"client {client} has {examples} examples, not {wanted}"
        if reason:
            log.warning("%s is refused: %s", who, reason)
            self._refused |= dict.fromkeys(info.clients, f"{who} is refused: {reason}")
            self._clients[node] = frozenset()
            return reason
        self._clients[node] = frozenset(info.clients)
        self.sizes |= info.clients
        for client in info.clients:
            self._refused.pop(client, None)
        log.info("%s hosts clients %s", who, _listed(sorted(info.clients)))
        return ""

    def _wanted(self, client: int, reported: int) -> int:
        """How many examples a client should have, given what its node reported."""
        return self.sizes.get(client, reported) if self.open else self.pool[client].examples


def _listed(clients: Sequence[int]) -> str:
    """Clients by their numbers, the first ten of them."""
    return ", ".join(map(str, clients[:10])) + ", ..." * (len(clients) > 10)


def _mismatch(clients: Iterable[int], name: str, nodes: int) -> str:
    """Why a key may not host some clients; empty if it may, or if keys are not checked."""
    if not nodes:
        return ""
    word, _, index = name.rpartition("-")
    if word != "node" or not index.isdecimal() or int(index) >= nodes:
        return f"its key is registered as {name!r}, which is not one of {nodes} nodes"
    others = [client for client in clients if client % nodes != int(index)]
    if not others:
        return ""
    return f"its key is that of {name}, which does not host client {others[0]}; is --nodes {nodes}?"
