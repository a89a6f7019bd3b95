"""Memory of this process: keeping what was freed, and the most that it has had at once."""

import ctypes
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory: a round takes the same large arrays again, and fresh pages
    cost more than arithmetic.
    """
    with suppress(OSError, AttributeError):  # another C library: slower, not wrong
        libc = ctypes.CDLL(None)
        libc.mallopt(-4, 0)  # M_MMAP_MAX: no array lives in a mapping of its own
        libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: the heap is not given back between rounds


def reset_peak() -> None:
    """Begins anew, where the system can: on Linux the host's peak, everywhere a GPU's."""
    with suppress(OSError):
        # resets VmHWM (Linux, Documentation/filesystems/proc.rst)
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """Peak resident memory since `reset_peak`; elsewhere than on Linux, since the start."""
    with suppress(OSError):
        status = Path("/proc/self/status").read_text()
        found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_device_bytes() -> int | None:
    """Peak memory that torch has held on the GPU since `reset_peak`; None without one."""
    return int(torch.cuda.max_memory_allocated()) if torch.cuda.is_initialized() else None
