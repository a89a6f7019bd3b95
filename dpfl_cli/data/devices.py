"""The device of a run; numbers from the host on it, without waiting for it; and its free memory."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Device = torch.device | str


def on_device(
    values: np.ndarray | Tensor, device: Device, dtype: torch.dtype | None = None
) -> Tensor:
    """Values on a device; themselves, not a copy, where they are there in this type already.

    Inside a round every number that is made on the host goes to the device through here. A plain
    `.to(device)` waits until the device has done all that was asked of it before; this does not.
    The host's memory is ordinary (pageable), which CUDA copies aside before the call returns, so
    that the caller may write over it.

    Args:
      values: an array, or a tensor in the host's memory or on the device.
    """
    if isinstance(values, np.ndarray):  # torch takes no array that is read only, but by a copy
        tensor = torch.from_numpy(values if values.flags.writeable else values.copy())
    else:
        tensor = values
    dtype = dtype or tensor.dtype
    if tensor.device == device and tensor.dtype == dtype:  # what `to` takes longer to find
        return tensor
    return tensor.to(device=device, dtype=dtype, non_blocking=True)


def host_numbers(values: Tensor) -> Any:
    """The numbers of a device on the host, which waits for it: for what is kept once the first
    round has found it, or is asked seldom.
    """
    return values.tolist()


def free_memory(device: Device) -> int:
    """Bytes that a device, or for a CPU this machine, could still give, what holds copies of files
    counted in where Linux says how much that is.
    """
    if torch.device(device).type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept  # which torch gives to who asks next
    memory = Path("/proc/meminfo")
    if memory.exists() and (found := re.search(r"MemAvailable: +(\d+) kB", memory.read_text())):
        return min([1024 * int(found[1]), *_left_to_groups()])
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")  # macOS knows all of its memory only


def _left_to_groups() -> Iterator[int]:
    """Bytes that the control groups of this process (of a container, a batch system) still have,
    what holds copies of files counted in; none where nothing is limited.
    """
    root = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        own = root / Path("/proc/self/cgroup").read_text().partition("0::/")[2].strip()
        for group in (own, *own.parents):
            limit = group / "memory.max"
            if group.is_relative_to(root) and limit.exists():
                most, now = limit.read_text().strip(), (group / "memory.current").read_text()
                kinds = (group / "memory.stat").read_text()
                files = re.search(r"^inactive_file (\d+)", kinds, re.MULTILINE)
                if most != "max" and files:
                    yield max(int(most) - int(now) + int(files[1]), 0)


def pick_device(name: str) -> torch.device:
    """auto: the GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def noise_device(name: str, device: torch.device) -> torch.device | None:
    """Where noise is drawn that a run needs on its device: there, or on the host (None). auto: by a
    GPU itself.

    Never by torch's generator of a CPU, which keeps 32 bits of what it is seeded with: addresses
    would share their noise.
    """
    asked = name == "device" or (name == "auto" and device.type == "cuda")
    return device if asked and device.type != "cpu" else None
