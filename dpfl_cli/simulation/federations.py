"""The data of plans, dealt to their clients."""

import numpy as np

from dpfl_cli.data.federation import Federation
from dpfl_cli.simulation.run_plan import Plan, deal

KEPT = 64
_federations: dict[str, Federation] = {}


def federation_of(plan: Plan) -> Federation:
    """The plan's data, dealt to its clients; kept while the process lives, the last `KEPT` of them.

    Runs whose seeds change neither data nor partition get the same object, so that stacked they
    share features in products.
    """
    key = plan.dealt
    if key not in _federations:
        made = deal(plan)
        made = next((known for known in _federations.values() if _same(known, made)), made)
        while len(_federations) >= KEPT:
            del _federations[next(iter(_federations))]
        _federations[key] = made
    return _federations[key]


def _same(one: Federation, other: Federation) -> bool:
    return (
        one.dataset.train is other.dataset.train
        and one.dataset.test is other.dataset.test
        and np.array_equal(one.partition.offsets, other.partition.offsets)
        and np.array_equal(one.partition.indices, other.partition.indices)
    )
