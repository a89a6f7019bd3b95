"""Errors that a user can act on.

Every one is a single line: what is wrong, where (config path or file), what to do. The command line
prints the line and exits with `exit_code`; `--debug` shows the traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DpflError(Exception):
    """Base of all errors meant for the user; `str(error)` is one line."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ConfigError(DpflError):
    """A config that cannot be run: unknown key, wrong type, impossible combination."""


class DataError(DpflError):
    """Data that is missing, damaged or not what it claims to be."""


class PrivacyError(DpflError):
    """Code or config that would let client data pass without a release, or cannot be priced."""


class StoreError(DpflError):
    """A run store that cannot be read or written."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint to append to a message: the nearest known name, or all of them when none is near.

    >>> nearest("fedxp", ["fedavg", "fedexp"])
    'did you mean fedexp?'
    >>> nearest("zzz", ["b", "a"])
    'choose from: a, b'
    """
    names = sorted(set(known))
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"choose from: {', '.join(names)}"
