"""Synthetic(alpha, beta) of Noble, Bellet, Dieuleveut 2022 (arXiv 2111.09278), as in their code.

Classification with a linear rule of its own for every client: client k has the mean m_k =
sqrt(beta) N(0, I) + N(0, I), records x ~ N(m_k, diag(j^-1.2)) with j = 1..d, a matrix W_k and a
bias b_k with entries sqrt(alpha) N(0, 1) + N(0, 1), and the class argmax(W_k^T x + b_k); with
probability `label_noise` a uniform class replaces it. (FedProx's generator of the same name shares
one normal number among the coordinates of a client.) The data do not depend on the run's seed, as
in the paper, which fixes it.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import Field, NonNegativeFloat

from dpfl_cli.config.component import Count, Seed, Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo
from dpfl_cli.data.loading import HeldOut, Kept, Pairs, drawn_later, fraction_of, unit_rows
from dpfl_cli.data.streams import stream_generator

# keys of the stream "data"
_CENTRES, _MEANS, _FEATURES, _TASKS, _WEIGHTS, _BIASES, _NOISE, _CLASSES = range(8)


class SyntheticAlphaBetaSettings(Settings):
    """Size and law of the federation, the seed it is drawn from, and whether records are scaled to
    unit L2 norm.

    `test_fraction`: of each client's records; the test split is the union of all clients' test
      records.
    """

    clients: Count = 100
    records_per_client: Count = 500
    alpha: NonNegativeFloat = 5.0
    beta: NonNegativeFloat = 5.0
    classes: int = Field(default=10, ge=2)
    dimension: Count = 60
    label_noise: float = Field(default=0.05, ge=0, le=1)
    test_fraction: HeldOut = 0.2
    normalise: bool = True
    data_seed: Seed = 0


@component("dataset", "synthetic_alpha_beta", revision=1, settings=SyntheticAlphaBetaSettings)
class SyntheticAlphaBeta(Kept):
    """Synthetic(alpha, beta): classification with a linear rule of its own for every client (Noble
    et al. 2022).
    """

    @staticmethod
    def make(settings: SyntheticAlphaBetaSettings, content: None) -> Dataset:
        """features [N, d] float64 and classes [N] int64, clients in order."""
        clients, d, each = settings.clients, settings.dimension, settings.records_per_client
        held = fraction_of(settings.test_fraction, each, f"a client's {each} records")
        kept = each - held

        def draw() -> Iterator[Pairs]:
            for features, targets in zip(*_drawn(settings), strict=True):
                some = unit_rows(features) if settings.normalise else features
                yield (some[:kept], targets[:kept]), (some[kept:], targets[kept:])

        classes = settings.classes
        info = DatasetInfo(
            "synthetic_alpha_beta", "synthetic", "", (d,), classes, clients * kept, clients
        )
        data = drawn_later(info, kept, held, draw)
        return replace(data, test_natural=None)  # the test split is all clients' together


def _drawn(settings: SyntheticAlphaBetaSettings) -> tuple[np.ndarray, np.ndarray]:
    """features [M, n, d] before they are scaled, and classes [M, n]; one stream for each of the
    law's draws.
    """
    clients, each = settings.clients, settings.records_per_client
    d, classes = settings.dimension, settings.classes
    draw = partial(stream_generator, settings.data_seed, "data")

    def normal(key: int, *shape: int) -> np.ndarray:
        return draw(key).standard_normal((clients, *shape))

    means = np.sqrt(settings.beta) * normal(_CENTRES, d) + normal(_MEANS, d)
    features = normal(_FEATURES, each, d)
    features *= np.arange(1, d + 1) ** -0.6  # std j^-0.6, variance j^-1.2
    features += means[:, None, :]
    tasks = np.sqrt(settings.alpha) * normal(_TASKS, d + 1, classes)
    outputs = features @ (tasks[:, :d] + normal(_WEIGHTS, d, classes))
    outputs += (tasks[:, d] + normal(_BIASES, classes))[:, None, :]
    replaced = draw(_NOISE).random((clients, each)) < settings.label_noise
    uniform = draw(_CLASSES).integers(0, classes, (clients, each))
    return features, np.where(replaced, uniform, outputs.argmax(axis=-1))
