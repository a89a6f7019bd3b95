"""Diagnostics: looks at client values that no release paid for. For display only: they come as
`Diagnostic` tensors, which mark whatever they touch, cannot be read out, and are refused by
clipping and by the server's state. Results list what was reported with this mark, because no
epsilon covers it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from dpfl_cli.privacy.bounded import Bounded, per_run, vector_norms
from dpfl_cli.privacy.client_values import ClientValues, Diagnostic, diagnostic, opened
from dpfl_cli.privacy.draws import among

_AT_THE_BOUND = 1 - 1e-4  # clipping leaves a norm of C up to rounding, also in float32


def curvature_diagnostics(largest: ClientValues) -> dict[str, Diagnostic]:
    """A DIAGNOSTIC, not private: it looks at client values without a release. For display only.

    Args:
      largest: [R, M] largest eigenvalues of the clients' curvatures.

    Returns:
      largest_curvature: [R] their mean over clients.
    """
    return {"largest_curvature": diagnostic(opened(largest).mean(dim=-1))}


def drift_diagnostics(
    lengths: Tensor,
    seen: Mapping[str, Tensor],
    communications: Tensor,
    watched: int | None = None,
) -> dict[str, Diagnostic]:
    """DIAGNOSTICS, not private: they look at client values without a release. For display only.

    Args:
      lengths: [R, M] client values, how long what clients would communicate now is before any
        clipping.
      seen: [R, M] client values of what clients communicated so far: "longest", and how often it
        was "clipped".
      communications: [R] how many there were.
      watched: a client, or None.

    Returns:
      update_norm: [R] (1/M) sum_i of the lengths.
      longest_update: [R] the longest over clients and communications so far.
      clipped_fraction: [R] the part of what clients communicated so far that was clipped.
      repaired: [R] the number of clients whose local model is not finite, and which would send
        zero.
      watched_norm: [R] the watched client's length.
    """
    now = opened(lengths)
    found = {
        "update_norm": now.mean(dim=-1),
        "longest_update": opened(seen["longest"]).amax(dim=-1),
        "clipped_fraction": opened(seen["clipped"]).mean(dim=-1) / communications.clamp(min=1.0),
        "repaired": (~torch.isfinite(now)).sum(dim=-1),
    }
    if watched is not None:
        found["watched_norm"] = now[:, watched]
    return {name: diagnostic(value) for name, value in found.items()}


def record_diagnostics(
    squared_norms: ClientValues, clip_norm: Tensor, records: Tensor
) -> dict[str, Diagnostic]:
    """A DIAGNOSTIC, not private: it looks at client values without a release. For display only.

    Args:
      squared_norms: [R, M, n] of the records' gradients; 0 beyond a client's records.
      clip_norm: [R], C.
      records: [R, M] how many of the n count.

    Returns:
      clipped_fraction: [R] the part of the records, over all clients, whose gradient is longer than
        C.
    """
    norms = opened(squared_norms)
    longer = norms > per_run(clip_norm, norms).square()
    return {
        "clipped_fraction": diagnostic(longer.sum(dim=(1, 2)).to(norms.dtype) / records.sum(dim=1))
    }


def update_diagnostics(update: Bounded) -> dict[str, Diagnostic]:
    """DIAGNOSTICS, not private: they look at client values without a release. For display only.

    Returns:
      mean_squared_norm: [R] (1/M) sum_i ||Delta_i||^2 of the clipped updates.
      clipped_fraction: [R] the part of the clients whose update has norm C.
      repaired: [R] the number of updates that were not finite and count as zero.
    """
    squared = vector_norms(update.checked()).square()  # [R, M], may pass C^2 by rounding
    limit = (_AT_THE_BOUND * update.bound).square().unsqueeze(-1)
    clipped = (squared >= limit).to(squared.dtype)

    def total(values: Tensor) -> Tensor:
        return among(update.cohort, values).sum(dim=-1)

    there = total(torch.ones_like(squared))  # the means are NaN where nobody is
    return {
        "mean_squared_norm": diagnostic(total(squared) / there),
        "clipped_fraction": diagnostic(total(clipped) / there),
        "repaired": update.repaired,
    }
