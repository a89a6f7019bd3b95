"""Where the contributions of a release come from: what it is priced by must be so."""

from collections.abc import Sequence

import numpy as np

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.bounded import Bounded
from dpfl_cli.privacy.cohorts import Sampling
from dpfl_cli.privacy.releases import ReleaseSpec, Setup


class Provenance:
    """What a mechanism remembers of the contributions it released."""

    def __init__(self) -> None:
        # group, number in the round -> [R] the round of every run, [R] of which contributions
        self._groups: dict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = {}
        # stream -> the last batch that was released: its address and part
        self._used: dict[str, tuple[np.ndarray, int]] = {}

    def check(
        self,
        spec: ReleaseSpec,
        values: Bounded,
        rounds: np.ndarray,
        number: np.ndarray,
        charged: np.ndarray,
        setups: Sequence[Setup],
    ) -> None:
        """Refuses contributions that are not what the release is priced by.

        Args:
          spec: of the first run; its rate is that of all.
          number: [R] how many of these releases were made in the round before.
          charged: [R] the runs in which it is made.
          setups: of every run.
        """
        if (sampling := setups[0].sampling) is not None:
            self._check_cohort(spec, values, rounds, sampling)
        if spec.group:
            self._check_source(spec, values, rounds, np.where(charged, number, -1))
        if spec.rate is not None or spec.disjoint > 1:
            most = (spec.rate or 1.0) * min(setup.fewest() for setup in setups)
            self._check_batch(spec, values, number, most)

    @staticmethod
    def _check_cohort(
        spec: ReleaseSpec, values: Bounded, rounds: np.ndarray, sampling: Sampling
    ) -> None:
        """Where clients are drawn, a release is of those who were drawn for this round."""
        cohort = values.cohort
        if (
            cohort is None
            or cohort.sampling != sampling
            or not np.array_equal(cohort.rounds, rounds)
        ):
            raise PrivacyError(
                f"release '{spec.name}' is priced by how its clients are drawn, afresh in every "
                "round: compute it from what the clients of this round hold"
            )

    def _check_source(
        self, spec: ReleaseSpec, values: Bounded, rounds: np.ndarray, number: np.ndarray
    ) -> None:
        """Releases of one group that have the same number in a round of a run are of the same
        contributions; a negative number is of a run without one.
        """
        for which in np.unique(number[number >= 0]).tolist():
            nothing = np.zeros_like(rounds), np.full(len(rounds), None, object)
            when, sources = self._groups.setdefault((spec.group, which), nothing)
            mine = number == which
            if (mine & (when == rounds) & (sources != values.source)).any():
                raise PrivacyError(
                    f"release '{spec.name}' is declared to be of the contributions of its group "
                    f"'{spec.group}', with which it is priced jointly, but it is of others"
                )
            when[mine], sources[mine] = rounds[mine], values.source

    def _check_batch(
        self, spec: ReleaseSpec, values: Bounded, number: np.ndarray, most: float
    ) -> None:
        """A release that is amplified, or shares its cost with others of its epoch, is of a batch
        that was drawn for that, for this release alone.
        """
        law = "subset" if spec.disjoint == 1 else "part"
        batch = values.batch
        if batch is None or batch.law != law:
            raise PrivacyError(
                f"release '{spec.name}' is priced by how its batch is drawn (a {law} of the "
                "records): compute it on a batch of Round.batch or Round.epoch"
            )
        if batch.size > most * (1 + 1e-9):
            raise PrivacyError(
                f"release '{spec.name}' is of {batch.size} records a client, more than the rate "
                "that it is priced by"
            )
        last, part = self._used.get(batch.stream, (-1, -1))
        fresh = batch.numbers > last
        if law == "part":
            following = (batch.numbers == last) & (batch.part == part + 1)
            fresh = np.where(batch.part == 0, fresh, following)
            fresh &= number % spec.disjoint == batch.part
        if not fresh.all():
            raise PrivacyError(
                f"release '{spec.name}' is of a batch that was released before, or not in its "
                "turn: draw a fresh one for every release"
            )
        self._used[batch.stream] = batch.numbers, batch.part
