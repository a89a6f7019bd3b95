"""What an algorithm sees of an objective: public sizes, and what clients compute."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.curvature import Curvature
from dpfl_cli.models.guarded import Guarded, as_given
from dpfl_cli.models.objective import Objective
from dpfl_cli.privacy.bounded import Bounded, Reasons, as_computed, scaled
from dpfl_cli.privacy.client_values import (
    ClientValues,
    Unreleased,
    check_cohort,
    client_values,
    is_raw,
    of_cohort,
    own_values,
    refuse_watchers,
)
from dpfl_cli.privacy.draws import Batch, BatchLaw, Cohort, drawn_batches, excess, records_of
from dpfl_cli.privacy.record_bounds import (
    MOST_ADDED,
    MOST_MULTIPLIED,
    Constant,
    Side,
    joined_side,
    long_sums,
    number_mean,
    solved_mean,
)

BATCHES = "a batch is drawn by Round.batch, or public record numbers [runs, clients, b]"
TWICE = "a batch holds a record twice, so that it would count twice: draw it with Round.batch"
RAW_POINT = (
    "it is taken at values that depend on the client's data and on no release, which one record "
    "can have moved"
)
OWN_MODEL = "its model is a plugin's, and nobody has shown that it clips every record"
REPEATS = "a batch drawn with replacement may hold a record several times"


class ClientSide:
    """What an algorithm may ask of an objective, whose federations and metrics (both hold private
    data) it must not reach.

    What it passes is checked here for every model: the server's part must be public, a client's
    part its own. A bound per record is proved where the model is dpfl's and the points are public
    or the client's own released messages.

    Args:
      objective: the objective that does the work.
      unit: whose data are protected; numbers of records are public where these are records.
      cohort: whose round it is where clients are drawn; its objective has the rows of those who
        take part, and empty ones.

    Attributes:
      runs, clients, dimension: R, M, d.
      features: p, as `Objective.features`.
      dtype, device: of parameters.
    """

    __slots__ = ("__cohort", "__common", "__counts_public", "__objective", "__plugin", "__sizes")

    def __init__(
        self, objective: Objective, unit: str = "record", cohort: Cohort | None = None
    ) -> None:
        self.__objective: Any = Guarded(objective)
        self.__plugin = not type(objective).__module__.startswith("dpfl_cli.models.")
        self.__common: Any = None
        self.__sizes = objective.runs, objective.clients, objective.dimension
        self.__cohort = cohort
        self.__counts_public = unit == "record"

    @property
    def runs(self) -> int:
        return self.__sizes[0]

    @property
    def clients(self) -> int:
        return self.__sizes[1]

    @property
    def dimension(self) -> int:
        return self.__sizes[2]

    @property
    def features(self) -> int:
        return self.__objective.features

    @property
    def dtype(self) -> torch.dtype:
        return self.__objective.dtype

    @property
    def device(self) -> torch.device:
        return self.__objective.device

    @property
    def records(self) -> Tensor:
        """[R, M] int64 number of records n_i of every client: public where single records are
        protected, the client's own where the whole client is.
        """
        counts = self.__objective.records.clone()  # whoever asks may write into it
        return counts if self.__counts_public else self.__theirs(counts)

    def divisors(self, batch: Batch | Tensor | None) -> Tensor:
        """[R, M] what a mean over a batch, or over all records, is divided by; the clients' own as
        `records` is.
        """
        records = self._batch(batch)
        if records is not None:
            width = batch.size if isinstance(batch, Batch) else records.shape[-1]
            size = (self.runs, self.clients)
            return torch.full(size, width, dtype=self.dtype, device=self.device)
        found = self.__objective.divisors(None).clone()
        return found if self.__counts_public else self.__theirs(found)

    def batches(
        self, streams: Streams, stream: str, numbers: np.ndarray, size: int, law: BatchLaw
    ) -> list[Batch]:
        """As `draws.drawn_batches`, of the clients' records."""
        held, device = self.__objective.held, self.device
        if law == "part":
            self._refuse_counted("Round.epoch: how many batches there are")
        if self.__cohort is not None:  # rows of nobody draw records that are not there
            held = np.where(held, held, size)
        return drawn_batches(streams, stream, numbers, held, size, device, law)

    def initial(self, streams: Streams) -> Tensor:
        """As `Objective.initial`."""
        found = self._without_records().initial(streams)
        self._public("the initial model", found, (self.runs, self.dimension))
        return found

    def gradient(self, parameters: Tensor, batch: Batch | Tensor | None = None) -> ClientValues:
        """As `Objective.gradient`."""
        own, records = self._own(parameters), self._batch(batch)
        mean = self.__objective.gradient(own, records)
        return self.__theirs(mean if excess(batch) == 1 else mean * excess(batch))

    def local_descent(
        self,
        start: Tensor,
        learning_rate: Tensor,
        steps: int,
        drift: Tensor | None = None,
        batches: list[Batch] | Tensor | None = None,
    ) -> ClientValues:
        """As `Objective.local_descent`; batches one a step, or record numbers."""
        self._public("start", start, (self.runs, self.dimension))
        self._public("learning_rate", learning_rate)
        own = None if drift is None else self._own(drift, "drift")
        records = self._batch(batches, axes=4)
        if records is not None and records.shape[2] != steps:
            raise PrivacyError(f"{steps} local steps need as many batches, not {records.shape[2]}")
        descent = self.__objective.local_descent
        return self.__theirs(descent(start, learning_rate, steps, own, records))

    def clipped_gradient(
        self, parameters: Tensor, clip_norm: Tensor, batch: Batch | Tensor | None = None
    ) -> Bounded:
        """As `Objective.clipped_gradient` has it."""
        self._public("clip_norm", clip_norm)
        own, records = self._own(parameters), self._batch(batch)
        mean = self.__objective.clipped_gradient(own, clip_norm, records)
        return self._per_record(mean, batch, own)

    def squared_norms_mean(
        self,
        parameters: Tensor,
        limit: Tensor,
        batch: Batch | Tensor | None = None,
        factor: float = 1.0,
    ) -> tuple[Bounded, ClientValues]:
        """The mean over records of their squared gradient norms, each clipped to `limit` [R], and
        the norms [R, M, b] themselves; `factor` as in `record_bounds.number_mean`.
        """
        own, records = self._own(parameters), self._batch(batch)
        if records is None:
            self._refuse_counted("squared_norms_mean of all records: its width")
        norms = self.__theirs(self.__objective.squared_gradient_norms(own, records))
        mean = number_mean(norms, limit, self.__objective.divisors(records), factor)
        return self._per_record(mean, batch, own), norms

    def damped_solve(
        self,
        parameters: Tensor,
        right: Tensor,
        damping: Tensor,
        curvature: Curvature = "hessian",
        clip_norm: Tensor | None = None,
    ) -> ClientValues:
        """[R, M, d] (H_i + damping I)^-1 right_i with every client's own curvature H_i, the mean
        over its records.

        Args:
          parameters: [R, M, d] where the Hessian is taken (the covariance does not depend on it).
          right: [R, M, d].
          damping: [R], positive.
          curvature: "hessian", the Hessian of the records' losses, or "covariance", I_c (x) x x^T
            of their features.
          clip_norm: [R], bound on the Frobenius norm of each record's matrix (x x^T for the
            covariance); None for no bound.
        """
        self._public("damping", damping)
        self._public("clip_norm", clip_norm)
        own = self._own(parameters), self._own(right, "right")
        return self.__theirs(self.__objective.damped_solve(*own, damping, curvature, clip_norm))

    def newton_direction(
        self,
        parameters: Tensor,
        auxiliary: Tensor,
        clip_norm: Tensor,
        side_clip_norm: Tensor,
        curvature_clip_norm: Tensor,
        damping: Tensor,
        curvature: Curvature = "hessian",
        how: Side = "project",
        constant: Constant = "tight",
    ) -> Bounded:
        """[R, M, d] (H_i + damping I)^-1 v_i, with v_i from the mean clipped gradient g_i and b_i
        (`record_bounds.joined_side`), as `record_bounds.solved_mean`.

        Args:
          parameters: [R, M, d] where gradients and Hessians are taken.
          auxiliary: [R, M, d] b_i.
          clip_norm, side_clip_norm, curvature_clip_norm: [R] bounds C1 of a record's gradient, C2
            of v_i, D of the Frobenius norm of a record's matrix.
          damping: [R] gamma, positive.
          curvature: as for `damped_solve`.
          how, constant: as for `record_bounds.joined_side` and `record_bounds.solve_sensitivity`.
        """
        clips = clip_norm, side_clip_norm, curvature_clip_norm
        for number in (*clips, damping):
            self._public("clips and damping", number)
        own, other = self._own(parameters), self._own(auxiliary, "auxiliary")
        model = self.__objective
        gradient = model.clipped_gradient(own, clip_norm)
        side = joined_side(gradient, other, clip_norm, side_clip_norm, how)
        direction = model.damped_solve(own, side, damping, curvature, curvature_clip_norm)
        found = solved_mean(
            direction,
            *(*clips, damping, model.records, how, constant),
            model.solver_residual,
            model.solved_records,
        )
        return self._per_record(found, None, own, other)

    def largest_curvature(
        self, parameters: Tensor, curvature: Curvature = "hessian", clip_norm: Tensor | None = None
    ) -> ClientValues:
        """[R, M] the largest eigenvalue of the H_i of `damped_solve`; 0 for a client without
        records. For display.

        Args: as for `damped_solve`.
        """
        self._public("clip_norm", clip_norm)
        own = self._own(parameters)
        return self.__theirs(self.__objective.largest_curvature(own, curvature, clip_norm))

    def covariance(self) -> ClientValues:
        """[R, M, p (p + 1) / 2] (1 / n_i) sum_j x_j x_j^T of the features that the model's linear
        layer sees.

        Packed (`curvature.packed`): the upper triangle row by row, every entry once and as it is. A
        record that is not finite counts as zero; a client without records has the zero matrix. Runs
        may share its memory, so that writing into it is refused: make new tensors of it.
        """
        refuse_watchers()
        return self.__theirs(self.__objective.covariance())

    def clipped_covariance(self, clip_norm: Tensor) -> Bounded:
        """The same of features clipped to C, as `record_bounds.record_covariance`.

        Args:
          clip_norm: [R], C, the L2 bound of a record's features.
        """
        self._public("clip_norm", clip_norm)
        found = self.__objective.clipped_covariance(clip_norm)
        return self._per_record(found, None, most=MOST_MULTIPLIED)

    def precondition(self, values: Tensor, matrices: Tensor) -> Tensor:
        """(I_c (x) P) v: a symmetric matrix P over features, applied to the part of every class.

        Args:
          values: [R, d], public, or [R, M, d] client values, which stay what they are.
          matrices: [R, p, p], public.
        """
        self._public("matrices", matrices, (self.runs, self.features, self.features))
        if isinstance(values, Unreleased) or values.dim() != 2:
            own = self._own(values, "values")
            return self.__theirs(self.__objective.precondition(own, matrices))
        self._public("values", values, (self.runs, self.dimension))
        return self._without_records().precondition(values, matrices)

    def regulariser_gradient(self, parameters: Tensor) -> Tensor:
        """As `Objective.regulariser_gradient`."""
        return as_given(parameters, self._without_records().regulariser_gradient(parameters))

    def prox(self, values: Tensor, step: Tensor) -> Tensor:
        """As `Objective.prox`."""
        self._public("step", step)
        return as_given(values, self._without_records().prox(values, step))

    def _without_records(self) -> Any:
        """The model, for what it computes for everybody: a plugin's on records of zeros, so that it
        cannot depend on clients' own.
        """
        if not self.__plugin:
            return self.__objective
        if self.__common is None:
            self.__common = Guarded(self.__objective.objective.blank())
        return self.__common

    def _per_record(
        self, values: Bounded, batch: Batch | Tensor | None, *points: Tensor, most: int = MOST_ADDED
    ) -> Bounded:
        """What a model bounded per record, proved or not; in float32 over at most so many."""
        longest = self.__objective.most_records
        if batch is not None:
            longest = [batch.size if isinstance(batch, Batch) else batch.shape[-1]] * self.runs
        why: Reasons = long_sums(values.dtype, longest, most)
        if self.__plugin:
            why = OWN_MODEL
        elif any(is_raw(point) for point in points):
            why = RAW_POINT
        elif isinstance(batch, Batch) and batch.law == "repeats":
            why = REPEATS
        of_cohort(values.values, self.__cohort)
        found = as_computed(values, why, batch, self.__counts_public)
        more = excess(batch)
        return found if more == 1 else scaled(found, torch.full((self.runs,), more))

    def __theirs(self, values: Tensor) -> ClientValues:
        """What clients compute."""
        return of_cohort(client_values(values), self.__cohort)

    def _refuse_counted(self, what: str) -> None:
        if not self.__counts_public:
            raise PrivacyError(
                f"{what} tells how many records clients hold; draw batches with Round.batch"
            )

    def _batch(self, batch: Batch | list[Batch] | Tensor | None, axes: int = 3) -> Tensor | None:
        """[R, M, b] the record numbers of a batch, or [R, M, steps, b] of several: as they were
        drawn, or public ones, none of which may come twice.
        """
        if batch is None:
            return None
        records = records_of(batch) if isinstance(batch, Batch | list) else batch
        plain = isinstance(records, Tensor) and not isinstance(records, Unreleased)
        if not plain or records.dim() != axes or records.shape[:2] != (self.runs, self.clients):
            raise PrivacyError(BATCHES)
        if records is batch and bool((records.sort(dim=-1).values.diff(dim=-1) == 0).any()):
            raise PrivacyError(TWICE)
        return records

    def _own(self, values: Tensor, name: str = "parameters") -> ClientValues:
        """[R, M, d] exactly: an objective that broadcast another shape could hand one client's
        values to another.
        """
        if tuple(values.shape) != self.__sizes:
            raise PrivacyError(
                f"{name} of clients is [runs, clients, d] = {list(self.__sizes)}, not "
                f"{list(values.shape)}"
            )
        check_cohort(values, self.__cohort, name)
        return own_values(values)

    def _public(self, name: str, values: Tensor | None, shape: tuple[int, ...] = ()) -> None:
        """Refuses what is not public, or not of a shape (one number a run where none is given)."""
        refuse_watchers()
        wanted = shape or (self.runs,)
        if values is None:
            return
        if isinstance(values, Unreleased):
            raise PrivacyError(
                f"{name} goes to every client, so it must be public: a setting, or computed from "
                "releases"
            )
        if tuple(values.shape) != wanted:
            raise PrivacyError(
                f"{name} has the shape {list(values.shape)}, but needs {list(wanted)}"
            )
