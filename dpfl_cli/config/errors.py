"""Errors that a user can act on.

Every one is a single line: what is wrong, where (config path or file), what to do. The command line
prints the line and exits with `exit_code`; `--debug` shows the traceback.
"""

import difflib
import re
import traceback
from collections.abc import Collection, Iterable, Sequence
from types import FrameType
from typing import Any

MANY, GROUPED = 30, re.compile(r"[/.]")  # names that are too many to list, and in groups
LONG = re.compile(r"[^\s/]{299,}[^\s/:]")  # what a line cuts, such as a number of a thousand digits


def shortened(line: str) -> str:
    """The line with its endless words cut."""
    return LONG.sub(lambda word: f"{word[0][:60]}...", line)


def alternatives(errors: Sequence[Any], of_fields: bool = True) -> str:
    """What pydantic says of the first value that it refuses: of every type that it may have.

    Args:
      of_fields: places begin with a field's name, which is the first one's; else with a type.
    """
    first = errors[0]
    said = (
        one["msg"].removeprefix("Value error, ")
        for one in errors
        if one["input"] is first["input"] and (one["loc"][:1] == first["loc"][:1] or not of_fields)
    )
    return "; or ".join(dict.fromkeys(one[:1].lower() + one[1:] for one in said))


class DpflError(Exception):
    """Base of all errors meant for the user; `str(error)` is one line."""

    exit_code = 2
    raised = 0  # how many there were, caught or not

    def __init__(self, message: str) -> None:
        super().__init__(shortened(" ".join(message.split())))
        DpflError.raised += 1


class ConfigError(DpflError):
    """A config that cannot be run: unknown key, wrong type, impossible combination."""


class DataError(DpflError):
    """Data that is missing, damaged or not what it claims to be."""


class AbsentData(DataError):
    """Data that are not here."""


class AbsentGpu(AbsentData):
    """No GPU, without which it takes too long to be made among others."""


class PrivacyError(DpflError):
    """Code or config that would let client data pass without a release, or cannot be priced."""


class StoreError(DpflError):
    """A run store that cannot be read or written."""


class UnknownOption(AttributeError):
    """A method asks for an option that it has not got: it may ask whether it has."""


plugin_modules: set[str] = set()  # whose lines errors name


def place_in_plugin(error: BaseException) -> str:
    """ " (FILE:LINE)" of the line of a plugin that raised an error, or called what did; empty for
    an error that has nothing to do with one.
    """
    if isinstance(error, SyntaxError):
        return f" ({error.filename}:{error.lineno})"
    places = _places(error, plugin_modules)
    return places[-1] if places else ""


def raised_by_dpfl(error: BaseException) -> bool:
    """Whether the line that raised an error is dpfl's."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not frames or _module(frames[-1]) == "dpfl_cli"


def without_values(error: BaseException) -> str:
    """What an error of code that sees clients' data may say to others: its type and its place."""
    places = _places(error, {*plugin_modules, "dpfl_cli"})
    return type(error).__name__ + (places[-1] if places else "")


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def _places(error: BaseException, modules: Collection[str]) -> list[str]:
    """The lines of these modules that an error went through, as " (FILE:LINE)"."""
    return [
        f" ({frame.f_code.co_filename}:{line})"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if _module(frame) in modules
    ]


def known_names(what: str, given: Collection[str], known: Collection[str]) -> frozenset[str]:
    """The names that a file gives, all of which are known.

    Raises:
      ConfigError: one is not, with the nearest; or they are one text, as ("none") is.
    """
    if isinstance(given, str):
        raise ConfigError(f"{what}={given!r}: write a list of names")
    for one in given:
        if one not in known:
            raise ConfigError(f"{what}: {one}: {nearest(one, known)}")
    return frozenset(given)


def nearest(word: str, known: Iterable[str], below: str = "") -> str:
    """A hint to append to a message: the nearest known name, as a key `below` another where that is
    given, or all of them when none is near; of many those in the same group (fedexp/…,
    algorithm.…), or the groups.

    >>> nearest("fedxp", ["fedavg", "fedexp"])
    'did you mean fedexp?'
    >>> nearest("eps", ["epsilon", "delta"], below="dp")
    'did you mean dp.epsilon?'
    >>> nearest("zzz", ["b", "a"])
    'choose from: a, b'
    >>> nearest("zzz", ["rounds", "dp", *(f"dp.{number}" for number in range(40))])
    'choose from: dp, rounds'
    """
    names = sorted(set(known))
    if close := difflib.get_close_matches(word, names, n=1):
        return f"did you mean {f'{below}.' if below else ''}{close[0]}?"
    if len(names) > MANY:
        group = GROUPED.split(word)[0]
        same = [name for name in names if GROUPED.split(name)[0] == group]
        names = same or [name for name in names if not GROUPED.search(name)] or names
    return f"choose from: {', '.join(names)}"
