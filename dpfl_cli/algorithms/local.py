"""What client-level methods share: the bounded local update."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, clip
from dpfl_cli.privacy.client_values import ClientValues
from dpfl_cli.privacy.mechanism import ReleaseSpec


class LocalSettings(Settings):
    """Settings of a local run whose whole update is clipped."""

    later: ClassVar[frozenset[str]] = frozenset({"batch_size"})
    local_steps: int = Field(ge=1)  # tau
    local_lr: float = Field(gt=0, allow_inf_nan=False)  # eta_l
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C
    batch_size: int | None = Field(None, ge=1)  # b


class LocalHyper(Protocol):
    """The same for a batch of runs: local_lr and clip_norm are [R], an absent clip norm is infinite."""

    local_steps: int
    local_lr: Tensor
    clip_norm: Tensor
    batch_size: int | None


def local_update(
    objective: ClientSide, model: Tensor, hyper: LocalHyper, streams: Streams, rounds: np.ndarray, drift: Tensor | None = None
) -> ClientValues:
    """LOCAL(w, i): v <- w; repeat tau times v <- v - eta_l (grad f_i(v) + drift_i); return v - w.

    With a batch size b every step looks at the mean loss of b fresh records, a uniform subset of the client's.

    Args:
      model: [R, d] w.
      rounds: [R], which address the batches.
      drift: [R, M, d] or None, added to every gradient.

    Returns:
      [R, M, d] not clipped.
    """
    steps, size, batches = hyper.local_steps, hyper.batch_size, None
    if size is not None:
        before = (rounds - 1) * steps + 1
        batches = torch.stack([local_batch(objective, streams, size, before + step) for step in range(hyper.local_steps)], dim=2)
    return objective.local_descent(model, hyper.local_lr, steps, drift, batches)


def local_batch(objective: ClientSide, streams: Streams, size: int, steps: np.ndarray) -> Tensor:
    """[R, M, b] the records of every client's local step; `steps` [R] numbers the local steps of a run, from 1 in round 1."""
    return streams.subset("batch", steps, objective.clients, objective.held, size, objective.batch_device)


def bounded_local_update(
    objective: ClientSide, model: Tensor, hyper: LocalHyper, streams: Streams, rounds: np.ndarray
) -> Bounded:
    """Delta_i = CLIP(LOCAL(w, i)), the update of one client's local run (`local_update`), clipped as a whole.

    What a client holds decides the whole of Delta_i, which lies in a ball of radius C: its sensitivity to one client is 2C under
    replace_one, C otherwise.
    """
    if hyper.batch_size is None:
        return objective.bounded_descent(model, hyper.local_lr, hyper.local_steps, hyper.clip_norm)
    return clip(local_update(objective, model, hyper, streams, rounds), hyper.clip_norm)


def batches_fit(size: int | None) -> Callable[[ReleaseSpec, int, int], ReleaseSpec] | None:
    """`ReleaseSpec.settle` of a local run: refuses a batch that a client cannot fill, once the data are known."""
    return None if size is None else partial(_filled, size)


def _filled(size: int, spec: ReleaseSpec, rounds: int, records: int) -> ReleaseSpec:
    check_batch(size, records)
    return spec


def check_batch(size: int, records: int) -> None:
    """Refuses a batch of more distinct records than the client with the fewest holds."""
    if size > records:
        raise ConfigError(
            f"algorithm.batch_size={size}: a client holds only {records} records; take at most that many, or deal it more records"
        )


def per_run(numbers: Tensor, like: Tensor) -> Tensor:
    """[R] numbers, shaped and typed to multiply values [R, ...]."""
    return numbers.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))


def check_clip_norm(settings: Any, trust: str, what: str = "an update") -> None:
    """Refuses a private release of updates, or of what else is clipped, that nothing bounds."""
    if settings.clip_norm is None and trust != "none":
        raise ConfigError(
            f"algorithm.clip_norm=null under dp.trust={trust}: {what} without a bound has no sensitivity; "
            "give a positive clip norm, or write dp=none"
        )


def kept_share_gap(control: str, trust: str, whole_noise: bool, instead: str) -> str | None:
    """Why controls that clients keep of their own messages are not proved, or None."""
    if control != "sent" or trust != "secure_aggregation" or whole_noise:
        return None
    return (
        "algorithm.control=sent keeps each client's share of the noise, which no release of the sum covers; "
        f"algorithm.control={instead} is proved"
    )


def first_round(seed: int, rounds: int) -> np.ndarray:
    """When a release is made that is made once, at the start (`ReleaseSpec.occurs`)."""
    return np.arange(rounds) == 0
