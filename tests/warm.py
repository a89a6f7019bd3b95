"""What takes a process seconds to import; see `tests.apart`."""

import matplotlib.figure  # noqa: F401
import numba  # noqa: F401
import pandas  # noqa: F401
import scipy.stats  # noqa: F401

from dpfl_cli.cli.main import main  # noqa: F401
from dpfl_cli.privacy import auditing  # noqa: F401
from dpfl_cli.simulation import conformance, execute  # noqa: F401
from dpfl_cli.simulation.plan import load_components

load_components()
