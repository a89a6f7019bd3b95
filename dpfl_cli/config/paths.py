"""Where things are: the configs that travel with the package, and the outputs tree."""

from __future__ import annotations

import os
from pathlib import Path

from dpfl_cli.config.errors import ConfigError

COMMAND = "DPFL_COMMAND"  # of the environment: the command line, which results keep


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
    return Path(os.environ.get("DPFL_OUTPUTS") or "outputs")
