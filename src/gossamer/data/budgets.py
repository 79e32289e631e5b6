"""Density budgets of clients, given by shares of the pool, by a file, or as numbers."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Sequence
from fractions import Fraction
from math import lcm
from pathlib import Path

import numpy as np

from gossamer.core import Key
from gossamer.data.arrays import as_asked
from gossamer.data.inputs import Floats

LISTED = 20
"""More budgets than this are described as a range."""
DIGITS = 18
"""Maximum digits of a client's number."""
SHARE = re.compile(r"(\d+\.?\d*|\.\d+)\s*(%?)", re.ASCII)


def deal_budgets(budgets: str | Sequence[float] | None, pool: int, key: Key) -> Floats:
    """One budget per client; 1 for all if none are given.

    Text is shares of the pool, `0.2:40%,0.1:60%`, or the name of a CSV file that has a budget for
    each client. A list as long as the pool is taken as it is; a shorter one is repeated to the
    length of the pool and shuffled, so that each entry goes to the same number of clients:
    (0.2, 0.2, 0.1) gives two thirds of them 0.2.
    """
    if budgets is None:
        return np.ones(pool, np.float32)
    if isinstance(budgets, str):
        return _deal_shares(budgets, pool, key) if are_shares(budgets) else _read(budgets, pool)
    given = np.asarray(budgets, np.float64)
    if not 0 < len(given) <= pool or not all(map(_affordable, given.tolist())):
        raise ValueError(
            f"budgets {given.tolist()} do not fit {pool} clients; give 1 to {pool} numbers "
            f"above 0 and up to 1"
        )
    repeated = np.resize(given, pool).astype(np.float32)
    return repeated if len(given) in (1, pool) else key.numpy().permutation(repeated)


def are_shares(text: str) -> bool:
    """Whether text means shares of the pool; otherwise it names a file."""
    head, colon, _ = text.partition(":")
    return bool(colon) and _number(head) is not None


def facts(budgets: Floats) -> dict[str, object]:
    """Clients grouped by budget, for a report; empty if all budgets are 1.

    The hash distinguishes files that give the same budgets to different clients.
    """
    if np.all(budgets == 1):
        return {}
    values, counts = np.unique(budgets, return_counts=True)
    clients: dict[str, int] = {}
    for budget, count in zip(values.tolist(), counts.tolist(), strict=True):
        name = f"{as_asked(budget):.6g}"
        clients[name] = clients.get(name, 0) + count
    if len(clients) > LISTED:
        first, *_, last = clients
        clients = {f"{first} to {last}": len(budgets)}
    digest = hashlib.blake2b(budgets.astype("<f4").tobytes(), digest_size=8).hexdigest()
    return {"budgets": clients, "budgets_hash": digest}


def _deal_shares(text: str, pool: int, key: Key) -> Floats:
    shares: dict[float, Fraction] = {}
    for entry in text.split(","):
        head, _, tail = entry.partition(":")
        budget, share = _number(head), SHARE.fullmatch(tail.strip())
        if budget is None or share is None:
            raise ValueError(
                f"{entry.strip()!r} in budgets {text!r} is not a budget with its share of the "
                f"clients; write e.g. 0.2:40% or 0.2:0.4"
            )
        if not _affordable(budget):
            raise ValueError(
                f"{entry.strip()!r} in budgets {text!r} has a budget of {head.strip()}; "
                f"use a density above 0 and up to 1"
            )
        budget = as_asked(budget)
        if budget in shares:
            raise ValueError(
                f"budgets {text!r} have {budget:g} twice; give its whole share in one entry"
            )
        shares[budget] = Fraction(share[1]) / (100 if share[2] else 1)
    total = sum(shares.values())
    if total != 1:
        raise ValueError(
            f"the shares in budgets {text!r} add up to {float(100 * total):.12g} %, not 100 %; "
            f"write e.g. 0.2:40%,0.1:60% or 0.2:0.4,0.1:0.6"
        )
    # Sorted, so that the order of the entries does not matter; ties go to the larger budget.
    ordered = sorted(shares, reverse=True)
    counts = apportion(pool, [shares[budget] for budget in ordered])
    return key.numpy().permutation(np.repeat(np.array(ordered, np.float32), counts))


def _read(name: str, pool: int) -> Floats:
    """The budgets in a CSV file, where every client has one line."""
    path = Path(name).expanduser()
    if not path.is_file():
        raise FileNotFoundError(
            f"budgets {name!r} are neither an existing CSV file nor shares of the clients; "
            f"write e.g. 0.2:40%,0.1:60%"
        )
    seen: dict[int, int] = {}
    budgets = np.empty(pool, np.float32)
    for number, cells in _lines(path):
        at = f"line {number} of {path}"
        client, budget = cells if len(cells) == 2 else ("", "")
        if not (client.isascii() and client.isdecimal() and len(client) <= DIGITS):
            raise ValueError(
                f"{at} has {','.join(cells)!r} instead of a client's number and its budget; "
                f"write e.g. 17,0.2"
            )
        id, value = int(client), _number(budget)
        if id >= pool:
            raise ValueError(
                f"{at} has client {id}, but the pool has clients 0 to {pool - 1}; "
                f"leave out the line, or use a larger `pool=`"
            )
        if value is None or not _affordable(value):
            raise ValueError(
                f"{at} gives client {id} the budget {budget!r}; use a density above 0 and up to 1"
            )
        if id in seen:
            raise ValueError(
                f"{at} has client {id} again, after line {seen[id]}; keep one of the two"
            )
        seen[id] = number
        budgets[id] = value
    if len(seen) < pool:
        first = next(id for id in range(pool) if id not in seen)
        raise ValueError(
            f"{path} has no budget for client {first}, and budgets for {len(seen)} of {pool} "
            f"clients; add a line for each of the others"
        )
    return budgets


def _lines(path: Path) -> list[tuple[int, list[str]]]:
    """The rows of a CSV file with their line numbers, without a heading and empty lines."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as damage:
        raise ValueError(
            f"{path} is not a CSV file in UTF-8 ({damage}); write lines such as 17,0.2"
        ) from None
    rows = [(number, cells) for number, cells in rows if any(cells)]
    heading = rows and [cell.lower() for cell in rows[0][1]] == ["client", "budget"]
    return rows[1:] if heading else rows


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _affordable(budget: float) -> bool:
    """Whether something is left when the budget is rounded to six decimals, and not too much."""
    return as_asked(budget) > 0 and budget <= 1


def apportion(total: int, weights: Sequence[int | Fraction]) -> list[int]:
    """Divides `total` into integers proportional to the weights, by largest remainder."""
    common = lcm(*(weight.denominator for weight in weights))
    counts = [int(weight * common) for weight in weights]
    whole = sum(counts)
    parts = [total * count // whole for count in counts]
    remainders = [total * count % whole for count in counts]
    order = sorted(range(len(parts)), key=lambda index: -remainders[index])  # ties stay in order
    for index in order[: total - sum(parts)]:
        parts[index] += 1
    return parts
