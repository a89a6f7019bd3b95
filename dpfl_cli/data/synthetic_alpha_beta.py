"""Synthetic(alpha, beta) of Noble, Bellet, Dieuleveut 2022 (arXiv 2111.09278), as in their code.

Classification with a linear rule of its own for every client: client k has the mean m_k = sqrt(beta) N(0, I) + N(0, I), records
x ~ N(m_k, diag(j^-1.2)) with j = 1..d, a matrix W_k and a bias b_k with entries sqrt(alpha) N(0, 1) + N(0, 1), and the class
argmax(W_k^T x + b_k); with probability `label_noise` a uniform class replaces it. (FedProx's generator of the same name shares
one normal number among the coordinates of a client.) The data do not depend on the run's seed, as in the paper, which fixes it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Settings, component
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.data.libsvm_datasets import unit_rows
from dpfl_cli.data.streams import stream_generator

_CENTRES, _MEANS, _FEATURES, _TASKS, _WEIGHTS, _BIASES, _NOISE, _CLASSES = range(8)  # keys of the stream "data"


class SyntheticAlphaBetaSettings(Settings):
    """Size and law of the federation, the seed it is drawn from, and whether records are scaled to unit L2 norm.

    `test_fraction`: of each client's records; the test split is the union of all clients' test records.
    """

    clients: int = Field(default=100, ge=1)
    records_per_client: int = Field(default=500, ge=1)
    alpha: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    beta: float = Field(default=5.0, ge=0, allow_inf_nan=False)
    classes: int = Field(default=10, ge=2)
    dimension: int = Field(default=60, ge=1)
    label_noise: float = Field(default=0.05, ge=0, le=1)
    test_fraction: float = Field(default=0.2, ge=0, lt=1)
    normalise: bool = True
    data_seed: int = Field(default=0, ge=0, lt=2**63)


@component("dataset", "synthetic_alpha_beta", revision=1, settings=SyntheticAlphaBetaSettings)
class SyntheticAlphaBeta:
    """Synthetic(alpha, beta): classification with a linear rule of its own for every client (Noble et al. 2022)."""

    @staticmethod
    def info(settings: SyntheticAlphaBetaSettings) -> DatasetInfo:
        """Known from the settings alone; there is no content to hash."""
        return DatasetInfo(
            name="synthetic_alpha_beta",
            source="synthetic",
            sha256="",
            feature_shape=(settings.dimension,),
            classes=settings.classes,
            records=settings.clients * (settings.records_per_client - _held_out(settings)),
            clients=settings.clients,
        )

    @staticmethod
    def load(settings: SyntheticAlphaBetaSettings, seed: int) -> Dataset:
        """features [N, d] float64 and classes [N] int64, clients in order; they do not depend on the run's seed."""
        return _load(settings)


def _held_out(settings: SyntheticAlphaBetaSettings) -> int:
    """Number of test records of each client."""
    held = int(settings.test_fraction * settings.records_per_client)
    if settings.test_fraction and not held:
        raise ConfigError(
            f"dataset.test_fraction={settings.test_fraction:g}: less than one of a client's {settings.records_per_client} "
            "records; write more, or 0 for none"
        )
    return held


@lru_cache(maxsize=4)
def _load(settings: SyntheticAlphaBetaSettings) -> Dataset:
    features, targets = _drawn(settings)
    if settings.normalise:
        features = unit_rows(features.reshape(-1, settings.dimension)).reshape(features.shape)
    kept = settings.records_per_client - _held_out(settings)
    return Dataset(
        info=SyntheticAlphaBeta.info(settings),
        train=_flat(features[:, :kept], targets[:, :kept]),
        test=_flat(features[:, kept:], targets[:, kept:]) if kept < settings.records_per_client else None,
        natural=np.repeat(np.arange(settings.clients, dtype=np.int64), kept),
    )


def _flat(features: np.ndarray, targets: np.ndarray) -> Records:
    return Records(features.reshape(-1, features.shape[-1]), targets.reshape(-1))


def _drawn(settings: SyntheticAlphaBetaSettings) -> tuple[np.ndarray, np.ndarray]:
    """features [M, n, d] before they are scaled, and classes [M, n]; one stream for each of the law's draws."""
    clients, each, d, classes = settings.clients, settings.records_per_client, settings.dimension, settings.classes

    def normal(key: int, *shape: int) -> np.ndarray:
        return stream_generator(settings.data_seed, "data", key).standard_normal((clients, *shape))

    means = np.sqrt(settings.beta) * normal(_CENTRES, d) + normal(_MEANS, d)
    features = normal(_FEATURES, each, d)
    features *= np.arange(1, d + 1) ** -0.6  # std j^-0.6, variance j^-1.2
    features += means[:, None, :]
    tasks = np.sqrt(settings.alpha) * normal(_TASKS, d + 1, classes)
    outputs = features @ (tasks[:, :d] + normal(_WEIGHTS, d, classes))
    outputs += (tasks[:, d] + normal(_BIASES, classes))[:, None, :]
    targets = outputs.argmax(axis=-1)
    replaced = stream_generator(settings.data_seed, "data", _NOISE).random((clients, each)) < settings.label_noise
    uniform = stream_generator(settings.data_seed, "data", _CLASSES).integers(0, classes, (clients, each))
    return features, np.where(replaced, uniform, targets)
