"""Synthetic federations of least squares with one solution that fits every record.

`synthetic` is that of DP-FedEXP (Takakura, Liew, Hasegawa 2025, arXiv 2504.09850, section 5): with
w* ~ N(0, I_d), client i has u_i ~ N(0, u_std^2), m_i ~ N(u_i 1, I_d), and records x ~ N(m_i, I_d),
y = x^T w*. The rows are not normalised. The paper writes N(0, 0.1) for u_i; the code it follows
takes 0.1 as the standard deviation, which is the default here (0.3162 is the other reading).

`quadratic` is the artificial task of adaptdp (TMLR 2025, openreview vvSHlH3a8V): rows
z ~ N(0, z_scale^2 I_d), one parameter b ~ N(0, b_scale^2 I_d) for all clients, targets y = z . b:
with the loss 1/2 (z . x - y)^2 = 1/2 (z . (x - b))^2 every record's loss is zero at x = b
(interpolation). The paper leaves d open; d = 100 is what its loss floors imply.
"""

from functools import lru_cache
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeFloat, PositiveFloat

from dpfl_cli.config.component import Count, Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.streams import stream_generator


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


def _info(name: str, settings: Any) -> DatasetInfo:
    records = settings.clients * settings.records_per_client
    return DatasetInfo(
        name, "synthetic", "", (settings.dimension,), None, records, settings.clients
    )


def _dataset(info: DatasetInfo, features: np.ndarray, optimum: np.ndarray) -> Dataset:
    """The consistent system with rows [N, d], clients in order, and its solution [d]."""
    assert info.clients is not None
    natural = np.repeat(np.arange(info.clients), info.records // info.clients)
    records = Records(features, features @ optimum)
    return Dataset(info, records, None, natural, truth={"optimum": optimum})


@component("dataset", "synthetic", revision=1, settings=SyntheticSettings)
class Synthetic:
    """Synthetic linear regression: a consistent system, clients with different means (Takakura et
    al. 2025).
    """

    @staticmethod
    def info(settings: SyntheticSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return _info("synthetic", settings)

    @staticmethod
    @lru_cache(maxsize=2)
    def load(settings: SyntheticSettings, seed: int) -> Dataset:
        """features [N, d], targets [N] in float64, clients in order; `truth["optimum"]` is w* [d].
        There is no test split.
        """
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
        return _dataset(Synthetic.info(settings), features.reshape(-1, d), optimum)


@component("dataset", "quadratic", revision=1, settings=QuadraticSettings)
class Quadratic:
    """Artificial least squares with one solution that fits every record, independent rows
    (adaptdp's first task).
    """

    @staticmethod
    def info(settings: QuadraticSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return _info("quadratic", settings)

    @staticmethod
    @lru_cache(maxsize=2)
    def load(settings: QuadraticSettings, seed: int) -> Dataset:
        """features [N, d], targets [N] in float64, clients in order; `truth["optimum"]` is b [d].
        There is no test split.
        """
        info, d = Quadratic.info(settings), settings.dimension
        optimum = settings.b_scale * stream_generator(seed, "data", 0).standard_normal(d)
        rows = stream_generator(seed, "data", 1).standard_normal((info.records, d))
        return _dataset(info, settings.z_scale * rows, optimum)
