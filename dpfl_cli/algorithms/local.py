"""What client-level methods share: the bounded local update."""

from typing import Any

import numpy as np
from torch import Tensor

from dpfl_cli.algorithms.base import Bound, Positive, Round
from dpfl_cli.config.component import BatchSize, Count, Settings
from dpfl_cli.privacy.bounded import Bounded, clip
from dpfl_cli.privacy.client_values import ClientValues
from dpfl_cli.privacy.releases import Setup

CLIPPED = "clipped to C: sensitivity 2C (replace_one), C (zero_out, add_or_remove)"


class BatchSettings(Settings):
    """Settings of a method whose gradients may look at a batch of records in place of all."""

    batch_size: BatchSize = None  # b


class LocalSettings(BatchSettings):
    """Settings of local steps and of what is clipped in them."""

    local_steps: Count  # tau
    local_lr: Positive  # eta_l
    clip_norm: Bound  # C


def local_update(
    at: Round, model: Tensor, hyper: LocalSettings, drift: Tensor | None = None
) -> ClientValues:
    """LOCAL(w, i): v <- w; repeat tau times v <- v - eta_l (grad f_i(v) + drift_i); return v - w.

    With a batch size b every step looks at the mean loss of b fresh records, a uniform subset of
    the client's.

    Args:
      model: [R, d] w.
      drift: [R, M, d] or None, added to every gradient.

    Returns:
      [R, M, d] not clipped.
    """
    steps, size, batches = hyper.local_steps, hyper.batch_size, None
    if size is not None:
        first = (at.number - 1) * steps + 1
        batches = [at.batch(size, first + step) for step in range(hyper.local_steps)]
    return at.objective.local_descent(model, hyper.local_lr, steps, drift, batches)


def bounded_local_update(at: Round, model: Tensor, hyper: LocalSettings) -> Bounded:
    """Delta_i = CLIP(LOCAL(w, i)), the update of one client's local run, clipped as a whole.

    What a client holds decides the whole of Delta_i, which lies in a ball of radius C: its
    sensitivity to one client is 2C under replace_one, C otherwise.
    """
    return clip(local_update(at, model, hyper), hyper.clip_norm)


def kept_share_gaps(instead: str, settings: Any, trust: str, whole_noise: bool) -> list[str]:
    """`gaps` of a method with a `control`: why those that clients keep of their own messages are
    not proved, and `instead` is.
    """
    if settings.control != "sent" or trust != "secure_aggregation" or whole_noise:
        return []
    return [
        "algorithm.control=sent keeps each client's share of the noise, which no release of the "
        f"sum covers; algorithm.control={instead} is proved"
    ]


def first_round(run: Setup) -> np.ndarray:
    """[T] when a release is made that is made once, at the start (`ReleaseSpec.made`)."""
    return np.arange(run.rounds) == 0
