"""Shares against clients that collude: what is left of the noise of a sum when some of those who
added it know their parts.

The sum of M shares N(0, std^2 / M) holds noise N(0, std^2). A coalition of h clients subtracts its
own shares and contributions; what remains is the sum over the others with noise N(0, std^2 (M - h)
/ M), so every noise multiplier z becomes z sqrt((M - h) / M) (Krouka, Koskela, Kulkarni, PoPETs
2025(1), section 4). Where each share is the whole noise, the sum has multiplier z sqrt(M), of which
z sqrt(M - h) remains: no different. Messages that are priced one by one are protected by their own
noise, whoever colludes.
"""

from __future__ import annotations

import math
from typing import Any

from dpfl_cli.privacy.accountants import Accountant, price
from dpfl_cli.privacy.ledger import Ledger

WHOLE = (
    "changes nothing: every message carries the whole noise, and it is the messages that are priced"
)


def coalitions(clients: int) -> list[int]:
    """One client, a tenth and half of them: those that are fewer than all, each once.

    >>> coalitions(100), coalitions(2), coalitions(1)
    ([1, 10, 50], [1], [])
    """
    return sorted({size for size in (1, clients // 10, clients // 2) if 0 < size < clients})


def against(ledger: Ledger, clients: int, colluding: int) -> Ledger:
    """The ledger as a coalition of `colluding` of the `clients` sees it."""
    left = math.sqrt((clients - colluding) / clients)
    return Ledger(
        tuple(
            entry.scaled(left) if entry.scope == "federation" else entry for entry in ledger.entries
        )
    )


def collusion(
    ledger: Ledger, clients: int, accountant: Accountant, delta: float
) -> str | list[dict[str, Any]]:
    """Per size of a coalition: how many collude, the smallest noise multiplier of each release that
    is left, and epsilon.

    Or, in words, why it changes nothing.
    """
    if all(entry.scope == "client" for entry in ledger.entries):
        return WHOLE
    found = []
    for colluding in coalitions(clients):
        seen = against(ledger, clients, colluding)
        found.append(
            {
                "colluding": colluding,
                "noise_multiplier": {
                    entry.name: float(entry.parameters().min())
                    for entry in seen.entries
                    if entry.count
                },
                "epsilon": price(_composed(seen), accountant, delta).epsilon,
            }
        )
    return found


def _composed(ledger: Ledger) -> Ledger:
    """The same with noise that changes over time as one release each, where no accountant looks at
    rounds: releases of a group may be priced round by round and stay.
    """
    return Ledger(
        tuple(
            entry.composed() if entry.kind == "gaussian" and not entry.group else entry
            for entry in ledger.entries
        )
    )
