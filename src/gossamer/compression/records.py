"""The records of a compressed method, around those of the method."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gossamer.core import Params
from gossamer.wire import EXACT


@dataclass(frozen=True)
class CompressedServer:
    inner: Any
    estimates: dict[int, Params] = field(default_factory=dict)  # of clients' changes, for ef21
    copy: Params | None = None  # of the model that clients hold, if requests are compressed
    version: int = 0  # of the copy
    seen: dict[int, int] = field(default_factory=dict)  # the version that a client holds
    news: tuple[Any, ...] = ()  # the last payloads, oldest first
    sizes: tuple[int, ...] = ()  # their bytes


@dataclass(frozen=True)
class CompressedLocal:
    inner: Any
    memory: Params = field(default_factory=dict)  # what was lost, or the estimate
    start: Params = field(default_factory=dict)  # factors of the last payload
    copy: Params | None = None
    version: int = 0


@dataclass(frozen=True)
class CompressedDown:
    record: Any  # the request without its numbers
    base: int  # the version of the copy that the payloads build on
    news: tuple[Any, ...]
    copy: Params | None = field(metadata=EXACT)  # for a client that holds none, or an old one


@dataclass(frozen=True)
class CompressedUp:
    record: Any  # the reply without the numbers that are compressed
    payload: Any  # none if there are none
    fresh: bool  # whether the client had no estimate


@dataclass
class CompressedWork:
    inner: Any
    down: Any
    local: CompressedLocal | None
    copy: Params | None
    version: int
