"""The peak of a process's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpfl_cli.simulation.memory import peak_device_bytes
from tests.apart import perform

LARGE = 200 << 20


ALONE = f"""
import numpy as np
from dpfl_cli.simulation.memory import peak_bytes, reset_peak
taken = np.ones({LARGE}, np.uint8)
before = peak_bytes()
del taken
reset_peak()
after = peak_bytes()
np.ones({LARGE}, np.uint8)
assert before > {LARGE}
assert after < before - {LARGE} // 2
assert peak_bytes() > after + {LARGE} // 2
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_the_peak_is_of_what_came_after_the_reset(tmp_path: Path) -> None:
    """In a process of its own: one that has run other tests keeps freed memory for itself."""
    perform(ALONE, tmp_path)


SOLVE = """
import torch
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.simulation.memory import peak_bytes, reset_peak
from tests.benchmarks.record_level import softmax_federation, softmax_objective
clients, records = 64, 256
federation = softmax_federation(clients, records, 64, 10)
objective = softmax_objective(federation, {SOLVER})
generator = torch.Generator().manual_seed(0)
shape = 1, clients, objective.dimension
values, right = (client_values(torch.randn(shape, generator=generator)) for _ in range(2))
reset_peak()
before = peak_bytes()
solve = objective.damped_solve
found = opened(solve(values, right, torch.ones(1), "hessian", torch.tensor([0.1])))
growth = peak_bytes() - before
assert clients * records * objective.dimension**2 * 4 > 26e9
assert found.isfinite().all()
assert found.any()
assert growth < 1 << 30, growth
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
@pytest.mark.parametrize(("solver", "precision"), [("cg", "float64"), ("cholesky", "float32")])
def test_a_hessian_solve_takes_less_than_a_gibibyte(
    solver: str, precision: str, tmp_path: Path
) -> None:
    """64 x 10 parameters and 256 records a client, whose Hessians written out would take 27 GB. In
    a process of its own.
    """
    chosen = f"solver={solver!r}, solver_precision={precision!r}"
    perform(SOLVE.replace("{SOLVER}", chosen), tmp_path)


def test_without_a_gpu_in_use_there_is_no_peak_of_one() -> None:
    import torch

    if not torch.cuda.is_available():
        assert peak_device_bytes() is None
