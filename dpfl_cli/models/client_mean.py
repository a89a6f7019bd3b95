"""Networks whose test metrics are means over clients, each on its own test records, and the names
of the metrics.

Reference: Hou, Khirirat, Yaqub, Horváth, "Balancing Privacy and Performance for Private Federated
Learning Algorithms", 2023, arXiv:2304.05127, section 3 (clients' test errors have equal weight).
"""

from typing import Literal

import numpy as np
from numpy import ndarray
from torch import Tensor

from dpfl_cli.data.federation import Federation, Records
from dpfl_cli.models.network import Network
from dpfl_cli.models.network_settings import NetworkSettings


class ClientMeanSettings(NetworkSettings):
    """How test metrics are averaged.

    `clients`: over the test records of each client that takes part, then over these clients with
    equal weight. Where the clients are not the dataset's own (partitioner=iid, say), or it has no
    test records of each client, over all test records, as `pooled`.
    """

    average: Literal["clients", "pooled"] = "clients"


class ClientMeanNetwork(Network):
    """A network with `ClientMeanSettings`; metrics accuracy and test_error = 100 - accuracy in
    percent, and test_loss.
    """

    def test_weights(self, federation: Federation, tests: Records) -> ndarray:
        return shares_of(federation, self.settings.average, self.test_sizes(tests))

    def test_sizes(self, tests: Records) -> ndarray:
        """[N] how much a test record counts in its client's mean; all alike."""
        return np.ones(len(tests))

    def scores(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        found = super().scores(outputs, targets)
        return {**found, "test_error": 100.0 - found["accuracy"]}


def shares_of(federation: Federation, average: str, sizes: ndarray) -> ndarray:
    """[N] weights of the test records, whose sum is 1.

    Args:
      average: as `ClientMeanSettings.average`.
      sizes: [N] how much each counts in the mean of its client, or of all.
    """
    owners = own_clients(federation)
    natural = federation.dataset.test_natural
    if average == "clients" and owners is not None and natural is not None:
        totals = np.bincount(natural, sizes, minlength=int(owners.max()) + 1)
        counted = owners[totals[owners] > 0]
        if len(counted):
            shares = np.zeros(len(totals))
            shares[counted] = 1.0 / totals[counted] / len(counted)
            return sizes * shares[natural]
    return sizes / sizes.sum()


def own_clients(federation: Federation) -> ndarray | None:
    """[M] which of the dataset's own clients each client is; None where they are others."""
    natural, partition = federation.dataset.natural, federation.partition
    if natural is None or not len(partition.indices) or (partition.counts == 0).any():
        return None
    owners = natural[partition.indices]
    first = owners[partition.offsets[:-1]]
    own = len(np.unique(first)) == len(first) and np.array_equal(
        owners, np.repeat(first, partition.counts)
    )
    return first if own else None
