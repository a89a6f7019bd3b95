"""Noise by the closed forms of papers: what a target epsilon means there, and from where on it is proved.

Notation: C clip norm, R number of releases of one client's contribution, l = ln(1/delta), sigma the standard deviation of the
noise in each coordinate, z = sigma / sensitivity the noise multiplier. Lemma 1 of the ScaffNew paper (arXiv 2304.05127) is for
clients that are left out, so that its C is the sensitivity; under another relation the sensitivity takes its place and z stays.

A target epsilon under `lemma1` or `record_heuristic` is nominal: no theorem says that this noise meets it. The epsilon of the
ledger, which is priced as always, is what the noise is worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfl_cli.privacy.bounded import Relation

NOMINAL = ("lemma1", "record_heuristic")
NOMINAL_SIGN = ": nominal"  # how the name of such a calibration ends in reports


def zcdp_v(epsilon: float, delta: float) -> float:
    """The constant v with which Lemma 1 is proved, by zero-concentrated DP: (sqrt(l + epsilon) + sqrt(l))^2 / (2 l).

    R Gaussian releases are rho-zCDP with rho = R / (2 z^2), and so (epsilon, delta)-DP with epsilon = rho + 2 sqrt(rho l) (Bun
    and Steinke 2016, Propositions 1.6 and 1.3). Solved for z: z^2 = R / (2 a^2), a = sqrt(l + epsilon) - sqrt(l), which is
    z^2 = v R l / epsilon^2 with this v. It tends to 2 as epsilon does to 0.

    >>> round(zcdp_v(3.3, 1e-5), 4), round(zcdp_v(1e-9, 1e-5), 4)
    (2.2776, 2.0)
    """
    log = -math.log(delta)
    return (math.sqrt(log + epsilon) + math.sqrt(log)) ** 2 / (2 * log)


def lemma1(epsilon: float, delta: float, releases: int, v: float) -> float:
    """The noise multiplier of Lemma 1 (arXiv 2304.05127) as an equality: z^2 = v R l / epsilon^2, so sigma^2 = z^2 C^2.

    The paper leaves the constant v open. The target is proved from v = `zcdp_v` on, and nominal below it.

    >>> round(10 * lemma1(3.3, 1e-5, 100, zcdp_v(3.3, 1e-5)), 1)
    155.2
    """
    return math.sqrt(v) * math.sqrt(releases * -math.log(delta)) / epsilon


def record_heuristic(epsilon: float, delta: float, releases: int, records: int, relation: Relation) -> float:
    """The noise multiplier of sigma = (2 C / m) sqrt(2 R l) / epsilon, for a client of m records.

    As if one of the m records moved the mean of m vectors clipped to C, by 2 C / m, with v = 2 (Wei et al., "Federated learning
    with differential privacy: algorithms and performance analysis", IEEE TIFS 2020). What is clipped here is the update of a
    whole client, often of several steps, which one record may move by 2 C: the target is nominal, for records as for clients.

    Args:
      records: m, of the client with the fewest.
      relation: decides which sensitivity z is relative to, 2 C or C; sigma does not depend on it.

    >>> record_heuristic(1.0, 1e-5, 9, 100, "zero_out") == 2 * record_heuristic(1.0, 1e-5, 9, 100, "replace_one")
    True
    """
    return lemma1(epsilon, delta, releases, 2.0) * (2 / records) / (2 if relation == "replace_one" else 1)
