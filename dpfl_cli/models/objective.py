"""The objective: model, loss and federation together, stacked over runs and clients.

It alone decides how a thing is computed fast; algorithms say only what is computed. Parameters are
flat: `[R, d]` global, `[R, M, d]` on clients. Whatever depends on client data comes back as
`ClientValues`. `gradient` is the definition; structured objectives override `local_descent` with an
equal but faster computation, tested against the definition.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.options import options_of
from dpfl_cli.data.federation import DatasetInfo, Federation
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.quantiles import gradient_quantiles
from dpfl_cli.privacy.bounded import Bounded, per_run
from dpfl_cli.privacy.client_values import ClientValues, client_values, opened

ByName = dict[str, Tensor]


def misfit(model: str, needs: str, info: DatasetInfo, choose: str) -> ConfigError:
    """What is said where a model and a dataset do not fit."""
    kind = f"{info.classes} classes (whole numbers and texts are; floats are for regression)"
    if info.classes is None:
        kind = "no classes (targets are floats; whole numbers, 0 and not 0.0, or texts are classes)"
    return ConfigError(
        f"model={' or '.join(options_of('model', model))}: needs {needs}, but "
        f"dataset={info.name} has records of shape "
        f"{list(info.feature_shape)} and {kind}; choose {choose} or another model"
    )


class Objective(ABC):
    """Losses f_i of M clients for a batch of R runs: f_i = mean over the client's records of their
    loss, + a regulariser h.

    What an objective may add to the first four methods, where its structure allows: per-record
    clipping (`clipped_gradient`, `squared_gradient_norms`), a non-smooth part of the problem
    (`prox`), and the second-order methods of `ClientSide`, whose contract stands there.

    Args:
      settings: the model's settings (equal for all runs of a batch).
      federations: the distinct federations of the batch, of equally many clients.
      index: [R] which of them each run uses.
      device: where tensors live.

    Attributes:
      runs, clients, dimension: R, M, d.
      records: [R, M] int64 number of records of every client.
      held: the same on the host.
      info: of the dataset.
      dtype: float64 for convex problems, float32 for networks.
      test_metrics: names of the metrics that look at test records.
      public_metrics: names of the metrics that look at no records; all others look at clients', and
        so are covered by no epsilon.
      most_records: [R] the largest number of records that a client holds; `solved_records`: over
        which a damped solve sums, as large as can be where its rounding is bounded for no number.
      solver_residual: relative residual at which `damped_solve` stops, where that is not small
        beside everything else (float32).
      provides: which of the optional methods it has, among "clipped_gradient",
        "squared_gradient_norms", "damped_solve" (with `largest_curvature`), "covariance" (both
        kinds of it, and `precondition`).
      features: p, the number of features that the model's linear layer sees, where it provides
        "covariance".
    """

    dtype: torch.dtype
    dimension: int
    features: int
    solver_residual: float = 0.0
    provides: frozenset[str] = frozenset()
    blank_anew = False
    public_metrics: frozenset[str] = frozenset()
    test_metrics = frozenset({"accuracy", "dice", "test_error", "test_loss"})

    def __init__(
        self,
        settings: Any,
        federations: list[Federation],
        index: np.ndarray,
        device: torch.device | str = "cpu",
    ) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self._hold(federations, index)

    def refuse_kept(self) -> None:  # noqa: B027 - of most there is nothing to refuse
        """Asked when a run begins and where metrics are read.

        Raises:
          PrivacyError: something of the records that it saw is kept and changes what it gives.
        """

    def _hold(self, federations: list[Federation], index: np.ndarray) -> None:
        """Takes the clients of these federations."""
        self.federations, self.index = federations, index
        self.info, self.clients = federations[0].dataset.info, federations[0].clients
        self.runs = len(index)
        self.held = np.stack([federation.partition.counts for federation in federations])[index]
        self.records = torch.as_tensor(self.held, device=self.device)
        self.most_records = self.solved_records = self.held.max(axis=1).tolist()
        self._divisors: dict[int | None, Tensor] = {}

    def among(self, federations: list[Federation], index: np.ndarray) -> Objective:
        """The same problem for some of the clients, whose federations these are: what is of the
        whole problem (a regulariser, a network) is as here.
        """
        return type(self)(self.settings, federations, index, self.device)

    def blank(self) -> Objective:
        """The same problem for clients who hold a record of zeros each."""
        federations, index = [self.federations[0].blank()], np.zeros(self.runs, np.int64)
        if self.blank_anew:
            return Objective.among(self, federations, index)
        return self.among(federations, index)

    @classmethod
    @abstractmethod
    def dimension_of(cls, settings: Any, info: DatasetInfo) -> int:
        """d for this model on this dataset, before anything is read; a ConfigError where the two do
        not fit.
        """

    @classmethod
    def workspace(cls, settings: Any, info: DatasetInfo, clients: int) -> int:
        """Bytes that a run needs at once besides its values [M, d], such as gathered minibatches or
        patches.

        With them the launcher finds how many runs fit into a batch, before anything is read.
        """
        return 0

    @classmethod
    def features_of(cls, settings: Any, info: DatasetInfo) -> int:
        """p, `features`, before anything is read."""
        raise NotImplementedError

    @abstractmethod
    def initial(self, streams: Streams) -> Tensor:
        """[R, d] initial global parameters (stream "init")."""

    @abstractmethod
    def gradient(self, parameters: Tensor, batch: Tensor | None = None) -> ClientValues:
        """[R, M, d] gradient of every client's f_i at its own parameters [R, M, d]; 0 for a client
        without records.

        Args:
          batch: [R, M, b] distinct numbers of the client's records, whose mean loss stands for that
            of all in f_i; models that provide "clipped_gradient" take one.
        """

    @abstractmethod
    def metrics(self, parameters: Tensor) -> ByName:
        """Diagnostics of global parameters [R, d]: name -> [R], on the device, never read by an
        algorithm.
        """

    def private(self, metrics: Iterable[str]) -> set[str]:
        """Those of its metrics that look at clients' records: all but `public_metrics`, and
        `test_metrics` unless test records are clients' own.
        """
        owned = any(federation.dataset.tests_owned for federation in self.federations)
        return {*metrics} - self.public_metrics - (set() if owned else self.test_metrics)

    def asked_quantiles(self, parameters: Tensor) -> ByName:
        """`gradient_quantiles` at global parameters [R, d], where the model has a setting of this
        name that asks for them.
        """
        if not getattr(self.settings, "gradient_quantiles", False):
            return {}
        everywhere = parameters.unsqueeze(1).expand(-1, self.clients, -1)
        return gradient_quantiles(self.squared_gradient_norms(everywhere), self.records)

    def divisors(self, batch: Tensor | None) -> Tensor:
        """[R, M] what sums over records are divided by: n_i, at least 1, or b for a batch [R, M,
        b]; public, and kept.
        """
        size = None if batch is None else batch.shape[-1]
        if size not in self._divisors:
            numbers = (
                self.records.clamp(min=1) if size is None else torch.full_like(self.records, size)
            )
            self._divisors[size] = numbers.to(self.dtype)
        return self._divisors[size]

    def clipped_gradient(
        self, parameters: Tensor, clip_norm: Tensor, batch: Tensor | None = None
    ) -> Bounded:
        """Mean over records of the clipped gradients of their losses, without the regulariser,
        which depends on no data.

        Args:
          parameters: [R, M, d].
          clip_norm: [R], C; the L2 bound of each record's gradient. A record whose gradient is not
            finite counts as zero.
          batch: [R, M, b] numbers of the client's records, or None for all of them.

        Returns:
          [R, M, d] (1 / m_i) sum_j CLIP(grad l_ij(v_i), C) over the m_i = b (or all n_i) records,
          as `record_bounds.record_mean`.
        """
        raise NotImplementedError

    def squared_gradient_norms(
        self, parameters: Tensor, batch: Tensor | None = None
    ) -> ClientValues:
        """[R, M, b] squared norms of the records' gradients (without the regulariser); zero where a
        client has no such record.

        Args: as for `clipped_gradient`; b is the largest number of records of a client where no
          batch is given.
        """
        raise NotImplementedError

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """Gradient of h at parameters [..., d]; public, for h depends on no data."""
        return torch.zeros_like(parameters)

    def prox(self, values: Tensor, step: Tensor) -> Tensor:
        """argmin_u g(u) + ||u - v||^2 / (2 step) for the non-smooth part g of the problem (none: v
        itself).

        Args:
          values: [R, ..., d] v; public or client values, which stay what they are.
          step: [R], positive.
        """
        return values

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: Tensor | None = None,
    ) -> ClientValues:
        """v - w after `steps` local steps v <- v - lr (grad f_i(v) + drift_i), from v = w.

        Args:
          start: [R, d] w.
          learning_rate: [R].
          steps: number of local steps.
          drift: [R, M, d] constant added to every gradient (control variates), or None.
          batches: [R, M, steps, b] record numbers, distinct within a step: step j takes the
            gradient of `batches[:, :, j]`. None: of all records.

        Returns:
          [R, M, d] raw local updates, not clipped.
        """
        begin = start.unsqueeze(1).expand(self.runs, self.clients, self.dimension)
        rate, parameters = per_run(learning_rate, begin), begin.clone()
        shift: Tensor | float = 0.0 if drift is None else opened(drift)
        for step in range(steps):
            batch = None if batches is None else batches[:, :, step]
            slope = self.gradient(parameters, batch)
            parameters = parameters - rate * (opened(slope) + shift)
        return client_values(parameters - begin)
