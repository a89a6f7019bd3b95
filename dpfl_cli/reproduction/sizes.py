"""Facts of how many records the clients of a plan hold, for tables that describe data: their mean
and spread over clients.

They are counted from the records, or from the labels alone where features take long; the counts of
real clients are data.
"""

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.simulation.run_plan import Plan, outlined

_known: dict[str, dict[str, dict[str, float]]] = {}


def size_facts(plan: Plan) -> dict[str, dict[str, float]]:
    """`train` and `test` records of a client, each with its `mean` and `std` over clients (ddof 1;
    0 for one client).

    Test records are those of the data's own clients where it says whose they are, and shared out
    evenly elsewhere.

    Raises:
      ConfigError: the data has no test records.
    """
    key = plan.dealt
    if key not in _known:
        dataset, partition = outlined(plan)
        train = partition.counts
        if dataset.test is None:
            raise ConfigError(
                f"dataset={plan.dataset.name} has no test records; ask for sizes.train only of "
                "data that have some"
            )
        if dataset.test_natural is None:
            test = np.full(len(train), len(dataset.test) / len(train))
        else:
            test = np.unique(dataset.test_natural, return_counts=True)[1]
        _known[key] = {"train": _summary(train), "test": _summary(test)}
    return _known[key]


def _summary(counts: np.ndarray) -> dict[str, float]:
    return {
        "mean": float(counts.mean()),
        "std": float(counts.std(ddof=1)) if len(counts) > 1 else 0.0,
    }
