"""The compiled program of models of one linear layer, and the records as it reads them."""

from functools import cache, partial
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from dpfl_cli.data.programs import built
from dpfl_cli.data.threads import even_parts, in_threads
from dpfl_cli.models import layer_loops as loops
from dpfl_cli.models.losses import Loss
from dpfl_cli.models.records import Pool
from dpfl_cli.models.vector_code import VECTOR_BYTES
from dpfl_cli.models.vectors import aligned

BLOCK = 64  # vectors of records at most that are computed together
NEAREST, NEAR = 24 << 10, 5 << 18  # bytes of them, for one output and for several
KEPT = 512 << 20  # bytes that a model keeps as vectors; other records are laid out anew each time
SHARED_WORK = 1 << 21  # products and sums from which on several threads pay
PART_WORK = 1 << 19  # and of which a thread takes at least as many at once
NUMBERS: dict[torch.dtype, type] = {torch.float32: np.float32, torch.float64: np.float64}
NEVER = np.iinfo(np.int64).max
NO_BATCH = np.empty((1, 1, 1, 0), np.int64)
_calls = count()


class Layout(NamedTuple):
    """One federation's records as the kernel reads them: what every call begins with.

    Attributes:
      loss, scale, outs: of `losses` the number, the factor of a squared one, and the number c of
        outputs.
      vectors: [V, width, lanes] with one record to a lane and every client beginning a vector, or
        none; its width is that of rows, filled up to a multiple of the lanes. Their type is what
        is computed in. Whoever needs a client's first fills them.
      places, since: [M] int64 each client's first vector, and the call in which they were filled.
      rows, targets, norms: [N, q] features, zeros in row 0, [N] float64 y or classes, [N] float64
        ||x||, infinite for a record that is not finite.
      firsts, counts: [M] int64 row of each client's first record, and number of its records.
      block: how many vectors of records are computed together.
    """

    loss: int
    scale: float
    outs: int
    vectors: ndarray
    places: ndarray
    since: ndarray
    rows: ndarray
    targets: ndarray
    norms: ndarray
    firsts: ndarray
    counts: ndarray
    block: int


Layouts = list[tuple[ndarray, int, Layout]]  # the runs that use each, and how many records


def layouts(pool: Pool, loss: Loss, outs: int, dtype: torch.dtype) -> Layouts:
    """Of every federation of a pool the runs that use it, and its clients' records.

    Args:
      dtype: of vectors, that of rows or float64.
    """
    number = NUMBERS[dtype]
    norms = pool.squared_norms.double().sqrt()
    rows, records = pool.features.numpy(), (pool.targets.double().numpy(), norms.numpy())
    size, lanes = NEAREST if outs == 1 else NEAR, VECTOR_BYTES // dtype.itemsize
    width = -(-rows.shape[1] // lanes) * lanes
    block = max(1, min(BLOCK, size // (VECTOR_BYTES * width)) // 8) * 8
    kind, found = (loss.number, loss.scale, outs), []
    for federation, (firsts, counts) in enumerate(zip(pool.first, pool.counts, strict=True)):
        heights = -(-counts // lanes)
        total = int(heights.sum())
        if total * width * VECTOR_BYTES > KEPT // len(pool.counts):
            total = 0
        vectors = aligned(total * width * lanes, number, zeros=False).reshape(total, width, lanes)
        kept = vectors, np.cumsum(heights) - heights, np.full(len(counts), NEVER)
        layout = Layout(*kind, *kept, rows, *records, firsts, counts, block)
        found.append((pool.runs(federation), int(counts.sum()), layout))
    return found


def _arrays(*given: Any) -> list[Any]:
    """Tensors as arrays for a program, all else as it is."""
    return [one.contiguous().numpy() if isinstance(one, Tensor) else one for one in given]


class LayerKernel:
    """The compiled programs for one type of records and parameters. Building them takes seconds the
    first time on a machine, later they are read from disk.

    Args:
      dtype: of features, parameters and results.

    Raises:
      Exception: of any kind, where numba cannot compile; there is no list of what can go wrong in a
        compiler.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        number = np.dtype(NUMBERS[dtype]).name
        every, numbers, values = f"{number}[:, :, ::1]", "int64[::1]", "float64[::1]"
        layout = (  # and the number of the call, and the runs
            f"int64, float64, int64, {{}}[:, :, ::1], {numbers}, {numbers}, {number}[:, ::1], "
            f"{values}, {values}, {numbers}, {numbers}, int64, int64, {numbers}, "
        )
        compute = (
            f"{every}, int64[:, :, :, ::1], {values}, {values}, int64, {values}, {every}, {every}, "
            "int64, int64"
        )
        solve = f"{every}, {every}, {values}, {values}, float64, {every}, int64, int64"
        options: Any = {"error_model": "numpy", "fastmath": {"contract"}}
        name = "the kernel of linear layers"
        self._compute = built(loops.compute, name, 10, layout.format(number) + compute, **options)
        name += " for second-order methods"
        solve = layout.format("float64") + solve
        self._solve = cache(lambda: built(loops.solve, name, 5, solve, **options))

    def compute(
        self,
        records: Layouts,
        parameters: Tensor,
        *,
        batch: Tensor | None = None,
        limits: Tensor | None = None,
        l2: Tensor | None = None,
        steps: int = 0,
        rates: Tensor | None = None,
        drift: Tensor | None = None,
    ) -> Tensor:
        """[R, M, d] the mean gradients + l2 v (0 for a client without records); they do not depend
        on how many threads there are.

        Args:
          parameters: [R, M, d] v.
          batch: [R, M, 1 or steps, b] int64 numbers of the client's records (a number that is none
            of them counts as a record of gradient zero), or None for all of them.
          limits: [R] clip norms C: the means are of clipped gradients.
          l2: [R] weights of the regulariser.
          steps: unless 0, v - w after so many local steps v <- v - rate (gradient + drift).
          rates, drift: [R], and [R, M, d] or None.
        """
        out = torch.empty_like(parameters, memory_format=torch.contiguous_format)
        # where all clients have the same: dense, once
        own = parameters[:, :1] if parameters.stride(1) == 0 else parameters
        points, none = own.contiguous().numpy(), np.zeros(len(parameters))
        given = _arrays(
            points,
            NO_BATCH if batch is None else batch,
            none[:0] if limits is None else limits.double(),
            none if l2 is None else l2.double(),
            steps,
            none if rates is None else rates.double(),
            points[:0] if drift is None else drift,
            out,
        )
        for runs, held, layout in records:
            count = held if batch is None else batch.shape[3] * len(layout.counts)
            work = 2 * count * len(runs) * layout.outs * layout.rows.shape[1] * max(steps, 1)
            self._share(self._compute, work, layout, runs, given)
        return out

    def solve(self, records: Layouts, *given: Any) -> None:
        """Writes (H + damping I)^-1 right to out, for the Hessians of softmax regression.

        Args:
          given: parameters [R, M, d]; right [R, M, d]; [R] damping gamma and bounds of the records'
            Hessians, in float64; the tolerance of the residual, relative to the right side; and out
            [R, M, d].
        """
        for runs, _, layout in records:
            self._share(self._solve(), SHARED_WORK, layout, runs, _arrays(*given))

    @staticmethod
    def _share(program: Any, work: int, layout: Layout, runs: ndarray, given: list[Any]) -> None:
        """Does the jobs of a program, on several threads where its operations are worth it."""
        threads, jobs = torch.get_num_threads(), len(runs) * len(layout.counts)
        if threads == 1 or work < SHARED_WORK:
            program(*layout, next(_calls), runs, *given, 0, jobs)
            return
        call = partial(program, *layout, next(_calls), runs, *given)
        parts = max(threads, min(8 * threads, work // PART_WORK))  # small: threads begin late
        in_threads(call, even_parts(jobs, parts), threads)
