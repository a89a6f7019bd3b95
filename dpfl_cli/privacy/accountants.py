"""Accountants: an upper bound of epsilon from a ledger and delta, or a one-line refusal.

An accountant prices the whole ledger by sequential composition. A ledger of scope "client" holds
one client's own sequence of messages: clients hold disjoint data, so the guarantee of the worst
client is the guarantee of all (parallel composition), and nothing is added over clients.
Composition is adaptive throughout: later releases may depend on earlier ones.

Notation: z noise multiplier = std / sensitivity, mu = 1 / z.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dpfl_cli.config.component import components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.privacy.draws import OVERFLOW
from dpfl_cli.privacy.kinds import KINDS
from dpfl_cli.privacy.ledger import Entries, Ledger, LedgerEntry

VACUOUS_EPSILON = 20.0  # above it, a guarantee says next to nothing


class TooLargeToPrice(PrivacyError):
    """A ledger whose epsilon (or the grid that it needs) is above what an accountant works at; more
    noise would help.
    """


class Accountant(ABC):
    """Prices ledgers. Subclasses name the curve that they compose, and compute `_epsilon` of a
    checked ledger.

    Attributes:
      name: the registered name.
      curve: the method of `kinds.Kind` that it adds up; a kind without it is refused.
      guarantee: the kind of guarantee that its epsilon belongs to.
      tolerance: the relative accuracy to which a noise level can be calibrated under it.
      variants: the settings under which `price_all` lists it.
      amplifies: the laws of drawing clients whose amplification it knows; by other laws it prices
        a release as if all clients took part, which bounds it.
      amplifies_batches: by the law of drawing batches of records ("subset", "poisson"), the
        relations under which it knows their amplification, under Gaussian noise; under others it
        prices a release as if all were in it.
    """

    name: str
    curve: str
    guarantee = "(epsilon, delta)-DP"
    tolerance = 1e-9
    variants: tuple[dict[str, Any], ...] = ({},)
    amplifies: tuple[str, ...] = ()
    amplifies_batches: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, settings: Any) -> None:
        self.settings = settings

    @classmethod
    def misses(cls, entry: LedgerEntry) -> bool:
        """Whether it leaves out that clients, or batches, were drawn for a release."""
        if entry.law != "full":
            return entry.law not in cls.amplifies
        of_records = entry.kind == "gaussian" and entry.unit == "record"
        known = of_records and entry.relation in cls.amplifies_batches.get(entry.batch, ())
        return entry.rate is not None and not known

    @property
    def label(self) -> str:
        """The name, with the settings that change what is computed."""
        changed = [f"{key} {value}" for key, value in self.settings.identity().items()]
        return f"{self.name} ({', '.join(changed)})" if changed else self.name

    @classmethod
    def knows(cls, kind: str) -> bool:
        """Whether it can price releases of this kind."""
        if kind not in KINDS:
            raise PrivacyError(f"a release's kind '{kind}' is not known: write gaussian or pure")
        return hasattr(KINDS[kind], cls.curve)

    def supports(self, ledger: Ledger) -> str | None:
        """None where the ledger can be priced, else the reason in one line."""
        entries = _charged(ledger)
        for what in ("relation", "unit", "scope", "law"):
            values = _values(entries, what)
            if len(values) > 1:
                return (
                    f"the ledger mixes {what}s ({', '.join(values)}): one epsilon needs one "
                    f"{what}; price the releases apart"
                )
        made = {entry.kind for entry in entries} - {"nonprivate"}
        for entry in entries:
            if entry.kind in made and not self.knows(entry.kind):
                own = " and ".join(sorted(KINDS[kind].label for kind in KINDS if self.knows(kind)))
                others = sorted(
                    name
                    for name, known in components("accountant").items()
                    if all(known.target.knows(kind) for kind in made)
                )
                return (
                    f"{self.name} prices {own} releases, but release '{entry.name}' is "
                    f"{KINDS[entry.kind].label}: use accountant={', '.join(others)}"
                )
        return None

    def epsilon(self, ledger: Ledger, delta: float) -> float:
        """Upper bound of epsilon at delta; 0 for an empty ledger, infinite where a release has no
        noise.

        Raises:
          PrivacyError: the ledger cannot be priced (`supports` says so), or not at this delta.
          ConfigError: delta is not between 0 and 1.
        """
        if not 0.0 < delta < 1.0:
            raise ConfigError(
                f"dp.delta={delta:g}: must lie between 0 and 1, both excluded; a common choice is "
                "dp.delta=1e-5"
            )
        entries = _charged(ledger)
        if any(entry.kind == "nonprivate" for entry in entries):
            return math.inf
        reason = self.supports(ledger)
        if reason is not None:
            raise PrivacyError(reason)
        if any(_has_no_noise(entry) for entry in entries):
            return math.inf
        if not entries:
            return 0.0
        self._check_delta_of_draws(entries, delta)
        if entries[0].law in self.amplifies:
            entries = [_of_rounds(entries)]
            if _has_no_noise(entries[0]):
                return math.inf
        else:
            entries = [
                replace(one, law="full", rate=None, rounds=None) if self.misses(one) else one
                for one in entries
            ]
        return float(self._epsilon(entries, delta))

    def _check_delta_of_draws(self, entries: Entries, delta: float) -> None:
        """Refuses a delta that is not large beside the probability with which a Poisson draw is cut
        off: given that none is, releases are what is priced, so that their delta grows by so much.
        """
        drawn = (one for one in entries if one.rate is not None and not self.misses(one))
        cut = OVERFLOW * sum(one.count for one in drawn if "poisson" in (one.law, one.batch))
        if delta < 100 * cut:
            raise PrivacyError(
                f"delta={delta:g} is not large beside the {cut:.2g} with which more clients, or "
                "records, are drawn by a Poisson law than are computed; give one of at least "
                f"{105 * cut:.2g}"
            )

    @abstractmethod
    def _epsilon(self, entries: Entries, delta: float) -> float:
        """Epsilon of a non-empty list of supported entries with noise."""


def accountant(name: str, options: dict[str, Any] | None = None) -> Accountant:
    """The accountant registered as `name` with these settings (defaults where not given)."""
    known = lookup("accountant", name)
    return known.target(parse_settings(known.settings, options or {}, "accountant"))


@dataclass(frozen=True)
class PrivacyCost:
    """The epsilon of a ledger under one accountant, or the reason why there is none.

    Attributes:
      epsilon: upper bound; None where it is infinite or refused.
      reason: why there is no epsilon, else None.
      accountant: the accountant, with the settings that change what it computes.
      guarantee: the kind of guarantee, "(epsilon, delta)-DP" or "epsilon-DP".
      releases: number of releases composed.
      unit, relation, scope: of the ledger; None where it is empty or mixes them.
      vacuous: epsilon is above 20, or infinite.
      unamplified: clients or batches were drawn, and the accountant counts as if all took part.
    """

    epsilon: float | None
    reason: str | None
    accountant: str
    guarantee: str
    delta: float
    releases: int
    unit: str | None
    relation: str | None
    scope: str | None
    vacuous: bool
    unamplified: bool


def price(ledger: Ledger, accountant: Accountant, delta: float) -> PrivacyCost:
    """Prices a ledger; what the accountant refuses becomes a reason, not an error.

    Raises:
      ConfigError: delta is not between 0 and 1.
    """
    try:
        epsilon = accountant.epsilon(ledger, delta)
        reason = "not private" if math.isinf(epsilon) else None
    except PrivacyError as refusal:
        epsilon, reason = math.nan, str(refusal)
    common = {what: _values(_charged(ledger), what) for what in ("unit", "relation", "scope")}
    return PrivacyCost(
        epsilon=epsilon if reason is None else None,
        reason=reason,
        accountant=accountant.label,
        guarantee=accountant.guarantee,
        delta=delta,
        releases=ledger.releases,
        **{what: found[0] if len(found) == 1 else None for what, found in common.items()},
        vacuous=epsilon > VACUOUS_EPSILON,
        unamplified=any(map(accountant.misses, ledger.entries)),
    )


def price_all(ledger: Ledger, delta: float) -> list[PrivacyCost]:
    """The ledger under every accountant of dpfl (and its `variants`), refusals included. What a
    plugin's says of a run stands in that run's own result, as claimed.
    """
    return [
        price(ledger, accountant(name, options), delta)
        for name, known in components("accountant").items()
        if known.origin == "dpfl"
        for options in known.target.variants
    ]


def _charged(ledger: Ledger) -> Entries:
    return [entry for entry in ledger.entries if entry.count > 0]


def _values(entries: Entries, what: str) -> list[str]:
    return sorted({str(getattr(entry, what)) for entry in entries})


def _of_rounds(entries: Entries) -> LedgerEntry:
    """All releases of a run as one for each round, of clients that were drawn for it.

    All releases of a round are of one cohort, so that they are not amplified apart: together they
    are one release of the cohort. Gaussian releases of multipliers z_j compose, adaptively, to one
    of 1 / z^2 = sum_j 1 / z_j^2 (Dong, Roth and Su 2022, Corollary 3.3), and what dominates a
    mechanism dominates it on a cohort, too (Zhu, Dong and Wang 2022, arXiv:2106.08567, Theorem 11).

    A client may keep a state from the rounds in which it took part. By a Poisson law that changes
    nothing: given who else takes part in which round, and what was released before, a release is,
    where the client is not among the data, one Gaussian; where it is, that Gaussian moved by at
    most the sensitivity with probability q, whatever its state. Divergences are jointly convex in
    such mixtures, and adaptive composition applies.

    Raises:
      PrivacyError: the rounds or the rates are not known, or releases are not Gaussian.
    """
    first, total = entries[0], dict[int, float]()
    for entry in entries:
        rounds = entry.rounds or ()
        if len(rounds) != entry.count or entry.rate != first.rate or entry.rate is None:
            raise PrivacyError(
                f"release '{entry.name}': clients were drawn, but the ledger does not say at which "
                "rate, or for which rounds; mend the ledger"
            )
        if entry.kind != "gaussian":
            raise PrivacyError(
                f"release '{entry.name}': drawing clients amplifies Gaussian releases; write "
                "participation=full"
            )
        with np.errstate(over="ignore"):  # as good as no noise, of which the sum is infinite
            squares = (entry.parameters() ** -2.0).tolist()
        for number, squared in zip(rounds, squares, strict=True):
            total[number] = total.get(number, 0.0) + squared
    numbers = sorted(total)
    with np.errstate(divide="ignore"):  # endless noise
        costs = np.array([total[number] for number in numbers]) ** -0.5
    return first.of_releases(costs, np.array(numbers))


def _has_no_noise(entry: LedgerEntry) -> bool:
    """Whether one of the releases protects nothing; refuses parameters that mean nothing."""
    parameters = entry.parameters()
    if np.isnan(parameters).any() or (parameters < 0).any():
        raise PrivacyError(
            f"release '{entry.name}': noise multipliers and epsilons must be numbers of at least "
            "0; mend the ledger"
        )
    return bool((parameters == KINDS[entry.kind].useless).any())
