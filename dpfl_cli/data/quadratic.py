"""The artificial task of adaptdp (TMLR 2025, openreview vvSHlH3a8V): least squares that all clients can solve together.

Rows z ~ N(0, z_scale^2 I_d), one parameter b ~ N(0, b_scale^2 I_d) for all clients, targets y = z . b: with the loss
1/2 (z . x - y)^2 = 1/2 (z . (x - b))^2 every record's loss is zero at x = b (interpolation). The paper leaves d open; d = 100
is what its loss floors imply. There is no test split.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.streams import stream_generator

_OPTIMUM, _FEATURES = range(2)  # keys of the stream "data"


class QuadraticSettings(Settings):
    """Size and law of the federation."""

    dimension: int = Field(default=100, ge=1)
    clients: int = Field(default=2, ge=1)
    records_per_client: int = Field(default=1500, ge=1)
    z_scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    b_scale: float = Field(default=1.0, ge=0, allow_inf_nan=False)


@component("dataset", "quadratic", revision=1, settings=QuadraticSettings)
class Quadratic:
    """Artificial least squares with one solution that fits every record, independent rows (adaptdp's first task)."""

    @staticmethod
    def info(settings: QuadraticSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return DatasetInfo(
            name="quadratic",
            source="synthetic",
            sha256="",
            feature_shape=(settings.dimension,),
            classes=None,
            records=settings.clients * settings.records_per_client,
            clients=settings.clients,
        )

    @staticmethod
    def load(settings: QuadraticSettings, seed: int) -> Dataset:
        """features [N, d], targets [N] in float64, clients in order; `truth["optimum"]` is b [d]."""
        return _load(settings, seed)


@lru_cache(maxsize=16)
def _load(settings: QuadraticSettings, seed: int) -> Dataset:
    records = settings.clients * settings.records_per_client
    optimum = settings.b_scale * stream_generator(seed, "data", _OPTIMUM).standard_normal(settings.dimension)
    features = settings.z_scale * stream_generator(seed, "data", _FEATURES).standard_normal((records, settings.dimension))
    return Dataset(
        info=Quadratic.info(settings),
        train=Records(features, features @ optimum),
        test=None,
        natural=np.repeat(np.arange(settings.clients, dtype=np.int64), settings.records_per_client),
        truth={"optimum": optimum},
    )
