"""The peak of a process's memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpfl_cli.simulation.memory import peak_bytes, peak_device_bytes, reset_peak

LARGE = 200 << 20


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux only")
def test_the_peak_is_of_what_came_after_the_reset() -> None:
    taken = np.ones(LARGE, np.uint8)
    before = peak_bytes()
    assert before is not None
    assert before > LARGE
    del taken
    reset_peak()
    after = peak_bytes()
    assert after is not None
    assert after < before - LARGE // 2
    np.ones(LARGE, np.uint8)
    again = peak_bytes()
    assert again is not None
    assert again > after + LARGE // 2


def test_without_a_gpu_in_use_there_is_no_peak_of_one() -> None:
    import torch

    if not torch.cuda.is_available():
        assert peak_device_bytes() is None
