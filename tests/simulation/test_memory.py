"""The peak of a process's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_cli.simulation.memory import peak_device_bytes

LARGE = 200 << 20
HESSIAN_CLIENTS, HESSIAN_RECORDS, FEATURES, CLASSES = 64, 256, 64, 10


ALONE = f"""
import numpy as np
from dpfl_cli.simulation.memory import peak_bytes, reset_peak
taken = np.ones({LARGE}, np.uint8)
before = peak_bytes()
del taken
reset_peak()
after = peak_bytes()
np.ones({LARGE}, np.uint8)
print(before, after, peak_bytes())
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_the_peak_is_of_what_came_after_the_reset() -> None:
    """In a process of its own: one that has run other tests keeps freed memory for itself."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")
    }
    done = subprocess.run(
        [sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True
    )
    before, after, again = map(int, done.stdout.split())
    assert before > LARGE
    assert after < before - LARGE // 2
    assert again > after + LARGE // 2


SOLVE = f"""
import sys
import torch
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.simulation.memory import peak_bytes, reset_peak
from tests.benchmarks.record_level import softmax_federation, softmax_objective
solver, precision = sys.argv[1:]
federation = softmax_federation({HESSIAN_CLIENTS}, {HESSIAN_RECORDS}, {FEATURES}, {CLASSES})
objective = softmax_objective(federation, solver=solver, solver_precision=precision)
generator = torch.Generator().manual_seed(0)
shape = 1, {HESSIAN_CLIENTS}, objective.dimension
values, right = (client_values(torch.randn(shape, generator=generator)) for _ in range(2))
reset_peak()
before = peak_bytes()
solve = objective.damped_solve
found = opened(solve(values, right, torch.ones(1), "hessian", torch.tensor([0.1])))
growth = peak_bytes() - before
print(objective.dimension, int(found.isfinite().all()), int(found.any()), growth)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
@pytest.mark.parametrize(("solver", "precision"), [("cg", "float64"), ("cholesky", "float32")])
def test_a_hessian_solve_takes_less_than_a_gibibyte(solver: str, precision: str) -> None:
    """64 x 10 parameters and 256 records a client, whose Hessians written out would take 27 GB. In
    a process of its own.
    """
    here = Path(__file__).parents[2]
    command = [sys.executable, "-c", SOLVE, solver, precision]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)
    dimension, finite, nonzero, growth = map(int, done.stdout.split()[-4:])
    written_out = HESSIAN_CLIENTS * HESSIAN_RECORDS * dimension**2 * 4
    assert written_out > 26e9
    assert finite
    assert nonzero
    assert growth < 1 << 30


def test_without_a_gpu_in_use_there_is_no_peak_of_one() -> None:
    import torch

    if not torch.cuda.is_available():
        assert peak_device_bytes() is None
