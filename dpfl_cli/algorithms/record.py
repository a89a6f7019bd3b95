"""What record-level methods share: noisy local steps, each a release of a clipped gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from dpfl_cli.algorithms.local import check_batch, check_clip_norm, per_run
from dpfl_cli.config.component import Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.objective import ClientSide
from dpfl_cli.privacy.bounded import Bounded, mean_clipped
from dpfl_cli.privacy.mechanism import Mechanism, ReleaseSpec

GRADIENT = "mean of the records' gradients clipped to C: sensitivity 2C / m (replace_one), C / m (zero_out, add_or_remove)"


class RecordSettings(Settings):
    """Settings of local steps on clipped record gradients."""

    later: ClassVar[frozenset[str]] = frozenset({"batch_size", "sampling", "clipping"})
    local_steps: int = Field(ge=1)  # K
    local_lr: float = Field(gt=0, allow_inf_nan=False)  # eta_l
    clip_norm: float | None = Field(gt=0, allow_inf_nan=False)  # C
    batch_size: int | None = Field(None, ge=1)  # b
    sampling: Literal["without_replacement", "epoch_permutation", "with_replacement"] = "without_replacement"
    clipping: Literal["record", "batch_mean"] = "record"


class RecordHyper(Protocol):
    """The same for a batch of runs: local_lr and clip_norm are [R], an absent clip norm is infinite."""

    local_steps: int
    local_lr: Tensor
    clip_norm: Tensor
    batch_size: int | None
    sampling: str
    clipping: str


def gradient_release(settings: RecordSettings, trust: str) -> ReleaseSpec:
    """The releases of K noisy local steps, or a ConfigError where they make no sense."""
    check_clip_norm(settings, trust, "a gradient")
    if trust == "central" and settings.local_steps > 1:
        raise ConfigError(
            f"algorithm.local_steps={settings.local_steps} under dp.trust=central: nobody adds noise to a client's own steps, "
            "so the bound of a step does not hold for the next one; write algorithm.local_steps=1, or dp=record"
        )
    steps = settings.local_steps
    spec = ReleaseSpec("gradient", per_round=steps, one_message=True, sums_suffice=steps == 1, echo=True, note=GRADIENT)
    return spec if settings.batch_size is None else replace(spec, settle=partial(_settled, settings))


def _settled(settings: RecordSettings, spec: ReleaseSpec, rounds: int, records: int) -> ReleaseSpec:
    """What a run's data decide of releases on batches: the share of the records that a batch holds, or the steps of an epoch.

    Args:
      records: of the client with the fewest.
    """
    size = settings.batch_size or records
    check_batch(size, records)
    if settings.sampling == "epoch_permutation":
        epoch = records // size  # steps that are of disjoint parts
        if settings.local_steps > epoch and settings.local_steps % epoch:
            raise ConfigError(
                f"algorithm.local_steps={settings.local_steps} with sampling=epoch_permutation: an epoch has {epoch} steps; "
                "take at most so many, or a multiple"
            )
        return replace(spec, disjoint=min(epoch, settings.local_steps))
    # at rate 1 there is no batch to hide in, and no amplification is known for repeated records
    known = settings.sampling == "without_replacement" and size < records
    return replace(spec, rate=size / records) if known else spec


def batches_of(objective: ClientSide, streams: Streams, hyper: RecordHyper, rounds: np.ndarray) -> Callable[[int], Tensor | None]:
    """step -> [R, M, b] record numbers of its batches (None: all records); steps of a round are asked for in order, from 0."""
    size, steps = hyper.batch_size, hyper.local_steps
    if size is None:
        return lambda step: None
    held = objective.held
    clients, device = objective.clients, objective.batch_device
    records = objective.records if device == objective.device else torch.from_numpy(held)
    if hyper.sampling == "without_replacement":
        return lambda step: streams.subset("batch", rounds * steps + step, clients, held, size, device)
    if hyper.sampling == "with_replacement":
        counts = records.unsqueeze(-1)
        return lambda step: (streams.uniform("batch", rounds * steps + step, clients, size, device=device) * counts).long()
    epoch = int(held.min()) // size
    orders: dict[int, Tensor] = {}

    def part(step: int) -> Tensor:
        number = step // epoch
        if number not in orders:
            draws = streams.uniform("batch", rounds * steps + number, clients, int(held.max()), device=device)
            absent = torch.arange(draws.shape[-1], device=device) >= records.unsqueeze(-1)
            orders.clear()
            order = draws.masked_fill(absent, 2.0).argsort(dim=-1)[..., : epoch * size]
            orders[number] = order.unflatten(-1, (epoch, size)).sort(dim=-1).values  # parts, ascending as subsets are
        return orders[number][..., step % epoch, :]

    return part


def batching_gap(settings: RecordSettings) -> str | None:
    """Why these batches or this clipping have no proved sensitivity, or None."""
    if settings.batch_size is not None and settings.sampling == "with_replacement":
        return "a batch drawn with replacement may hold a record several times, so that no sensitivity is proved"
    if settings.clipping == "batch_mean":
        return "algorithm.clipping=batch_mean is not private at its noise: one record can move the clipped mean by 2C, not 2C / m"
    return None


def local_steps_gap(settings: RecordSettings, whole_noise: bool) -> str | None:
    """Why K noisy local steps are not proved, or None."""
    if settings.local_steps == 1 or whole_noise:
        return batching_gap(settings)
    return (
        f"the later ones of {settings.local_steps} local steps start where the client holds only its share of the noise, "
        "which no release of the sum covers; take algorithm.local_steps=1, or dp=record"
    )


def noisy_steps(
    objective: ClientSide,
    mechanism: Mechanism,
    hyper: RecordHyper,
    model: Tensor,
    rounds: np.ndarray,
    streams: Streams,
    drift: Tensor | None = None,
    clip_norm: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """K local steps v_i <- v_i - eta_l (G_i(v_i) + grad h(v_i) + drift_i) on released gradients G_i, from v_i = w.

    The mean over clients of the v_i needs no release of its own: with drifts that sum to zero over clients it follows
    vbar <- vbar - eta_l (mean_i G_i + grad h(vbar)), because the regulariser's gradient is linear in v.

    Args:
      model: [R, d] w.
      streams: whose stream "batch" the batches come from.
      drift: [R, M, d], with mean zero over clients, or None.
      clip_norm: [R] C of this round, where it is not the settings'.

    Returns:
      The local models v_i [R, M, d] (client values) and their mean vbar [R, d] (public).
    """
    local = model.unsqueeze(1).expand(objective.runs, objective.clients, objective.dimension)
    mean = model
    limit = hyper.clip_norm if clip_norm is None else clip_norm
    batch = batches_of(objective, streams, hyper, rounds)
    for step in range(hyper.local_steps):
        release = mechanism.release("gradient", _gradient(objective, local, limit, batch(step), hyper), rounds)
        direction = release.echo + objective.regulariser_gradient(local)
        if drift is not None:
            direction = direction + drift
        local = local - per_run(hyper.local_lr, direction) * direction
        mean = mean - per_run(hyper.local_lr, mean) * (release.mean + objective.regulariser_gradient(mean))
    return local, mean


def _gradient(objective: ClientSide, local: Tensor, limit: Tensor, batch: Tensor | None, hyper: RecordHyper) -> Bounded:
    """(1/m_i) sum_j CLIP(grad l_ij(v_i), C) over a batch, or over all records."""
    repeats = batch is not None and hyper.sampling == "with_replacement"
    if hyper.clipping == "record":
        return objective.clipped_gradient(local, limit, batch, repeats=repeats)
    whole = objective.clipped_gradient(local, torch.full_like(limit, torch.inf), batch, repeats=repeats)
    return mean_clipped(whole, limit, objective.records if batch is None else torch.full_like(objective.records, batch.shape[-1]))
