"""The synthetic federation of DP-FedEXP (Takakura, Liew, Hasegawa 2025, arXiv 2504.09850, section 5).

A consistent linear system: with w* ~ N(0, I_d), client i has u_i ~ N(0, u_std^2), m_i ~ N(u_i 1, I_d), and records
x ~ N(m_i, I_d), y = x^T w*. The rows are not normalised. The paper writes N(0, 0.1) for u_i; the code it follows takes
0.1 as the standard deviation, which is the default here (0.3162 is the other reading).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.streams import stream_generator

_OPTIMUM, _CENTRES, _MEANS, _FEATURES = range(4)  # keys of the stream "data"


class SyntheticSettings(Settings):
    """Size and law of the synthetic federation.

    `mean_kind` says how the client mean m_i is drawn:
      vector: u_i one number for the client, m_i ~ N(u_i 1, I_d);
      vector_u: u_i itself a vector of d independent N(0, u_std^2), m_i ~ N(u_i, I_d);
      scalar: u_i one number, m_i = s_i 1 with one number s_i ~ N(u_i, 1) for all coordinates.
    """

    dimension: int = Field(default=100, ge=1)
    clients: int = Field(default=1000, ge=1)
    records_per_client: int = Field(default=1, ge=1)
    u_std: float = Field(default=0.1, ge=0, allow_inf_nan=False)
    mean_kind: Literal["vector", "vector_u", "scalar"] = "vector"


@component("dataset", "synthetic", revision=1, settings=SyntheticSettings)
class Synthetic:
    """Synthetic linear regression: a consistent system, clients with different means (Takakura et al. 2025)."""

    @staticmethod
    def info(settings: SyntheticSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return DatasetInfo(
            name="synthetic",
            source="synthetic",
            sha256="",
            feature_shape=(settings.dimension,),
            classes=None,
            records=settings.clients * settings.records_per_client,
            clients=settings.clients,
        )

    @staticmethod
    def load(settings: SyntheticSettings, seed: int) -> Dataset:
        """features [N, d], targets [N] in float64, clients in order; `truth["optimum"]` is w* [d]. There is no test split."""
        return _load(settings, seed)


@lru_cache(maxsize=16)
def _load(settings: SyntheticSettings, seed: int) -> Dataset:
    d, clients, each = settings.dimension, settings.clients, settings.records_per_client
    optimum = stream_generator(seed, "data", _OPTIMUM).standard_normal(d)
    centre_size = d if settings.mean_kind == "vector_u" else 1
    centres = settings.u_std * stream_generator(seed, "data", _CENTRES).standard_normal((clients, centre_size))
    mean_size = 1 if settings.mean_kind == "scalar" else d
    means = centres + stream_generator(seed, "data", _MEANS).standard_normal((clients, mean_size))
    features = stream_generator(seed, "data", _FEATURES).standard_normal((clients, each, d))
    features += means[:, None, :]
    flat = features.reshape(clients * each, d)
    return Dataset(
        info=Synthetic.info(settings),
        train=Records(flat, flat @ optimum),
        test=None,
        natural=np.repeat(np.arange(clients, dtype=np.int64), each),
        truth={"optimum": optimum},
    )
