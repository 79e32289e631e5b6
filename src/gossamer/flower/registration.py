"""The roll: which node stands for which client, and whose word does not fit the federation."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gossamer.core import Client
from gossamer.flower import messages
from gossamer.flower.messages import Letter
from gossamer.wire import WireError

log = logging.getLogger("gossamer.flower")


class Answered(Protocol):
    """What came back for a letter."""

    @property
    def letter(self) -> Letter | None: ...
    @property
    def reason(self) -> str: ...


@dataclass
class Roll:
    """Nodes that said who they are; nobody takes a client from a node that is connected."""

    pool: Mapping[int, Client]
    agreement: str
    _clients: dict[int, frozenset[int]] = field(default_factory=dict)
    """By node; nobody, if the node was refused."""
    _refused: dict[int, str] = field(default_factory=dict)
    """By client that a refused node wanted to stand for."""
    open: bool = False
    """Whether only nodes know how many examples a client has."""
    sizes: dict[int, int] = field(default_factory=dict)
    """What nodes said first."""

    @classmethod
    def of(cls, pool: Iterable[Client], agreement: str, open: bool = False) -> Roll:
        """A roll on which nobody is entered yet."""
        return cls({client.id: client for client in pool}, agreement, open=open)

    def knows(self, node: int) -> bool:
        """Whether a node has answered, be it with nonsense."""
        return node in self._clients

    def refused(self, node: int) -> bool:
        """Whether a node has answered and stands for nobody."""
        return not self._clients.get(node, True)

    def node(self, client: int, online: Sequence[int]) -> int | None:
        """The node of a client: of several that are connected the one that came first."""
        found = (node for node in self._clients if client in self._clients[node])
        return next((node for node in found if node in online), None)

    def present(self, online: Sequence[int]) -> set[int]:
        """Clients that can be reached."""
        nodes = set(online)
        return {id for node, ids in self._clients.items() if node in nodes for id in ids}

    def reason(self, client: int) -> str:
        """Why a client cannot be reached."""
        return self._refused.get(client, f"no node that is connected stands for client {client}")

    def enter(self, node: int, answer: Answered, name: str = "", nodes: int = 0) -> None:
        """Enters a node by its answer; who did not answer is asked again.

        Of `nodes` with keys, the one whose key is registered as `node-2` may stand for clients 2,
        2 + nodes and so on, and for no other.
        """
        if answer.letter is None:
            log.warning("node %d missed the roll call: %s", node, answer.reason)
            return
        try:
            found = messages.read_here(answer.letter)
        except WireError as problem:
            log.warning("node %d is refused: %s", node, problem)
            self._clients[node] = frozenset()
            return
        reason = _strange(found.clients, name, nodes)
        if found.agreement != self.agreement:
            reason = (
                "its method, settings, rounds, seed, model or wire are not the server's, "
                "or one of them has data of its own (--data) and the other does not expect it"
            )
        for client, examples in found.clients.items():
            if client not in self.pool:
                reason = reason or f"the federation has no client {client}"
            elif examples != (wanted := self._wanted(client, examples)):
                reason = reason or f"client {client} has {examples} examples, not {wanted}"
        if reason:
            log.warning("node %d is refused: %s", node, reason)
            self._refused |= dict.fromkeys(found.clients, f"node {node} is refused: {reason}")
            self._clients[node] = frozenset()
            return
        self._clients[node] = frozenset(found.clients)
        self.sizes |= found.clients
        for client in found.clients:
            self._refused.pop(client, None)
        log.info("node %d stands for clients %s", node, sorted(found.clients))

    def _wanted(self, client: int, told: int) -> int:
        """How many examples a client should have, of which a node told."""
        return self.sizes.get(client, told) if self.open else self.pool[client].examples


def _strange(clients: Iterable[int], name: str, nodes: int) -> str:
    """Why a key does not stand for clients; empty if it does, or if keys are not looked at."""
    if not nodes:
        return ""
    word, _, index = name.rpartition("-")
    if word != "node" or not index.isdecimal() or int(index) >= nodes:
        return f"its key is registered as {name!r}, which is none of {nodes} nodes"
    others = [client for client in clients if client % nodes != int(index)]
    if not others:
        return ""
    return (
        f"its key is that of {name}, which does not have client {others[0]}; are --nodes {nodes}?"
    )
