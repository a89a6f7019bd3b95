"""How unevenly records pull: quantiles of their squared gradient norms, as multiples of the mean.

tau_q(x) = Q_q / mean of ||grad l_z(x)||^2 over all records z of all clients, Q_q the smallest value
that at least a part q of them do not exceed. A clip norm C clips the records above C^2 = tau_q
mean.

A diagnostic: no epsilon covers it, and no algorithm reads it.

Reference: Fukami, Murata, Niwa, "Adaptive Clipping for Differential Private Federated Learning in
Interpolation Regimes", TMLR 2025, OpenReview vvSHlH3a8V, definition 1.
"""

import numpy as np
import torch
from torch import Tensor

from dpfl_cli.privacy.client_values import ClientValues, opened

PERCENT = (50, 60, 70, 80, 90, 100)
MEAN = "mean_squared_gradient"
NAMES = (MEAN, *(f"tau_{percent}" for percent in PERCENT))


def gradient_quantiles(squared_norms: ClientValues, records: Tensor) -> dict[str, Tensor]:
    """`mean_squared_gradient`, the mean of squared norms over all records, and `tau_50` ...
    `tau_100`, each [R].

    Where all gradients are zero, or one is not finite, the quantiles are zero.

    Args:
      squared_norms: [R, M, n] of the records; a client's first `records` count.
      records: [R, M].
    """
    plain, counts = opened(squared_norms).double().cpu().numpy(), records.cpu().numpy()
    found = np.zeros((len(NAMES), len(plain)))
    for run, (values, held) in enumerate(zip(plain, counts, strict=True)):
        ordered = np.sort(values[np.arange(values.shape[1]) < held[:, None]])
        mean = ordered.mean() if len(ordered) else 0.0
        found[0, run] = mean
        if 0 < mean < np.inf:
            places = [-(-percent * len(ordered) // 100) - 1 for percent in PERCENT]
            found[1:, run] = ordered[places] / mean
    table = torch.from_numpy(found).to(squared_norms.device)
    return dict(zip(NAMES, table, strict=True))
