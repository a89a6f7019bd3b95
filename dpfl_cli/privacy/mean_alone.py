"""Messages seen only as their mean: an epsilon beside that of local trust, for information."""

from __future__ import annotations

import math
from dataclasses import replace

from dpfl_cli.privacy.ledger import Ledger


def mean_alone(ledger: Ledger, clients: int) -> Ledger | None:
    """The ledger of messages as somebody sees it to whom a trusted party hands their mean; None
    where that is not defined.

    The mean of M messages with noise N(0, std^2) each has noise N(0, std^2 / M), and one client
    moves it by sensitivity / M: one Gaussian release of the federation, of multiplier z sqrt(M).
    Noise that changes over time is written as the one release to which its releases compose.

    It is defined for Gaussian vectors of whole clients, which send one contribution each.
    """
    entries = []
    for entry in ledger.entries:
        if (
            entry.kind != "gaussian"
            or entry.shape != "vector"
            or entry.scope != "client"
            or entry.unit != "client"
        ):
            return None
        mean = entry.composed().scaled(math.sqrt(clients))
        entries.append(replace(mean, scope="federation"))
    return Ledger(tuple(entries))
