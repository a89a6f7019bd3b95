"""Combinations that make no sense are refused before anything runs, with what to write instead."""

from collections.abc import Callable
from typing import Any

import torch

from dpfl_cli.algorithms.local import BatchSettings
from dpfl_cli.config.component import CLIENT, RECORDS, UNLIMITED, components
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.options import options_of
from dpfl_cli.config.schema import DpSettings, ParticipationSettings, RuntimeSettings
from dpfl_cli.data.devices import pick_device
from dpfl_cli.models.client_side import OWN_MODEL
from dpfl_cli.models.prox import PenaltySettings
from dpfl_cli.privacy.nominal import FORMULAS
from dpfl_cli.privacy.releases import REFILLED, ReleaseSpec
from dpfl_cli.privacy.views import CONVENTIONS
from dpfl_cli.simulation.run_plan import CHOSEN, Choice, Plan

# What clients themselves send, by trust model.
_SENDS = {"local": "message", "secure_aggregation": "share of the noise"}


def check_trust(algorithm: Choice, mechanism: Choice, dp: DpSettings) -> None:
    """Method, mechanism, trust model and unit fit each other."""
    if dp.trust not in algorithm.target.trusts:
        defined = ", ".join(sorted(algorithm.target.trusts))
        raise ConfigError(
            f"algorithm={algorithm.name} is not defined under dp.trust={dp.trust}; it is under "
            f"{defined}"
        )
    if dp.unit != algorithm.target.unit:
        raise ConfigError(
            f"algorithm={algorithm.name} protects a {algorithm.target.unit}, not a {dp.unit} "
            f"(dp={dp.name}); write {_other_unit(algorithm.name, dp)}"
        )
    if dp.trust not in mechanism.target.trusts:
        raise ConfigError(
            f"mechanism={mechanism.name} makes no sense under dp={dp.name} (trust {dp.trust}); "
            f"{_instead('mechanism', lambda target: dp.trust in target.trusts)}"
        )


def _other_unit(algorithm: str, dp: DpSettings) -> str:
    """What to write where a method does not protect what dp.unit says."""
    own = algorithm.removesuffix("_record")
    twin = own if dp.unit == "client" else f"{own}_record"  # the same method for the other unit
    found = components("algorithm").get(twin)
    fits = found and dp.unit == found.target.unit and dp.trust in found.target.trusts
    if dp.unit == "client":
        more = f", or algorithm={twin} for whole clients" if fits else ""
        return f"dp.unit=record, or dp=record{more}"
    choices = "dp=ldp or dp=cdp, or " if dp.name == "record" else ""
    return (f"algorithm={twin}, or " if fits else "") + f"{choices}dp.unit=client"


def proof_gap(plan: Plan) -> str | None:
    """Why the guarantee of a run's method under its trust model is not proved: all the reasons, or
    None.
    """
    trust, algorithm, mechanism = plan.dp.trust, plan.algorithm, plan.mechanism
    if trust == "none":
        return None
    target, noise = algorithm.target, mechanism.target
    whole = noise.whole_noise(mechanism.settings)
    found = [noise.gap(mechanism.settings)]
    found += [
        f"{one.component.group}={one.name} is a plugin's, and nobody has shown that it is right"
        for one in (mechanism, plan.accountant)
        if one.plugin
    ]
    if plan.dp.unit == "record" and plan.model.plugin:
        found.append(OWN_MODEL)
    kept = any(spec.echo and (spec.sums_suffice or not whole) for spec in plan.specs)
    if algorithm.plugin and kept and trust == "secure_aggregation":
        found.append(
            "clients know their own messages (echo), and with them their shares of the noise, "
            "which no release of the sum covers"
        )
    said = vars(target)  # what a method inherits was said of another one
    if "gaps" in said:
        found = [*target.gaps(algorithm.settings, trust, whole), *found]
    elif trust not in said.get("proved", ()):
        found = ["its file gives no proof for this trust model", *found]
    if plan.participation.name == "fixed" and target.away == "rests":
        found.append(
            "participation=fixed: what a client keeps tells in which rounds it took part, and with "
            "it who else did, which the bound for subsets does not cover"
        )
    return "; ".join(reason for reason in found if reason) or None


def check_needs(algorithm: Choice, model: Choice) -> None:
    """The model has what the method computes with (per-record clipping, second-order solves)."""
    needs = algorithm.target.needs
    chosen = algorithm.settings
    size = chosen.batch_size if isinstance(chosen, BatchSettings) else None
    asking = f"algorithm={algorithm.name}" if size is None else f"algorithm.batch_size={size}"
    if size is not None:
        needs |= {"clipped_gradient"}  # models that know single records take batches of them
    missing = sorted(needs - model.target.provides)
    if missing:
        hint = _instead("model", lambda target: set(missing) <= target.provides)
        what = "gradients of single records" if missing[0] == "clipped_gradient" else missing[0]
        own = " or ".join(options_of("model", model.name))
        raise ConfigError(f"{asking} needs {what}, which model={own} does not have; {hint}")
    penalty = model.settings.penalty if isinstance(model.settings, PenaltySettings) else "none"
    if penalty != "none" and not algorithm.target.proximal:
        hint = _instead("algorithm", lambda target: target.proximal)
        raise ConfigError(
            f"model.penalty={penalty}: algorithm={algorithm.name} takes no proximal steps and "
            f"would ignore it; {hint}"
        )


def check_participation(
    chosen: ParticipationSettings, algorithm: Choice, dp: DpSettings, clients: int
) -> None:
    """Clients can be drawn, and method, trust model and relation know what that is."""
    size, says = chosen.cohort, f"participation={chosen.name}"
    if chosen.name == "full":
        if size is not None:
            raise ConfigError(
                f"participation.cohort={size:g}: all clients take part; write "
                "participation=poisson or fixed, or drop it"
            )
        if dp.unit == "client" and dp.relation == "add_or_remove" and dp.trust in _SENDS:
            raise ConfigError(
                f"dp.relation=add_or_remove under dp.trust={dp.trust}: a client that is not there "
                f"sends no {_SENDS[dp.trust]}, which tells whether it is, at any epsilon; write "
                "dp.relation=zero_out, where it sends noise alone (the same sensitivity), or dp=cdp"
            )
        return
    if size is not None and size < 1:
        share = f": {100 * size:g} % of the {clients} that there are is {size * clients:g}"
        raise ConfigError(
            f"participation.cohort={size:g}: fewer than one client a round; it is a number of "
            f"clients{share * (size * clients >= 1)}"
        )
    if size is None or size > clients or (chosen.name == "fixed" and size % 1):
        kind = "" if chosen.name == "poisson" else "whole "
        raise ConfigError(
            f"participation.cohort={'null' if size is None else f'{size:g}'}: there are {clients} "
            f"clients; give a {kind}number of at most that many"
        )
    if dp.unit == "record":
        raise ConfigError(
            f"{says}: drawing clients is priced where whole clients are protected, not under "
            "dp.unit=record; write participation=full"
        )
    if algorithm.target.away is None:
        own = ', or give it @algorithm(..., away="stateless"), or "rests": dpfl new algorithm'
        raise ConfigError(
            f"algorithm={algorithm.name} does not say what becomes of clients that are away "
            f"({says}): its source lets all take part in every round; write participation=full"
            f"{own if algorithm.plugin else ''}"
        )
    if dp.trust in ("local", "secure_aggregation"):
        who = "whoever sees a message" if dp.trust == "local" else "the server that adds them up"
        raise ConfigError(
            f"{says} under dp.trust={dp.trust}: {who} knows who takes part, and nothing is "
            "amplified; write dp=cdp, or participation=full"
        )
    relation = "add_or_remove" if chosen.name == "poisson" else "replace_one"
    if dp.trust == "central" and dp.relation != relation:
        raise ConfigError(
            f"{says} is for dp.relation={relation}, not {dp.relation}: its cohorts differ in one "
            f"client there; write dp.relation={relation}"
        )
    if dp.calibration in FORMULAS:
        raise ConfigError(
            f"dp.calibration={dp.calibration} is for rounds in which all clients take part, not "
            f"{says}; write dp.calibration=accountant"
        )


def check_numbers(plan: Plan) -> None:
    """Clients and records that settings name are there, and what is released is bounded."""
    for group in CHOSEN:
        settings = getattr(plan, group).settings
        for name, field in type(settings).model_fields.items():
            number, option = getattr(settings, name), f"{group}.{name}"
            if number is None:
                if UNLIMITED in field.metadata and plan.dp.trust != "none":
                    raise ConfigError(
                        f"{option}=null under dp.trust={plan.dp.trust}: a release without a bound "
                        "has no sensitivity; give a positive number, or write dp=none"
                    )
            elif CLIENT in field.metadata and number >= plan.clients:
                raise ConfigError(
                    f"{option}={number}: there are {plan.clients} clients, numbered from 0"
                )
            elif RECORDS in field.metadata and number > plan.setup.fewest():
                held = f"only {plan.setup.fewest()} records; take at most that many"
                if plan.dp.unit == "client" and plan.dp.trust != "none":  # whose own number it is
                    held = "fewer records; take less"
                raise ConfigError(
                    f"{option}={number}: a client holds {held}, or deal it more records"
                )


def check_runtime(runtime: RuntimeSettings, dp: DpSettings) -> None:
    """The device is there, and the convention exists."""
    if runtime.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            "runtime.device=cuda: no GPU that torch can use here; write runtime.device=cpu or auto"
        )
    if runtime.noise == "device" and pick_device(runtime.device).type == "cpu":
        raise ConfigError(
            "runtime.noise=device: the run is on a CPU, where the host draws; write "
            "runtime.noise=auto or host"
        )
    if dp.convention is not None and dp.convention not in CONVENTIONS:
        raise ConfigError(
            f"dp.convention={dp.convention}: no such convention; "
            f"{nearest(dp.convention, CONVENTIONS)}"
        )


def check_releases(plan: Plan) -> None:
    """Relation, mechanism and proof know the releases that the method declares."""
    missing = proof_gap(plan)
    if plan.dp.mode == "sound" and missing is not None:
        raise ConfigError(
            f"algorithm={plan.algorithm.name} under dp.trust={plan.dp.trust} is not proved with "
            f"these settings ({missing}): dp.mode=sound refuses it, dp.mode=paper runs it"
        )
    of_batches = [spec for spec in plan.specs if spec.rate is not None or spec.disjoint > 1]
    if plan.dp.unit == "client" and of_batches and plan.dp.trust != "none":
        raise ConfigError(
            f"algorithm={plan.algorithm.name} declares a release of batches of records (rate, "
            "disjoint), which hide a record and no client: leave that out, or protect records"
        )
    replaced = [spec for spec in of_batches if spec.disjoint > 1 or spec.batch != "poisson"]
    if plan.dp.relation == "add_or_remove" and replaced:
        raise ConfigError(f"{REFILLED}, or draw batches by algorithm.sampling=poisson")
    groups: dict[str, ReleaseSpec] = {}
    for spec in plan.specs:
        first = groups.setdefault(spec.group or spec.name, spec)
        times = [one.occurs(plan.rounds) * one.per_round for one in (first, spec)]
        if (times[0] != times[1]).any():
            raise ConfigError(
                f"algorithm={plan.algorithm.name}: releases '{first.name}' and '{spec.name}' of "
                f"group '{spec.group}' are priced jointly, round by round, but are not made "
                "together; give both the same made and per_round, or no group"
            )
    shapes = plan.mechanism.target.shapes
    unknown = next((spec for spec in plan.specs if spec.shape not in shapes), None)
    if unknown is not None:
        shape, trust = unknown.shape, plan.dp.trust
        fitting = _instead("mechanism", lambda one: trust in one.trusts and shape in one.shapes)
        raise ConfigError(
            f"algorithm={plan.algorithm.name} releases a {shape} ('{unknown.name}') that "
            f"mechanism={plan.mechanism.name} cannot release; {fitting}"
        )


def _instead(group: str, fits: Callable[[Any], bool]) -> str:
    """What to write: the options of a group whose classes fit."""
    fitting = (name for name, found in components(group).items() if fits(found.target))
    names = {option for name in fitting for option in options_of(group, name)}
    return f"write {group}={' or '.join(sorted(names))}" if names else f"no {group} fits"
