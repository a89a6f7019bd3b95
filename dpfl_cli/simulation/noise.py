"""The noise of a planned run: from a target epsilon, by an accountant or by a paper's closed form, or as it was given.

What the ledger is worth is the accountants' business whatever set the noise; where a target is nominal `privacy.nominal` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dpfl_cli.config.component import Settings, parse_settings
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.config.schema import DpSettings
from dpfl_cli.privacy.accountants import Accountant, accountant
from dpfl_cli.privacy.calibration import calibrate, refuse_hopeless
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.mechanism import ReleaseSpec
from dpfl_cli.privacy.nominal import EXCEEDED, FORMULAS, NOMINAL_SIGN, lemma1, proved_from, record_heuristic, why_nominal

if TYPE_CHECKING:
    from dpfl_cli.simulation.plan import Plan

_PROVED = {"zcdp": "zcdp", "analytic": "gdp"}  # the accountants that are these closed forms
_OPTIONS = ("calibration", "v", "releases")


def check_calibration(dp: DpSettings) -> None:
    """Refuses options of calibration where nothing is calibrated, and a constant without its formula."""
    if dp.epsilon is None or dp.trust == "none":
        for name in _OPTIONS:
            value = getattr(dp, name)
            if value != DpSettings.model_fields[name].default:
                why = "without privacy there is" if dp.trust == "none" else "without a target epsilon there is"
                do = "drop it" if dp.trust == "none" else "give dp.epsilon, or drop it"
                raise ConfigError(f"dp.{name}={value}: {why} no noise to calibrate; {do}")
    elif dp.calibration == "lemma1" and dp.v is None:
        raise ConfigError(
            f"dp.calibration=lemma1 needs its constant: give dp.v (proved from {proved_from(dp.epsilon, dp.delta)} on)"
        )
    elif dp.calibration != "lemma1" and dp.v is not None:
        raise ConfigError(f"dp.v={dp.v:g}: dp.calibration={dp.calibration} has no constant; drop dp.v, or dp.calibration=lemma1")


def calibration_text(plan: Plan, ledger: Ledger) -> str | None:
    """What set the noise of a run, for tables and reports; None where the run's accountant did.

    It names no numbers of seeds or targets, so that runs of a grid share it.
    """
    dp = plan.dp
    if dp.epsilon is None or (dp.calibration == "accountant" and dp.releases == "realised"):
        return None
    text = dp.calibration + (f" (v={dp.v:g})" if dp.v is not None else "")
    if dp.releases == "expected":
        exceeded = ledger.releases > counted_ledger(plan).releases
        text += f", for {EXCEEDED}" if exceeded else ", for the expected number of releases"
    return text + ("" if nominal_because(plan, ledger) is None else NOMINAL_SIGN)


def nominal_because(plan: Plan, ledger: Ledger) -> str | None:
    """Why the target of a run with this ledger is nominal; None where its noise is proved to meet it, or there is no target."""
    dp = plan.dp
    if dp.epsilon is None:
        return None
    return why_nominal(dp.calibration, dp.v, dp.epsilon, dp.delta, counted_ledger(plan).releases, ledger.releases)


def counted_ledger(plan: Plan) -> Ledger:
    """The ledger that the noise of a plan with a target is for: of its own releases, or of as many as expected."""
    return planned_ledger(_as_counted(plan), plan.mechanism.settings, plan.rounds)


def planned_ledger(plan: Plan, mechanism_settings: Settings, rounds: int) -> Ledger:
    """The ledger of `rounds` rounds under given mechanism settings."""
    where = (plan.dp.relation, plan.dp.unit, plan.dimension, plan.clients, plan.seed)
    entries = [
        plan.mechanism.target.planned(mechanism_settings, spec, *where, rounds=rounds, horizon=max(rounds, plan.rounds))
        for spec in plan.specs
    ]
    return Ledger(tuple(entry for entry in entries if entry is not None))


def with_noise(plan: Plan, fewest: Callable[[], int]) -> Plan:
    """The plan with noise for its target epsilon, or as it is where it has none.

    Args:
      fewest: records of the client with the fewest.
    """
    field = plan.mechanism.target.noise_field
    target = plan.dp.epsilon
    if target is None:
        return plan
    if plan.dp.trust == "none" or field is None:
        raise ConfigError(
            f"dp.epsilon={target}: mechanism={plan.mechanism.name} adds no noise to calibrate; choose dp=ldp or dp=cdp"
        )
    if getattr(plan.mechanism.settings, field) is not None:
        raise ConfigError(
            f"mechanism.{field} and dp.epsilon are both given: a noise level and a target exclude each other; drop one of them"
        )

    def settings_of(noise: float) -> Settings:
        values = {**plan.mechanism.settings.model_dump(), field: noise}
        settings: Settings = parse_settings(plan.mechanism.component.settings, values, "mechanism")
        return settings

    counted = _as_counted(plan)
    own = plan.accountant_object()
    probe = planned_ledger(counted, settings_of(1.0), plan.rounds)
    reason = own.supports(probe)
    if reason is not None:
        raise ConfigError(f"accountant={plan.accountant.name} cannot price this run: {reason}")
    increasing = any(entry.kind == "pure" for entry in probe.entries)

    def ledger_of(value: float) -> Ledger:
        return planned_ledger(counted, plan.mechanism.target.as_calibrated(settings_of(value)), plan.rounds)

    try:
        if plan.dp.calibration in FORMULAS:
            noise = _by_formula(plan, probe, own, fewest)
        else:
            noise = calibrate(target, plan.dp.delta, _calibrating(plan, own, probe), ledger_of, increasing=increasing)
    except PrivacyError as error:
        raise ConfigError(f"{plan.label}: {error}") from error  # one of a grid
    noise = towards_more_noise(noise, increasing)
    calibrated = replace(plan, mechanism=replace(plan.mechanism, settings=settings_of(noise)))
    try:
        calibrated.mechanism.target.check(calibrated.mechanism.settings, plan.dimension)
    except ConfigError as error:
        raise ConfigError(
            f"dp.epsilon={target:g}: mechanism={plan.mechanism.name} cannot be set up with {field}={noise:g}, which it takes "
            f"({error}); choose another target"
        ) from error
    return calibrated


def _as_counted(plan: Plan) -> Plan:
    """The plan with the releases that its noise is for: its own, or as many as a random schedule makes on average, in the first
    rounds."""
    if plan.dp.releases == "realised":
        return plan
    if all(spec.expected is None for spec in plan.specs):
        raise ConfigError(
            f"dp.releases=expected: algorithm={plan.algorithm.name} draws no schedule at random; write dp.releases=realised"
        )
    return replace(plan, specs=tuple(_spec_as_expected(spec, plan.rounds) for spec in plan.specs))


def _spec_as_expected(spec: ReleaseSpec, rounds: int) -> ReleaseSpec:
    """A spec whose releases happen in the first rounds, in as many as expected: a whole number, at least 1."""
    if spec.expected is None:
        return spec
    number = max(1, math.ceil(spec.expected(rounds) * (1 - 1e-12)))  # p T is rounded
    return replace(spec, occurs=partial(_first, number))


def _first(number: int, seed: int, rounds: int) -> np.ndarray:
    return np.arange(rounds) < number


def _calibrating(plan: Plan, own: Accountant, probe: Ledger) -> Accountant:
    """The accountant to whose word the target refers."""
    if plan.dp.calibration == "accountant":
        return own
    chosen = accountant(_PROVED[plan.dp.calibration])
    for entry in probe.entries:
        if entry.kind not in chosen.kinds:
            raise ConfigError(
                f"dp.calibration={plan.dp.calibration} is for Gaussian noise, but mechanism={plan.mechanism.name} makes "
                f"{entry.kind} releases; write dp.calibration=accountant"
            )
    return chosen


def _by_formula(plan: Plan, probe: Ledger, own: Accountant, fewest: Callable[[], int]) -> float:
    """The noise multiplier by the formula of a paper; refused for what it does not speak of."""
    dp = plan.dp
    assert dp.epsilon is not None
    says = f"dp.calibration={dp.calibration}"
    if dp.unit != "client":
        raise ConfigError(f"{says} is for whole clients, but dp.unit={dp.unit}; write dp.calibration=accountant")
    others = sorted({entry.kind for entry in probe.entries} - {"gaussian"})
    if others:
        raise ConfigError(
            f"{says} is for Gaussian noise, but mechanism={plan.mechanism.name} makes {others[0]} releases; "
            "write dp.calibration=accountant"
        )
    if len(plan.specs) != 1 or not _is_one_vector(plan.specs[0]):
        made = ", ".join(_described(spec) for spec in plan.specs)
        raise ConfigError(
            f"{says} is for one vector release per communication, all with the same noise, but algorithm={plan.algorithm.name} "
            f"releases {made}; write dp.calibration=accountant"
        )
    refuse_hopeless(probe, own)
    if dp.calibration == "lemma1":
        assert dp.v is not None
        found = lemma1(dp.epsilon, dp.delta, probe.releases, dp.v)
    else:
        found = record_heuristic(dp.epsilon, dp.delta, probe.releases, fewest(), dp.relation)
    if not 0 < found < math.inf:
        raise ConfigError(f"dp.epsilon={dp.epsilon:g}: {says} gives it a noise multiplier of {found:g}; choose another target")
    return found


def _is_one_vector(spec: ReleaseSpec) -> bool:
    """Whether it is one vector of a whole client per communication, with the mechanism's own noise throughout."""
    plain = spec.schedule is None and spec.multiplier is None and spec.rate is None and spec.disjoint == 1
    return spec.shape == "vector" and spec.per_round == 1 and not spec.quantity and plain


def _described(spec: ReleaseSpec) -> str:
    often = f"{spec.per_round} times " if spec.per_round > 1 else ""
    own = " with noise of its own" if spec.schedule is not None or spec.multiplier is not None else ""
    return f"{often}'{spec.name}' ({spec.shape}){own}"


def towards_more_noise(value: float, increasing: bool) -> float:
    """The value to 7 significant digits, rounded so that epsilon does not grow: identities must not hang on the last bits.

    >>> towards_more_noise(1.23456789, increasing=False), towards_more_noise(1.23456789, increasing=True)
    (1.234568, 1.234567)
    """
    unit = Decimal(1).scaleb(Decimal(value).adjusted() - 6)
    return float(Decimal(value).quantize(unit, rounding=ROUND_FLOOR if increasing else ROUND_CEILING))
