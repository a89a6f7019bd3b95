"""Calibration: the least noise that meets a target epsilon at delta.

Bisection on an accountant's upper bound, so what comes out meets the target by that accountant's
word. The ledger is a function of one parameter; everything that depends on it (a second release's
multiplier, say) follows inside that function.
"""

import math
from collections.abc import Callable

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.privacy.accountants import Accountant, TooLargeToPrice
from dpfl_cli.privacy.ledger import Ledger

LEAST, MOST = 1e-12, 1e15  # the noise considered
_MOST_STEPS = 300  # bisection alone needs about 60


def calibrate(
    target_epsilon: float,
    delta: float,
    accountant: Accountant,
    ledger_of: Callable[[float], Ledger],
    *,
    increasing: bool = False,
) -> float:
    """The parameter at which the ledger's epsilon meets the target from below.

    Args:
      target_epsilon: positive and finite.
      delta: between 0 and 1.
      accountant: whose epsilon is meant.
      ledger_of: the planned ledger at a parameter: noise multiplier (epsilon falls as it grows), or
        epsilon per release of a pure mechanism (`increasing`).
      increasing: whether epsilon grows with the parameter.

    Returns:
      A parameter with target (1 - tolerance) <= epsilon <= target, tolerance as the accountant
      states it (1e-9; pld 1e-4).

    Raises:
      ConfigError: delta out of range.
      PrivacyError: the accountant cannot price the ledger, no parameter meets the target (with the
        smallest epsilon within reach), or every one does.
    """

    def parameter(noise: float) -> float:
        return 1 / noise if increasing else noise

    def epsilon_at(noise: float) -> float:
        try:
            return accountant.epsilon(ledger_of(parameter(noise)), delta)
        except TooLargeToPrice:
            return math.inf

    refuse_hopeless(ledger_of(1.0))
    goal = f"epsilon {target_epsilon:g} at delta {delta:g} under accountant {accountant.label}"
    # loud: too little noise; quiet: enough
    loud = quiet = 1.0
    loud_epsilon = quiet_epsilon = epsilon_at(1.0)
    while quiet_epsilon > target_epsilon:
        if quiet >= MOST:
            smallest = "none" if math.isinf(quiet_epsilon) else f"{quiet_epsilon:.6g}"
            raise PrivacyError(
                f"no noise reaches {goal}: the smallest epsilon within reach is {smallest}; raise "
                "dp.epsilon"
            )
        loud, loud_epsilon = quiet, quiet_epsilon
        quiet = min(quiet * 4, MOST)
        quiet_epsilon = epsilon_at(quiet)
    while loud_epsilon <= target_epsilon:
        if loud <= LEAST:
            raise PrivacyError(
                f"{goal} is met with any noise (the largest epsilon is {loud_epsilon:.6g}): there "
                "is nothing to calibrate; give the noise level itself"
            )
        quiet, quiet_epsilon = loud, loud_epsilon
        loud = max(loud / 4, LEAST)
        loud_epsilon = epsilon_at(loud)

    # Regula falsi on ln epsilon over ln noise (nearly a straight line), every third step a
    # bisection, aimed just below the target so that a hit is on the safe side.
    aim = target_epsilon * (1 - accountant.tolerance / 2)
    for step in range(_MOST_STEPS):
        if quiet_epsilon >= target_epsilon * (1 - accountant.tolerance):
            return parameter(quiet)
        if math.isinf(loud_epsilon) and quiet / loud - 1 < 1e-3 * accountant.tolerance:
            break  # the edge of what the accountant prices
        middle = halfway = math.sqrt(loud) * math.sqrt(quiet)
        if step % 3 < 2 and quiet_epsilon > 0 and math.isfinite(loud_epsilon):
            share = math.log(loud_epsilon / aim) / math.log(loud_epsilon / quiet_epsilon)
            middle = loud * (quiet / loud) ** share
        if not loud < middle < quiet:
            middle = halfway
            if not loud < middle < quiet:
                break
        epsilon = epsilon_at(middle)
        if epsilon <= target_epsilon:
            quiet, quiet_epsilon = middle, epsilon
        else:
            loud, loud_epsilon = middle, epsilon
    raise PrivacyError(
        f"no noise comes close to {goal}: epsilon jumps from {quiet_epsilon:.6g} to "
        f"{'more than can be priced' if math.isinf(loud_epsilon) else f'{loud_epsilon:.6g}'}; "
        "change dp.epsilon or the accountant"
    )


def refuse_hopeless(ledger: Ledger) -> None:
    """Refuses ledgers for which the noise does not matter."""
    if not ledger.releases:
        raise PrivacyError(
            "nothing is released, so there is no noise to calibrate: take more rounds or another "
            "schedule (one drawn at random has a release for sure with "
            "algorithm.final_release=true), or drop dp.epsilon"
        )
    for entry in ledger.entries:
        if entry.kind == "nonprivate" and entry.count:
            raise PrivacyError(
                f"release '{entry.name}' is made without noise: no epsilon can be met; choose a "
                "mechanism other than none"
            )
