"""What loaders of data sets share: how many records are used, which are held out for testing."""

from collections.abc import Callable, Iterable
from typing import Annotated

import numpy as np
from pydantic import Field

from dpfl_cli.config.component import Count, Settings
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records

HeldOut = Annotated[float, Field(ge=0, lt=1)]  # share of the records that are for testing


class UsedSettings(Settings):
    """How many of the records are used: the first ones; None: all."""

    train_records: Count | None = None
    test_records: Count | None = None


def used(name: str, field: str, wanted: int | None, there: int, note: str = "") -> int:
    """How many of `there` records are used, all where `wanted` is None; a ConfigError where there
    are not so many, with a note on what there is.
    """
    if wanted is not None and wanted > there:
        raise ConfigError(
            f"dataset.{field}={wanted}: {name} has {there} of them{note}; write at most that, or "
            "null for all"
        )
    return there if wanted is None else wanted


def fraction_of(fraction: float, size: int, what: str) -> int:
    """How many records a fraction for testing holds out of `size`; a ConfigError where that is
    none.
    """
    held = int(fraction * size)
    if fraction and not held:
        raise ConfigError(
            f"dataset.test_fraction={fraction:g}: less than one of {what}; write more, or 0 for "
            "none"
        )
    return held


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows [N, d] scaled to unit L2 norm; zero rows stay zero. Scaled by the largest entry first:
    squares may overflow.
    """
    largest = np.abs(features).max(axis=1, keepdims=True)
    scaled = np.divide(features, largest, out=np.zeros_like(features), where=largest > 0)
    norms = np.sqrt(np.square(scaled).sum(axis=1, keepdims=True))
    return np.divide(scaled, norms, out=scaled, where=norms > 0)


def ranks(labels: np.ndarray) -> np.ndarray:
    """[N] for each record, how many before it have its label.

    >>> ranks(np.array([7, 3, 7, 7])).tolist()
    [0, 0, 1, 2]
    """
    import pandas as pd

    return pd.Series(labels).groupby(labels).cumcount().to_numpy()


def held_out(
    client: np.ndarray, fraction: float, generators: Iterable[np.random.Generator]
) -> np.ndarray:
    """[N] bool: so large a fraction of each client's records, drawn by that client's generator."""
    held = np.zeros(len(client), bool)
    for number, generator in enumerate(generators):
        own = generator.permutation(np.flatnonzero(client == number))
        held[own[: round(fraction * len(own))]] = True
    return held


def split_dataset(
    info: Callable[[int], DatasetInfo], records: Records, client: np.ndarray, test: np.ndarray
) -> Dataset:
    """Records [N] of clients [N], split by test [N] bool; `info` makes what is known of the data
    from the number of training records.
    """
    train, held = (Records(records.features[some], records.targets[some]) for some in (~test, test))
    known = info(len(train))
    return Dataset(known, train, held if len(held) else None, client[~test], {}, client[test])
