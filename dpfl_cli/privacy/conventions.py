"""How papers state their epsilon where that differs from the composition of everything released.

A convention maps the ledger of a run to the part of it that the paper prices, and says so in words.
"""

from __future__ import annotations

from dataclasses import replace

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.privacy.ledger import Ledger, LedgerEntry


def fedexp(ledger: Ledger) -> tuple[Ledger, str]:
    """Takakura et al. 2025, Table 1: one round under local DP; T - 1 of the T rounds under central
    DP.
    """
    local = all(entry.scope == "client" for entry in ledger.entries)
    counted = [
        _first(entry, 1 if local else entry.count - 1)
        for entry in ledger.entries
        if local or entry.count > 1
    ]
    return Ledger(
        tuple(counted)
    ), "one round of the local randomiser" if local else "T - 1 of the T compositions"


def _first(entry: LedgerEntry, count: int) -> LedgerEntry:
    """The first `count` releases of an entry."""
    parameter = entry.parameter[:count] if isinstance(entry.parameter, tuple) else entry.parameter
    return replace(entry, count=count, parameter=parameter)


CONVENTIONS = {"fedexp": fedexp}


def priced_part(convention: str, ledger: Ledger) -> tuple[Ledger, str]:
    """The part of a ledger that a paper's convention prices, and the convention in words."""
    if convention not in CONVENTIONS:
        raise ConfigError(
            f"dp.convention={convention}: no such convention; {nearest(convention, CONVENTIONS)}"
        )
    return CONVENTIONS[convention](ledger)
