"""dpfl: a command-line laboratory for differentially private federated learning.

`import dpfl_cli as dpfl` offers what `dpfl_cli.cli.python` holds, which is imported when it is
asked for: dpfl.run, runs, curves, ledger, model, account, calibrate, audit,
check, reproduce.
"""

import importlib
import os
from typing import Any

# A round alternates between torch's OpenMP threads and dpfl's own (noise, kernels). GNU OpenMP's
# threads spin for milliseconds after each parallel region and take the cores from the others; so
# many turns are some ten microseconds. torch reads it once.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

__version__ = "0.1.0"
_PYTHON = (
    "account",
    "audit",
    "calibrate",
    "check",
    "curves",
    "ledger",
    "model",
    "reproduce",
    "run",
    "runs",
)
__all__ = ["ConfigError", "DpflError", "Run", "__version__", *_PYTHON]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module("dpfl_cli.cli.python"), name)


def __dir__() -> list[str]:
    return __all__
