"""Numbers from the host on a device, without waiting for the device."""

from typing import Any

import numpy as np
import torch
from torch import Tensor


def on_device(
    values: np.ndarray | Tensor, device: torch.device | str, dtype: torch.dtype | None = None
) -> Tensor:
    """Values on a device; themselves, not a copy, where they are there in this type already.

    Inside a round every number that is made on the host goes to the device through here. A plain
    `.to(device)` waits until the device has done all that was asked of it before; this does not.
    The host's memory is ordinary (pageable), which CUDA copies aside before the call returns, so
    that the caller may write over it.

    Args:
      values: an array, or a tensor in the host's memory or on the device.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor.to(device=device, dtype=dtype or tensor.dtype, non_blocking=True)


def host_numbers(values: Tensor) -> Any:
    """The numbers of a device on the host, which waits for it: for what is kept once the first
    round has found it, or is asked seldom.
    """
    return values.tolist()
