"""The noise of a planned run: from a target epsilon, by an accountant or by a paper's closed form,
or as it was given.

What the ledger is worth is the accountants' business whatever set the noise; where a target is
nominal `privacy.nominal` says.
"""

import math
from dataclasses import replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

import numpy as np

from dpfl_cli.config.component import parse_settings
from dpfl_cli.config.errors import ConfigError, PrivacyError
from dpfl_cli.config.schema import DpSettings
from dpfl_cli.privacy.accountants import accountant
from dpfl_cli.privacy.calibration import calibrate, refuse_hopeless
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.nominal import (
    EXCEEDED,
    FORMULAS,
    NOMINAL_SIGN,
    lemma1,
    proved_from,
    record_heuristic,
    why_nominal,
)
from dpfl_cli.privacy.releases import ReleaseSpec
from dpfl_cli.simulation.run_plan import Plan

PROVED = {"zcdp": "zcdp", "analytic": "gdp"}  # the accountants that are these closed forms
_calibrated: dict[object, float] = {}  # noise multipliers by what they follow from, for a grid


def check_calibration(dp: DpSettings) -> None:
    """Refuses options of calibration where nothing is calibrated, and a constant without its
    formula.
    """
    if dp.epsilon is None or dp.trust == "none":
        for name, value in dp.identity().items():  # what is not at its default
            if name in ("calibration", "v", "releases"):
                what, do = "a target epsilon", "give dp.epsilon, or drop it"
                if dp.trust == "none":
                    what, do = "privacy", "drop it"
                raise ConfigError(
                    f"dp.{name}={value}: without {what} there is no noise to calibrate; {do}"
                )
    elif dp.calibration == "lemma1" and dp.v is None:
        raise ConfigError(
            "dp.calibration=lemma1 needs its constant: give dp.v (proved from "
            f"{proved_from(dp.epsilon, dp.delta)} on)"
        )
    elif dp.calibration != "lemma1" and dp.v is not None:
        raise ConfigError(
            f"dp.v={dp.v:g}: dp.calibration={dp.calibration} has no constant; drop dp.v, or "
            "dp.calibration=lemma1"
        )


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
    """Why the target of a run with this ledger is nominal; None where its noise is proved to meet
    it, or there is no target.
    """
    dp = plan.dp
    if dp.epsilon is None:
        return None
    return why_nominal(
        dp.calibration, dp.v, dp.epsilon, dp.delta, counted_ledger(plan).releases, ledger.releases
    )


def counted_ledger(plan: Plan) -> Ledger:
    """The ledger that the noise of a plan with a target is for: of its own releases, or of as many
    as expected.
    """
    return _as_counted(plan).ledger()


def with_noise(plan: Plan) -> Plan:
    """The plan with noise for its target epsilon, or as it is where it has none."""
    dp, mechanism = plan.dp, plan.mechanism
    target, field = dp.epsilon, mechanism.target.noise_field
    if target is None:
        return plan
    if dp.trust == "none" or field is None:
        raise ConfigError(
            f"dp.epsilon={target}: mechanism={mechanism.name} adds no noise to calibrate; choose "
            "dp=ldp or dp=cdp"
        )
    if getattr(mechanism.settings, field) is not None:
        raise ConfigError(
            f"mechanism.{field} and dp.epsilon are both given: a noise level and a target exclude "
            "each other; drop one of them"
        )

    def settings_of(noise: float) -> Any:
        values = {**mechanism.settings.model_dump(), field: noise}
        return parse_settings(mechanism.component.settings, values, "mechanism")

    counted = _as_counted(plan)

    def calibrated(noise: float) -> Ledger:
        settings = mechanism.target.as_calibrated(settings_of(noise))
        return mechanism.target.planned(settings, counted.specs, counted.setup)

    probe = calibrated(1.0)
    increasing = any(entry.kind == "pure" for entry in probe.entries)
    closed = PROVED.get(dp.calibration)
    word = accountant(closed) if closed else plan.accountant_object()  # by which it is meant
    known = word.knows if closed else "gaussian".__eq__  # formulas are of Gaussian noise alone
    others = sorted({one.kind for one in probe.entries if not known(one.kind)})
    if dp.calibration != "accountant" and others:
        raise ConfigError(
            f"dp.calibration={dp.calibration} is for Gaussian noise, but "
            f"mechanism={plan.mechanism.name} makes {others[0]} releases; write "
            "dp.calibration=accountant"
        )
    try:
        if dp.calibration in FORMULAS:
            noise = _by_formula(plan, probe)
        else:
            # what noise follows from, where dpfl's code alone makes a ledger of it
            bent = plan.algorithm.plugin and any(spec.multiplier for spec in plan.specs)
            key: object = None
            if not (mechanism.plugin or plan.accountant.plugin or bent):
                key = dp.calibration, target, dp.delta, plan.accountant, probe, calibrated(2.0)
            noise = _calibrated.get(key) or calibrate(
                target, dp.delta, word, calibrated, increasing=increasing
            )
            if key:
                _calibrated[key] = noise
    except PrivacyError as error:
        raise ConfigError(f"{plan.label}: {error}") from error  # one of a grid
    noise = towards_more_noise(noise, increasing)
    return replace(plan, mechanism=replace(mechanism, settings=settings_of(noise)))


def _as_counted(plan: Plan) -> Plan:
    """The plan with the releases that its noise is for: its own, or as many as a random schedule
    makes on average, in the first rounds: a whole number, at least 1.
    """
    if plan.dp.releases == "realised":
        return plan
    if all(spec.expected is None for spec in plan.specs):
        raise ConfigError(
            f"dp.releases=expected: algorithm={plan.algorithm.name} draws no schedule at random; "
            "write dp.releases=realised"
        )
    rounds = np.arange(plan.rounds)
    specs = [
        spec
        if spec.expected is None
        else replace(spec, made=rounds < max(1, math.ceil(spec.expected * (1 - 1e-12))))
        for spec in plan.specs  # p T is rounded
    ]
    return replace(plan, specs=tuple(specs))


def _by_formula(plan: Plan, probe: Ledger) -> float:
    """The noise multiplier by the formula of a paper; refused for what it does not speak of."""
    dp = plan.dp
    assert dp.epsilon is not None
    says = f"dp.calibration={dp.calibration}"
    if dp.unit != "client":
        raise ConfigError(
            f"{says} is for whole clients, but dp.unit={dp.unit}; write dp.calibration=accountant"
        )
    vectors = [  # of a whole client, once a communication, with the mechanism's own noise
        one
        for one in plan.specs
        if (one.shape, one.quantity, one.rate) == ("vector", "", None)
        and one.per_round == one.disjoint == 1
        and not _own_noise(one)
    ]
    if len(plan.specs) != 1 or not vectors:
        made = ", ".join(_described(spec) for spec in plan.specs)
        raise ConfigError(
            f"{says} is for one vector release per communication, all with the same noise, but "
            f"algorithm={plan.algorithm.name} releases {made}; write dp.calibration=accountant"
        )
    refuse_hopeless(probe)
    if dp.calibration == "lemma1":
        assert dp.v is not None
        found = lemma1(dp.epsilon, dp.delta, probe.releases, dp.v)
    else:
        fewest = plan.setup.fewest()
        found = record_heuristic(dp.epsilon, dp.delta, probe.releases, fewest, dp.relation)
    if not 0 < found < math.inf:
        raise ConfigError(
            f"dp.epsilon={dp.epsilon:g}: {says} gives it a noise multiplier of {found:g}; choose "
            "another target"
        )
    return found


def _own_noise(spec: ReleaseSpec) -> bool:
    return spec.factors is not None or spec.multiplier is not None


def _described(spec: ReleaseSpec) -> str:
    often = f"{spec.per_round} times " if spec.per_round > 1 else ""
    own = " with noise of its own" if _own_noise(spec) else ""
    return f"{often}'{spec.name}' ({spec.shape}){own}"


def towards_more_noise(value: float, increasing: bool) -> float:
    """The value to 7 significant digits, rounded so that epsilon does not grow: identities must not
    hang on the last bits.

    >>> [towards_more_noise(1.23456789, increasing) for increasing in (False, True)]
    [1.234568, 1.234567]
    """
    digits = Context(prec=7, rounding=ROUND_FLOOR if increasing else ROUND_CEILING)
    return float(digits.create_decimal(value))
