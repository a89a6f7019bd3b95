"""The objective: model, loss and federation together, stacked over runs and clients.

It alone decides how a thing is computed fast; algorithms say only what is computed. Parameters are flat: `[R, d]` global,
`[R, M, d]` on clients. Whatever depends on client data comes back as `ClientValues`. Plain `gradient` is the definition;
structured objectives override `local_descent` with an equal but faster computation, tested against the definition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.privacy.client_values import ClientValues, Unreleased, client_values, opened


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
      unreleased_metrics: names of the metrics that look at clients' records, and so are covered by no epsilon.
    """

    dtype: torch.dtype
    dimension: int
    unreleased_metrics: ClassVar[frozenset[str]] = frozenset()

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


class ClientSide:
    """What an algorithm may ask of an objective: public sizes, and what clients compute, as client values.

    Algorithms get this in place of the objective, whose federations and metrics (both hold private data) they must not reach.
    What they pass is checked here for every model: the server's part must be public, a client's part its own.

    Args:
      objective: the objective that does the work.

    Attributes:
      runs, clients, dimension: R, M, d.
      dtype, device: of parameters.
    """

    __slots__ = ("__objective",)

    def __init__(self, objective: Objective) -> None:
        self.__objective = objective

    @property
    def runs(self) -> int:
        return self.__objective.runs

    @property
    def clients(self) -> int:
        return self.__objective.clients

    @property
    def dimension(self) -> int:
        return self.__objective.dimension

    @property
    def dtype(self) -> torch.dtype:
        return self.__objective.dtype

    @property
    def device(self) -> torch.device:
        return self.__objective.device

    def initial(self, streams: Streams) -> Tensor:
        """As `Objective.initial`."""
        return self.__objective.initial(streams)

    def gradient(self, parameters: Tensor) -> ClientValues:
        """As `Objective.gradient`."""
        return client_values(self.__objective.gradient(self._own("parameters", parameters)))

    def local_descent(self, start: Tensor, learning_rate: Tensor, steps: int, drift: Tensor | None = None) -> ClientValues:
        """As `Objective.local_descent`."""
        self._public("start", start, (self.runs, self.dimension))
        self._public("learning_rate", learning_rate, (self.runs,))
        own = None if drift is None else self._own("drift", drift)
        return client_values(self.__objective.local_descent(start, learning_rate, steps, own))

    def _own(self, name: str, values: Tensor) -> Tensor:
        """[R, M, d] exactly: an objective that broadcast another shape could hand one client's values to another."""
        wanted = (self.runs, self.clients, self.dimension)
        if tuple(values.shape) != wanted:
            raise PrivacyError(f"{name} of clients is [runs, clients, d] = {list(wanted)}, not {list(values.shape)}")
        return client_values(values)

    def _public(self, name: str, values: Tensor, wanted: tuple[int, ...]) -> None:
        if isinstance(values, Unreleased):
            raise PrivacyError(f"{name} goes to every client, so it must be public: a setting, or computed from releases")
        if tuple(values.shape) != wanted:
            raise PrivacyError(f"{name} has the shape {list(values.shape)}, but needs {list(wanted)}")
