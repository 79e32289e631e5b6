"""A client that lost what it kept asks for it, gets it, and both are in the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gossamer import Ctx, Job, Options, run
from gossamer.conformance.toys import Tiny, plain_task
from gossamer.engine import ClientError
from gossamer.engine.events import read
from gossamer.methods.flash import Down, Flash
from gossamer.methods.parts.held_versions import Local
from gossamer.methods.parts.masked_training import Work
from gossamer.optim import Training
from gossamer.wire import HEADER

LOST = 3
"""The round before which every client loses what it kept."""


@dataclass(frozen=True)
class Forgetful(Flash):
    def begin(self, ctx: Ctx, down: Down, local: Local | None) -> Job[Work]:
        return super().begin(ctx, down, None if ctx.round == LOST else local)


@dataclass(frozen=True)
class Stubborn(Forgetful):
    resend = None


SETTINGS = {
    "clients": 12,
    "training": Training(batch=8, lr=0.05),
    "density": 0.5,
    "allocation": "erk",
}


def trained(method: Flash, out: Path) -> tuple[str, list[dict[str, Any]]]:
    """The hash of the outcome, and what clients have to tell; everybody takes part every time."""
    summary = run(method, plain_task(), Tiny(), rounds=4, out=out, options=Options(workers=2))
    done = [event for event in read(out / "events.jsonl") if event["event"] == "client-finished"]
    return summary.state_hash, done


def test_who_lost_a_mask_ends_with_the_same_bits_and_pays_for_it(tmp_path: Path) -> None:
    wanted, plain = trained(Flash(**SETTINGS), tmp_path / "plain")
    found, forgot = trained(Forgetful(**SETTINGS), tmp_path / "forgot")
    assert found == wanted
    for before, event in zip(plain, forgot, strict=True):
        down = [row for row in event["traffic"] if row["direction"] == "down"]
        asked = [row for row in event["traffic"] if row["message"] == "Missing"]
        if event["round"] != LOST:
            assert not asked and event["traffic"] == before["traffic"]
            continue
        assert [(row["direction"], row["sent"]) for row in asked] == [("up", 8 * HEADER)]
        assert event["up"] == before["up"] + 8 * HEADER
        assert sum(row["leaf"] == "header" for row in down) == 2
        assert event["down"] > 2 * before["down"]  # the mask besides
        assert event["paper_down"] == before["paper_down"]


def test_a_method_that_cannot_send_again_fails_the_client(tmp_path: Path) -> None:
    with pytest.raises(ClientError, match=r"begin of round 3: Missing: the server sent no mask"):
        trained(Stubborn(**SETTINGS), tmp_path)
