"""Pools of records on a device."""

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.federation import Records


class Pools:
    """Features and targets on a device, of every pool of records once: runs share the bytes."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._known: dict[Records, tuple[Tensor, Tensor]] = {}

    def of(self, records: Records) -> tuple[Tensor, Tensor]:
        """[N, ...] each: whole numbers as int64, others in the network's type; bytes of volumes
        (masks) stay bytes.
        """
        if records not in self._known:
            self._known[records] = self._tensor(records.features), self._tensor(records.targets)
        return self._known[records]

    def _tensor(self, values: np.ndarray) -> Tensor:
        whole = np.issubdtype(values.dtype, np.integer)
        dtype = torch.int64 if whole else self._dtype
        if values.dtype == np.uint8 and values.ndim > 3:
            dtype = torch.uint8
        plain = torch.from_numpy(np.require(values, requirements=["C", "W"]))
        return plain.to(self._device, dtype)
