"""Numbers from the host on a device, without waiting for the device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

STAGED = 1 << 16  # bytes of ordinary memory that CUDA copies aside at once; of more, piece by piece, it may wait for the device


def on_device(values: np.ndarray | Tensor, device: torch.device | str, dtype: torch.dtype | None = None) -> Tensor:
    """Values on a device; themselves, not a copy, where they are there in this type already.

    Inside a round every number that is made on the host goes to the device through here. A plain `.to(device)` waits until the
    device has done all that was asked of it before; this does not. The host's memory is ordinary (pageable), which CUDA copies
    aside before the call returns, so that the caller may write over it.

    Args:
      values: an array, or a tensor in the host's memory or on the device.
    """
    tensor = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
    return tensor.to(device=device, dtype=dtype or tensor.dtype, non_blocking=True)


def refill(place: Tensor, values: Tensor) -> None:
    """Writes values over a tensor, neither of which need be on the device of the other; from the host without waiting.

    More than `STAGED` bytes of the host go through pinned memory that is new every time: torch's allocator, which gets it back
    when this returns, gives it to nobody before the copy is done (`copy_` tells it of the stream, where it looks for an event).
    So the values may be written over at once, and what is in flight is not.
    """
    values = values.to(place.dtype)  # on its way it would go through ordinary memory again
    if place.is_cuda and not values.is_cuda and values.nbytes > STAGED:
        values = values.pin_memory()
    place.copy_(values, non_blocking=not values.is_cuda)


def read_once(value: Tensor) -> float:
    """A number of a device, which this waits for: for what is kept once the first round has found it."""
    return float(value)
