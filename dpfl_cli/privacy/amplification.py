"""Releases of clients that were drawn: what those of a round cost together, and what dp-accounting
makes of clients drawn by a Poisson law.

All releases of a round are of one cohort, so that they are not amplified apart: together they are
one release of the cohort. Gaussian releases of multipliers z_j compose, adaptively, to one of
1 / z^2 = sum_j 1 / z_j^2 (Dong, Roth and Su 2022, Corollary 3.3), and what dominates a mechanism
dominates it on a cohort, too (Zhu, Dong and Wang 2022, arXiv:2106.08567, Theorem 11).

A client may keep a state from the rounds in which it took part. By a Poisson law that changes
nothing: given who else takes part in which round, and what was released before, a release is, where
the client is not among the data, one Gaussian; where it is, that Gaussian moved by at most the
sensitivity with probability q, whatever its state. Divergences are jointly convex in such mixtures,
and adaptive composition applies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.ledger import LedgerEntry

if TYPE_CHECKING:
    import dp_accounting


def of_rounds(entries: Sequence[LedgerEntry]) -> LedgerEntry:
    """All releases of a run as one for each round.

    Raises:
      PrivacyError: the rounds or the rates are not known, or releases are not Gaussian.
    """
    first, total = entries[0], dict[int, float]()
    for entry in entries:
        known = entry.rounds is not None and len(entry.rounds) == entry.count
        if not known or entry.rate != first.rate or entry.rate is None:
            raise PrivacyError(
                f"release '{entry.name}': clients were drawn, but the ledger does not say at which "
                "rate, or for which rounds; mend the ledger"
            )
        if entry.kind != "gaussian":
            raise PrivacyError(
                f"release '{entry.name}': drawing clients amplifies Gaussian releases; write "
                "participation=full"
            )
        assert entry.rounds is not None
        with np.errstate(over="ignore"):  # as good as no noise, of which the sum is infinite
            squares = (entry.parameters() ** -2.0).tolist()
        for number, squared in zip(entry.rounds, squares, strict=True):
            total[number] = total.get(number, 0.0) + squared
    numbers = sorted(total)
    with np.errstate(divide="ignore"):  # endless noise
        costs = np.array([total[number] for number in numbers]) ** -0.5
    return first.of_releases(costs, np.array(numbers))


@lru_cache(maxsize=256)
def poisson_rdp(orders: tuple[int, ...], rate: float, z: float) -> np.ndarray:
    """Renyi divergence, at whole orders a of at least 2, of a Gaussian release of clients drawn by
    a Poisson law (Mironov, Talwar and Zhang 2019, arXiv:1908.10530, section 3.3):

      1 / (a - 1) ln sum_k w_k e^((k^2 - k) / (2 z^2)),  w_k = C(a, k) q^k (1 - q)^(a - k).

    The w_k sum to 1, so that the sum is 1 + sum_{k >= 2} w_k (e^((k^2 - k) / (2 z^2)) - 1): of
    positive terms, that no 1 hides where noise is strong. (dp-accounting adds up the first form,
    whose logarithm may come out negative, and then calls epsilon zero.)
    """
    from scipy.special import gammaln, logsumexp, xlog1py

    found = []
    for a in orders:
        k = np.arange(2.0, a + 1)
        chosen = gammaln(a + 1.0) - gammaln(k + 1) - gammaln(a - k + 1)
        weights = chosen + k * np.log(rate) + xlog1py(a - k, -rate)  # ln w_k
        with np.errstate(divide="ignore", over="ignore"):
            loss = (k * k - k) / 2 * z**-2.0
            terms = weights + loss + np.log(-np.expm1(-loss))
        found.append(np.logaddexp(0.0, logsumexp(terms)) / (a - 1))
    return np.array(found)


@lru_cache(maxsize=64)  # runs of a grid often share their ledger, and so do methods
def poisson_epsilon(
    entry: LedgerEntry,
    delta: float,
    accountant: Callable[..., dp_accounting.PrivacyAccountant],
    *options: Hashable,
) -> float:
    """Epsilon of `of_rounds` by an accountant of dp-accounting, made of these options."""
    import dp_accounting

    own = accountant(*options)
    for z, count in entry.levels().items():
        event = dp_accounting.PoissonSampledDpEvent(entry.rate, dp_accounting.GaussianDpEvent(z))
        own.compose(event, count)
    return float(own.get_epsilon(delta))
