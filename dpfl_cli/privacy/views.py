"""The ledger of a run as others see it, or state it: those who are handed nothing but the mean of
messages, clients that collude, a paper that prices a part of what was released.

Clients that collude: the sum of M shares N(0, std^2 / M) holds noise N(0, std^2). A coalition of h
clients subtracts its own shares and contributions; what remains is the sum over the others with
noise N(0, std^2 (M - h) / M), so every noise multiplier z becomes z sqrt((M - h) / M) (Krouka,
Koskela, Kulkarni, PoPETs 2025(1), section 4). Where each share is the whole noise, the sum has
multiplier z sqrt(M), of which z sqrt(M - h) remains: no different. Messages that are priced one by
one are protected by their own noise, whoever colludes.
"""

import math
from dataclasses import replace
from typing import Any

from dpfl_cli.privacy.accountants import Accountant, price
from dpfl_cli.privacy.ledger import Ledger

WHOLE = (
    "changes nothing: every message carries the whole noise, and it is the messages that are priced"
)


def mean_alone(ledger: Ledger, clients: int) -> Ledger | None:
    """The ledger of messages as somebody sees it to whom a trusted party hands their mean; None
    where that is not defined, or nothing was released.

    The mean of M messages with noise N(0, std^2) each has noise N(0, std^2 / M), and one client
    moves it by sensitivity / M: one Gaussian release of the federation, of multiplier z sqrt(M).
    That is all where the method makes nothing else of the messages: a server step from the norms of
    single ones (DP-FedEXP's) shows in the next means, and is not priced here.
    It is defined for Gaussian vectors of whole clients, which send one contribution each.
    """
    entries = []
    for entry in ledger.entries:
        sent = entry.kind, entry.shape, entry.scope, entry.unit
        if sent != ("gaussian", "vector", "client", "client"):
            return None
        entries.append(replace(entry.scaled(math.sqrt(clients)), scope="federation"))
    return Ledger(tuple(entries)) if entries else None


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
                "epsilon": price(seen, accountant, delta).epsilon,
            }
        )
    return found


def fedexp(ledger: Ledger) -> tuple[Ledger, str]:
    """Takakura et al. 2025, Table 1: one round under local DP; T - 1 of the T rounds under central
    DP.
    """
    local = all(entry.scope == "client" for entry in ledger.entries)
    counted = [
        entry.of_releases(entry.parameters()[: 1 if local else -1])
        for entry in ledger.entries
        if local or entry.count > 1
    ]
    words = "one round of the local randomiser" if local else "T - 1 of the T compositions"
    return Ledger(tuple(counted)), words


# The part of a ledger that a paper prices, and that in words; by the name of the paper's method,
# whose runs show it unasked: dp.convention asks for it of others.
CONVENTIONS = {"fedexp": fedexp}
