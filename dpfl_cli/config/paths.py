"""Where things are: the configs that travel with the package, and the outputs tree."""

from __future__ import annotations

import os
from pathlib import Path


def conf_dir() -> Path:
    """The folder of configs: inside the installed package, or at the top of a source tree."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


def outputs_dir() -> Path:
    """The outputs tree: `DPFL_OUTPUTS`, or `outputs` in the working directory."""
    return Path(os.environ.get("DPFL_OUTPUTS") or "outputs")
