"""Synthetic federations: two of least squares with one solution that fits every record, and one of
classification.

`synthetic` is that of DP-FedEXP (Takakura, Liew, Hasegawa 2025, arXiv 2504.09850, section 5): with
w* ~ N(0, I_d), client i has u_i ~ N(0, u_std^2), m_i ~ N(u_i 1, I_d), and records x ~ N(m_i, I_d),
y = x^T w*. The rows are not normalised. The paper writes N(0, 0.1) for u_i; the code it follows
takes 0.1 as the standard deviation, which is the default here (0.3162 is the other reading).

`quadratic` is the artificial task of adaptdp (TMLR 2025, openreview vvSHlH3a8V): rows
z ~ N(0, z_scale^2 I_d), one parameter b ~ N(0, b_scale^2 I_d) for all clients, targets y = z . b:
with the loss 1/2 (z . x - y)^2 = 1/2 (z . (x - b))^2 every record's loss is zero at x = b
(interpolation). The paper leaves d open; d = 100 is what its loss floors imply.

`synthetic_alpha_beta` is Synthetic(alpha, beta) of Noble, Bellet, Dieuleveut 2022 (arXiv
2111.09278), as in their code: classification with a linear rule of its own for every client: client
k has the mean m_k = sqrt(beta) N(0, I) + N(0, I), records x ~ N(m_k, diag(j^-1.2)) with j = 1..d, a
matrix W_k and a bias b_k with entries sqrt(alpha) N(0, 1) + N(0, 1), and the class
argmax(W_k^T x + b_k); with probability `label_noise` a uniform class replaces it. (FedProx's
generator of the same name shares one normal number among the coordinates of a client.) The data do
not depend on the run's seed, as in the paper, which fixes it.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat

from dpfl_cli.data.loading import (
    Count,
    Dataset,
    DatasetInfo,
    HeldOut,
    Kept,
    Pair,
    Pairs,
    Records,
    SeededSettings,
    Settings,
    component,
    drawn_later,
    fraction_of,
    stream_generator,
    unit_rows,
)


class SyntheticSettings(Settings):
    """Size and law of the synthetic federation.

    `mean_kind` says how the client mean m_i is drawn:
      vector: u_i one number for the client, m_i ~ N(u_i 1, I_d);
      vector_u: u_i itself a vector of d independent N(0, u_std^2), m_i ~ N(u_i, I_d);
      scalar: u_i one number, m_i = s_i 1 with one number s_i ~ N(u_i, 1) for all coordinates.
    """

    dimension: Count = 100
    clients: Count = 1000
    records_per_client: Count = 1
    u_std: NonNegativeFloat = 0.1
    mean_kind: Literal["vector", "vector_u", "scalar"] = "vector"


class QuadraticSettings(Settings):
    """Size and law of the federation."""

    dimension: Count = 100
    clients: Count = 2
    records_per_client: Count = 1500
    z_scale: PositiveFloat = 1.0
    b_scale: NonNegativeFloat = 1.0


class ConsistentSystem:
    """Features [N, d] and targets [N] in float64, clients in order; `truth["optimum"]` [d] fits
    every record. There is no test split.
    """

    name: str
    drawn: Callable[[Any, int], Pair]  # features and optimum, from the settings and the run's seed

    @classmethod
    def info(cls, settings: Any) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        clients, shape = settings.clients, (settings.dimension,)
        records = clients * settings.records_per_client
        return DatasetInfo(cls.name, "synthetic", "", shape, None, records, clients)

    @classmethod
    @lru_cache(maxsize=2)
    def load(cls, settings: Any, seed: int) -> Dataset:
        """The records."""
        features, optimum = cls.drawn(settings, seed)
        natural = np.repeat(np.arange(settings.clients), settings.records_per_client)
        records = Records(features, features @ optimum)
        return Dataset(cls.info(settings), records, None, natural, truth={"optimum": optimum})


@component("dataset", "synthetic", SyntheticSettings)
class Synthetic(ConsistentSystem):
    """Synthetic linear regression: a consistent system, clients with different means (Takakura et
    al. 2025).
    """

    @staticmethod
    def drawn(settings: SyntheticSettings, seed: int) -> Pair:
        """The optimum is w* [d]."""
        d, clients, each = settings.dimension, settings.clients, settings.records_per_client
        optimum, centres, means, features = (
            stream_generator(seed, "data", key).standard_normal(shape)
            for key, shape in enumerate(
                (
                    (d,),
                    (clients, d if settings.mean_kind == "vector_u" else 1),
                    (clients, 1 if settings.mean_kind == "scalar" else d),
                    (clients, each, d),
                )
            )
        )
        features += (settings.u_std * centres + means)[:, None, :]
        return features.reshape(-1, d), optimum


@component("dataset", "quadratic", QuadraticSettings)
class Quadratic(ConsistentSystem):
    """Artificial least squares with one solution that fits every record, independent rows
    (adaptdp's first task).
    """

    @staticmethod
    def drawn(settings: QuadraticSettings, seed: int) -> Pair:
        """The optimum is b [d]."""
        d, records = settings.dimension, settings.clients * settings.records_per_client
        optimum = settings.b_scale * stream_generator(seed, "data", 0).standard_normal(d)
        rows = stream_generator(seed, "data", 1).standard_normal((records, d))
        return settings.z_scale * rows, optimum


# keys of the stream "data" of `synthetic_alpha_beta`
_CENTRES, _MEANS, _FEATURES, _TASKS, _WEIGHTS, _BIASES, _NOISE, _CLASSES = range(8)


class SyntheticAlphaBetaSettings(SeededSettings):
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


@component("dataset", "synthetic_alpha_beta", SyntheticAlphaBetaSettings)
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
        # the test split is all clients' together
        return replace(data, test_natural=None, tests_held=held > 0)


def _drawn(settings: SyntheticAlphaBetaSettings) -> Pair:
    """features [M, n, d] before they are scaled, and classes [M, n]; one stream for each of the
    law's draws.
    """
    clients, each = settings.clients, settings.records_per_client
    d, classes = settings.dimension, settings.classes

    def normal(key: int, *shape: int) -> np.ndarray:
        return settings.generator(key).standard_normal((clients, *shape))

    means = np.sqrt(settings.beta) * normal(_CENTRES, d) + normal(_MEANS, d)
    features = normal(_FEATURES, each, d)
    features *= np.arange(1, d + 1) ** -0.6  # std j^-0.6, variance j^-1.2
    features += means[:, None, :]
    tasks = np.sqrt(settings.alpha) * normal(_TASKS, d + 1, classes)
    outputs = features @ (tasks[:, :d] + normal(_WEIGHTS, d, classes))
    outputs += (tasks[:, d] + normal(_BIASES, classes))[:, None, :]
    replaced = settings.generator(_NOISE).random((clients, each)) < settings.label_noise
    uniform = settings.generator(_CLASSES).integers(0, classes, (clients, each))
    return features, np.where(replaced, uniform, outputs.argmax(axis=-1))
