"""Canaries: the worst case of one client or record, put where contributions meet their noise, and
the score of an adversary who sees what the receiver sees.

A canary takes the place of one contribution after it was clipped and charged: on one side +b e_1,
on the other -b e_1 (replace_one) or nothing (zero_out, add_or_remove), where b is the radius of the
ball that clipping leaves (client level; the relation's factor is the mechanism's to know) or what
one record can move its client's contribution by (record level). All else runs as it always does, so
that noise, its calibration, the relation and the accountant are tried together; what clipping and
models do to real records is not.

The adversary knows all other data, so that it subtracts their part of each release, and gives the
rest the log likelihood ratio of the sides. Where clients or records are drawn, amplification holds
against those who do not see who was: then the other contributions are zero, the worst data too, and
the ratio is of the mixture over whether the canary was drawn.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.privacy.bounded import Bounded, claimed
from dpfl_cli.privacy.draws import Batch, members_of, records_of
from dpfl_cli.privacy.mechanism import Call
from dpfl_cli.privacy.releases import Release


class Canaries:
    """One canary in each of R runs, in all that their mechanism releases from here on.

    Args:
      mechanism: a `Mechanism` that has released nothing yet.
      sides: [R] booleans.

    Attributes:
      scores: [R] float64 log likelihood ratios of all releases so far, or sums of inner products
        where the noise is not Gaussian.
      gaussian: whether the scores are Gaussian on both sides: all noise was, and nothing was drawn.
    """

    def __init__(self, mechanism: Any, sides: np.ndarray) -> None:
        self._site, self._release = mechanism._site, mechanism._released
        mechanism._released = self._released
        self.sides = torch.from_numpy(sides)
        self.scores = torch.zeros(len(sides), dtype=torch.float64)
        self.gaussian = True
        self._client: int | None = None  # the canary's, or whose record it is

    def _released(self, call: Call) -> Release:
        """The release of contributions with the canaries among them."""
        values, spec, setup = call.values, call.spec, self._site.setup
        row, there = self._places(call)
        drawn = values.cohort is not None or values.batch is not None
        inside = values.checked().clone()
        if drawn:
            inside.zero_()
        first = inside[..., 0] if values.is_vector else inside  # [R, M], shared with `inside`
        runs = torch.arange(len(row))
        if values.unit == "client":
            inside[runs, row] = 0.0
        others = first.double().clone()
        low, high = self._amounts(values, row, setup.relation)
        planted = torch.where(there, torch.where(self.sides, high, low), 0.0)
        first[runs, row] += planted.to(first.dtype)
        found = self._release(call._replace(values=claimed(values, inside)))

        numbers = found.received[..., 0] if values.is_vector else found.received
        if numbers.dim() == 2:
            seen, known, share = numbers[runs, row], others[runs, row], 1.0
        else:
            share = 1 / setup.cohort
            seen, known = numbers, others.sum(dim=1) * share
        rest = seen.double() - known
        rate = 1.0
        if values.cohort is not None:
            rate = values.cohort.sampling.rate
        elif isinstance(values.batch, Batch):
            rate = values.batch.size / setup.fewest()
        self.gaussian &= not drawn and found.noise_std is not None
        score = rest
        if found.noise_std is not None:
            # ln((1 - q) + q phi(x - a) / phi(x)) of either side, where the canary puts a into
            # what is left with probability q
            variance = _of_row(found.noise_std, row).square()
            above, below = (
                (amount * rest - amount.square() / 2) / variance
                for amount in (high * share, low * share)
            )
            if rate < 1:
                away = torch.log1p(torch.tensor(-rate, dtype=torch.float64))
                above, below = (torch.logaddexp(away, one + np.log(rate)) for one in (above, below))
            score = above - below
        log = self._site.ledger.logs[spec.name]
        charged = torch.from_numpy(log.latest == call.address // spec.per_round)
        self.scores += torch.where(charged, score, 0.0)
        return found

    def _places(self, call: Call) -> tuple[Tensor, Tensor]:
        """[R] the row of the canary's client, and whether the canary takes part."""
        values, runs = call.values, call.values.shape[0]
        if self._client is None:
            sizes = call.sensitivity  # the client whose unit moves most; the same in all runs
            plain = sizes.dim() == 1 or values.cohort is not None
            self._client = 0 if plain else int(sizes[0].argmax())
        row = torch.full((runs,), self._client)
        there = torch.ones(runs, dtype=torch.bool)
        if values.cohort is not None:
            mine = torch.from_numpy(members_of(values.cohort) == self._client)
            row, there = mine.int().argmax(dim=1), mine.any(dim=1)
        if isinstance(values.batch, Batch):  # its record is the client's first
            there = (records_of(values.batch)[:, self._client] == 0).any(dim=1)
        return row, there

    def _amounts(self, values: Bounded, row: Tensor, relation: str) -> tuple[Tensor, Tensor]:
        """[R] each, what the canary puts into its coordinate on either side."""
        radius = _of_row(values.zero_out, row)
        if relation != "replace_one":
            return torch.zeros_like(radius), radius
        if values.unit == "record":
            half = _of_row(values.replace_one, row) / 2
            return -half, half
        if values.is_vector:
            return -radius, radius
        if values.quantity:  # squared norms of +-b e_1, which are the same
            return radius, radius
        return torch.zeros_like(radius), radius


def _of_row(numbers: Tensor, row: Tensor) -> Tensor:
    """[R] float64 of numbers [R], or [R, M] where clients differ."""
    found = numbers if numbers.dim() == 1 else numbers[torch.arange(len(row)), row]
    return found.double()
