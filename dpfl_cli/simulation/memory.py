"""The most memory that this process has had at once, on the host and on a GPU."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


def reset_peak() -> None:
    """Begins anew, where the system can: on Linux the host's peak, everywhere a GPU's."""
    with suppress(OSError):
        (_PROCESS / "clear_refs").write_text("5")  # resets VmHWM (Linux, Documentation/filesystems/proc.rst)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int | None:
    """Peak resident memory since `reset_peak` (elsewhere than on Linux: since the process began); None where nobody tells."""
    with suppress(OSError):
        found = re.search(r"^VmHWM:\s+(\d+) kB", (_PROCESS / "status").read_text(), re.MULTILINE)
        if found is not None:
            return 1024 * int(found[1])
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def peak_device_bytes() -> int | None:
    """Peak memory that torch has held on the GPU since `reset_peak`; None without one."""
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return None
    return int(torch.cuda.max_memory_allocated())
