"""Errors that a user can act on.

Every one is a single line: what is wrong, where (config path or file), what to do. The command line
prints the line and exits with `exit_code`; `--debug` shows the traceback.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable

LONG = re.compile(r"[^\s:/]{300,}")  # what a line cuts, such as a number of a thousand digits


class DpflError(Exception):
    """Base of all errors meant for the user; `str(error)` is one line."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        line = " ".join(message.split())
        super().__init__(LONG.sub(lambda word: f"{word[0][:60]}...", line))


class ConfigError(DpflError):
    """A config that cannot be run: unknown key, wrong type, impossible combination."""


class DataError(DpflError):
    """Data that is missing, damaged or not what it claims to be."""


class PrivacyError(DpflError):
    """Code or config that would let client data pass without a release, or cannot be priced."""


class StoreError(DpflError):
    """A run store that cannot be read or written."""


plugin_modules: set[str] = set()  # whose lines errors name


def place_in_plugin(error: BaseException) -> str:
    """ " (FILE:LINE)" of the line of a plugin that raised an error, or called what did; empty for
    an error that has nothing to do with one.
    """
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    places = [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] in plugin_modules
    ]
    return places[-1] if places else ""


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
