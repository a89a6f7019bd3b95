"""The objective: model, loss and federation together, stacked over runs and clients.

It alone decides how a thing is computed fast; algorithms say only what is computed. Parameters are flat: `[R, d]` global,
`[R, M, d]` on clients. Whatever depends on client data comes back as `ClientValues`. Plain `gradient` is the definition;
structured objectives override `local_descent` with an equal but faster computation, tested against the definition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened


class Objective(ABC):
    """Losses f_i of M clients for a batch of R runs.

    Args:
      settings: the model's settings (equal for all runs of a batch).
      federations: the distinct federations of the batch.
      index: [R] which of them each run uses.
      device: where tensors live.

    Attributes:
      runs, clients, dimension: R, M, d.
      dtype: float64 for convex problems, float32 for networks.
      accuracy_higher: whether the first metric is better when higher.
    """

    dtype: torch.dtype
    dimension: int

    def __init__(
        self, settings: Any, federations: list[Federation], index: np.ndarray, device: torch.device | str = "cpu"
    ) -> None:
        self.settings = settings
        self.federations = federations
        self.index = index
        self.device = torch.device(device)
        self.runs = len(index)
        self.clients = federations[0].clients
        if any(federation.clients != self.clients for federation in federations):
            raise ValueError("runs of a batch need the same number of clients")

    @classmethod
    @abstractmethod
    def dimension_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d for this model on this dataset, before anything is read; a ConfigError where the two do not fit."""

    @abstractmethod
    def initial(self, streams: Streams) -> Tensor:
        """[R, d] initial global parameters (stream "init")."""

    @abstractmethod
    def gradient(self, parameters: Tensor) -> ClientValues:
        """[R, M, d] full-batch gradient of every client's mean loss f_i at its own parameters [R, M, d].

        A client without records has gradient 0.
        """

    @abstractmethod
    def metrics(self, parameters: Tensor) -> dict[str, Tensor]:
        """Diagnostics of global parameters [R, d]: name -> [R], on the device, never read by an algorithm."""

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        """v - w after `steps` local steps v <- v - lr (grad f_i(v) + drift_i), from v = w.

        Args:
          start: [R, d] w.
          learning_rate: [R].
          steps: number of local steps.
          drift: [R, M, d] constant added to every gradient (control variates), or None.

        Returns:
          [R, M, d] raw local updates, not clipped.
        """
        begin = start.unsqueeze(1).expand(self.runs, self.clients, self.dimension)
        rate = learning_rate.to(start.dtype).reshape(-1, 1, 1)
        parameters = begin.clone()
        shift = torch.zeros((), dtype=start.dtype, device=start.device) if drift is None else opened(drift)
        for _ in range(steps):
            parameters = parameters - rate * (opened(self.gradient(parameters)) + shift)
        return client_values(parameters - begin)
