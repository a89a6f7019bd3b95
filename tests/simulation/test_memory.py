"""The peak of a process's memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dpfl_cli.simulation.memory import peak_device_bytes

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
print(before, after, peak_bytes())
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_the_peak_is_of_what_came_after_the_reset() -> None:
    """In a process of its own: one that has run other tests keeps freed memory for itself."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    done = subprocess.run([sys.executable, "-c", ALONE], env=environment, capture_output=True, text=True, check=True)
    before, after, again = map(int, done.stdout.split())
    assert before > LARGE
    assert after < before - LARGE // 2
    assert again > after + LARGE // 2


def test_without_a_gpu_in_use_there_is_no_peak_of_one() -> None:
    import torch

    if not torch.cuda.is_available():
        assert peak_device_bytes() is None
