"""Where things are: the configs that travel with the package, and the outputs tree."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from dpfl_cli.config.errors import ConfigError

COMMAND = "DPFL_COMMAND"  # of the environment: the command line, which results keep
_owned = False


def note_command(words: Sequence[str]) -> None:
    """Keeps a command line, for the results that it leads to.

    Raises:
      ConfigError: a word that no file can hold as text: a null character, bytes outside UTF-8.
    """
    for word in words:
        if re.search("[\0\ud800-\udfff]", word):
            raise ConfigError(f"{word!r}: not text; write it in UTF-8")
    os.environ[COMMAND] = shlex.join(["dpfl", *words])


def own_process() -> None:
    """Notes that this process is a command's: nobody's session, which goes on after it."""
    global _owned
    _owned = True


def is_own_process() -> bool:
    return _owned


def conf_dir() -> Path:
    """The folder of configs: inside the installed package, or at the top of a source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def expanded(text: str) -> Path:
    """A path whose `~` or `~user` is a home.

    Raises:
      ConfigError: there is no such user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{text}: no such home; write the whole path") from error


def outputs_dir() -> Path:
    """The outputs tree: `DPFL_OUTPUTS`, or `outputs` in the working directory."""
    found = expanded(os.environ.get("DPFL_OUTPUTS") or "outputs")
    if found.exists() and not found.is_dir():
        raise ConfigError(
            f"{found}: cannot be written, for it is a file; set DPFL_OUTPUTS to a folder"
        )
    return found
