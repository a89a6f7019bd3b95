"""Measuring side by side: one process, alternating, medians of several samples, each long enough to
mean something.

All that is compared takes turns within a repeat, so that what else the machine does falls on all of
it; a ratio is the median of the repeats' ratios. References that take long do a part of a round,
which is scaled and stated. Operations are counted by formula and sparingly: what is left to do once
the structure is made use of, so that no rate flatters.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

SAMPLE_SECONDS = 0.25  # a sample calls its function as often as fills this
PRODUCT_SIZE = 1536  # of the square matrices whose product is this machine's peak
COLUMNS = ("loop", "vmap", "noise", "numpy")  # references that have one
PRODUCTS = {torch.float32: "sgemm", torch.float64: "dgemm"}

Row = dict[str, Any]


@dataclass(frozen=True)
class Contender:
    """One way to compute rounds.

    Attributes:
      run: computes them; what it returns is not looked at.
      rounds: how many rounds a call does; a fraction where it does a part of the clients (or
        records) only.
    """

    run: Callable[[], object]
    rounds: float = 1.0


@dataclass(frozen=True)
class Workload:
    """What is measured: dpfl's way, and others.

    Attributes:
      references: by name; "loop" (PyTorch, client by client), "vmap" (torch.func), "noise" (drawing
        a round's noise and nothing else, as dpfl does) and "numpy" (the same numbers on the same
        threads by numpy's own generator) have columns of their own.
      flops: floating-point operations that a round needs; None where they depend on the data.
      dtype: of the arithmetic, and so of the matrix product that is the peak.
    """

    engine: Contender
    references: Mapping[str, Contender]
    flops: float | None = None
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Case:
    """A workload that is yet to be built, on a device.

    Attributes:
      key: the letter that `--only` takes.
      title: what a round is.
      counted: what rounds are, where people ask how many of them a second has.
      floor: what is asked of it: as many of these a second, or as many times as fast as the loop;
        without a loop, how many times as long as numpy's noise it may take.
      device: the workload takes the device that it is given.
    """

    key: str
    title: str
    build: Callable[[str], Workload] = field(repr=False)
    counted: str | None = None
    floor: float | None = None
    device: bool = True

    def met(self, seconds: float, ratios: Mapping[str, float]) -> bool | None:
        """Whether a round of so many seconds, with these ratios to others, keeps to the floor."""
        if self.floor is None:
            return None
        if self.counted is not None:
            return 1.0 / seconds >= self.floor
        return (
            ratios["loop"] >= self.floor if "loop" in ratios else ratios["numpy"] * self.floor >= 1
        )


def measure(case: Case, repeats: int) -> Row:
    """Builds a workload, runs it, and gives its row."""
    release_memory()
    before = start_watching_memory()
    workload = case.build("cpu")
    workload.engine.run()  # what is made once (workspaces, kernels, factors) is made here
    workload.engine.run()
    grown = None if before is None else memory("VmHWM") - before
    matrix = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE, dtype=workload.dtype)
    contenders = {
        "engine": workload.engine,
        **workload.references,
        "product": Contender(lambda: matrix @ matrix),
    }
    calls = {name: calls_for(contender) for name, contender in contenders.items()}
    samples = [
        {name: sample(contender, calls[name]) for name, contender in contenders.items()}
        for _ in range(repeats)
    ]
    ratios = {
        name: statistics.median(one[name] / one["engine"] for one in samples)
        for name in workload.references
    }
    engine = [one["engine"] for one in samples]
    product, seconds = 2.0 * PRODUCT_SIZE**3, statistics.median(engine)
    rate = "" if case.counted is None else f": {1.0 / seconds:.3g} {case.counted} a second"
    return {
        "workload": case.key,
        "title": case.title + rate,
        "seconds_per_round": seconds,
        "seconds_range": [min(engine), max(engine)],
        "floor": case.floor,
        "floor_met": case.met(seconds, ratios),
        "ratio_to_loop": ratios.get("loop"),
        "ratio_to_vmap": ratios.get("vmap"),
        "times_noise": 1.0 / ratios["noise"] if "noise" in ratios else None,
        "times_numpy_noise": 1.0 / ratios["numpy"] if "numpy" in ratios else None,
        "other_ratios": {name: ratio for name, ratio in ratios.items() if name not in COLUMNS},
        "gflops": None if workload.flops is None else workload.flops / seconds / 1e9,
        "fraction_of_peak": None
        if workload.flops is None
        else statistics.median(one["product"] / one["engine"] for one in samples)
        * workload.flops
        / product,
        "peak": PRODUCTS[workload.dtype],
        "peak_gflops": product / statistics.median(one["product"] for one in samples) / 1e9,
        "flops_per_round": workload.flops,
        "peak_memory_bytes": grown,
        "rounds_per_call": {
            name: contender.rounds for name, contender in contenders.items() if name != "product"
        },
        "gpu_seconds_per_round": gpu_seconds(case, repeats)
        if case.device and torch.cuda.is_available()
        else None,
    }


def gpu_seconds(case: Case, repeats: int) -> float:
    """Seconds of a round of dpfl's way on the GPU."""
    engine = case.build("cuda").engine
    engine.run()
    calls = calls_for(engine)
    return statistics.median(sample(engine, calls) for _ in range(repeats))


def calls_for(contender: Contender) -> int:
    """How many calls fill a sample, by one call; by a second one where the first was short, and may
    have been held up.
    """
    seconds = sample(contender, 1) * contender.rounds
    if seconds < SAMPLE_SECONDS:
        seconds = sample(contender, 1) * contender.rounds
    return max(1, math.ceil(SAMPLE_SECONDS / seconds))


def sample(contender: Contender, calls: int) -> float:
    """Seconds of a round, over so many calls."""
    wait()
    start = time.perf_counter()
    for _ in range(calls):
        contender.run()
    wait()
    return (time.perf_counter() - start) / (calls * contender.rounds)


def wait() -> None:
    """Until the GPU, if there is one, has done what it was given."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def release_memory() -> None:
    """Gives back what earlier workloads left, so that it is not reused unseen."""
    gc.collect()
    with contextlib.suppress(
        OSError, AttributeError
    ):  # another C library: growth may be understated
        ctypes.CDLL(None).malloc_trim(0)


def start_watching_memory() -> int | None:
    """Sets the high-water mark of this process's memory back and returns bytes in use; None where
    Linux's /proc is not.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return memory("VmRSS")
    except OSError:
        return None


def memory(name: str) -> int:
    """Bytes, by /proc/self/status: VmRSS (in use) or VmHWM (most since the mark was set back)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":")) * 1024


def machine() -> dict[str, Any]:
    """What the numbers depend on besides the code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(
            line.split(":")[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        processor = platform.machine()
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "load": os.getloadavg()[0],  # of the last minute: what else was done here
    }
