"""What record-level methods share: noisy local steps, each a release of a clipped gradient."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from dpfl_cli.algorithms.base import Round
from dpfl_cli.algorithms.local import LocalSettings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.privacy.bounded import per_run
from dpfl_cli.privacy.client_values import descended
from dpfl_cli.privacy.draws import Batch, FreshLaw
from dpfl_cli.privacy.record_bounds import mean_clipped
from dpfl_cli.privacy.releases import REFILLED, ReleaseSpec, Setup

GRADIENT = (
    "mean of the records' gradients clipped to C: sensitivity 2C / m (replace_one), C / m "
    "(zero_out, add_or_remove)"
)


# what each way of sampling draws; parts of an epoch are not drawn one by one
LAWS: dict[str, FreshLaw] = {
    "without_replacement": "subset",
    "poisson": "poisson",
    "with_replacement": "repeats",
}


class RecordSettings(LocalSettings):
    """Settings of local steps (K of them) on clipped record gradients."""

    sampling: Literal["without_replacement", "poisson", "epoch_permutation", "with_replacement"] = (
        "without_replacement"
    )
    clipping: Literal["record", "batch_mean"] = "record"


def gradient_release(settings: RecordSettings, run: Setup) -> ReleaseSpec:
    """The releases of K noisy local steps, or a ConfigError where they make no sense."""
    steps, size = settings.local_steps, settings.batch_size
    if run.trust == "central" and steps > 1:
        raise ConfigError(
            f"algorithm.local_steps={steps} under dp.trust=central: nobody adds noise to a "
            "client's own steps, so the bound of a step does not hold for the next one; write "
            "algorithm.local_steps=1, or dp=record"
        )
    spec = ReleaseSpec(
        "gradient",
        per_round=steps,
        one_message=True,
        sums_suffice=steps == 1,
        echo=True,
        note=GRADIENT,
    )
    if size is None and settings.sampling == "poisson":
        raise ConfigError(
            "algorithm.sampling=poisson draws batches: write algorithm.batch_size=…, how many "
            "records are in one on average"
        )
    if size is None:
        return spec
    if run.relation == "add_or_remove" and settings.sampling != "poisson":
        # of one step, or of as many records as the smallest client has, no rate or parts tell it
        raise ConfigError(f"{REFILLED}, algorithm.sampling=poisson or algorithm.batch_size=null")
    records = run.fewest()
    if settings.sampling == "epoch_permutation":
        epoch = records // size  # steps that are of disjoint parts
        if steps > epoch and steps % epoch:
            raise ConfigError(
                f"algorithm.local_steps={steps} with sampling=epoch_permutation: an epoch has "
                f"{epoch} steps; take at most so many, or a multiple"
            )
        return replace(spec, disjoint=min(epoch, steps))
    # at rate 1 there is no batch to hide in, and no amplification is known for repeated records
    law = LAWS[settings.sampling]
    if law == "repeats" or size >= records:
        return spec
    return replace(spec, rate=size / records, batch=law)


def _batches_of(at: Round, hyper: RecordSettings) -> Iterator[Batch | None]:
    """The batch of each step of a round (None: all records), drawn when it is asked for."""
    size, first = hyper.batch_size, at.number * hyper.local_steps
    if size is None:
        return itertools.repeat(None)
    if hyper.sampling == "epoch_permutation":
        epochs = (at.epoch(size, first + epoch) for epoch in range(hyper.local_steps))
        return itertools.chain.from_iterable(epochs)
    law = LAWS[hyper.sampling]
    return (at.batch(size, first + step, law=law) for step in range(hyper.local_steps))


def local_steps_gaps(settings: RecordSettings, trust: str, whole_noise: bool) -> list[str]:
    """Why K noisy local steps are not proved: `gaps` of a method that takes them."""
    found = []
    if settings.batch_size is not None and settings.sampling == "with_replacement":
        found.append(
            "a batch drawn with replacement may hold a record several times, so that no "
            "sensitivity is proved"
        )
    if settings.clipping == "batch_mean":
        found.append(
            "algorithm.clipping=batch_mean is not private at its noise: one record can move the "
            "clipped mean by 2C, not 2C / m"
        )
    if settings.local_steps > 1 and not whole_noise:
        found.append(
            f"the later ones of {settings.local_steps} local steps start where the client holds "
            "only its share of the noise, which no release of the sum covers; take "
            "algorithm.local_steps=1, or dp=record"
        )
    return found


def noisy_steps(
    at: Round,
    hyper: RecordSettings,
    model: Tensor,
    drift: Tensor | None = None,
    clip_norm: Tensor | None = None,
    last: bool = True,
) -> tuple[Tensor, Tensor]:
    """K local steps v_i <- v_i - eta_l (G_i(v_i) + grad h(v_i) + drift_i) on released gradients
    G_i, from v_i = w.

    The mean over clients of the v_i needs no release of its own: with drifts that sum to zero over
    clients it follows vbar <- vbar - eta_l (mean_i G_i + grad h(vbar)), because the regulariser's
    gradient is linear in v.

    Args:
      model: [R, d] w.
      drift: [R, M, d], with mean zero over clients, or None.
      clip_norm: [R] C of this round, where it is not the settings'.
      last: whether the local models take the last step as well, which moves their mean in any case.

    Returns:
      The local models v_i [R, M, d] (client values) and their mean vbar [R, d] (public).
    """
    local, mean, objective = at.at_clients(model), model, at.objective
    limit = hyper.clip_norm if clip_norm is None else clip_norm
    batches = _batches_of(at, hyper)
    for step in range(hyper.local_steps):
        batch = next(batches)
        if hyper.clipping == "record":
            gradient = objective.clipped_gradient(local, limit, batch)
        else:
            whole = objective.clipped_gradient(local, torch.full_like(limit, torch.inf), batch)
            gradient = mean_clipped(whole, limit, objective.divisors(batch))
        release = at.release("gradient", gradient)
        slope = release.mean + objective.regulariser_gradient(mean)
        mean = mean - per_run(hyper.local_lr, mean) * slope
        if step < hyper.local_steps - 1 or last:
            slopes = [release.echo, objective.regulariser_gradient(local)]
            slopes += [] if drift is None else [drift]
            local = descended(local, per_run(hyper.local_lr, local), *slopes)
    return local, mean
