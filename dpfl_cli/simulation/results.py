"""What a finished run says of itself: the files of its folder."""

import io
import os
import platform
import subprocess
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dpfl_cli
from dpfl_cli.config.component import lookup
from dpfl_cli.config.errors import (
    DpflError,
    PrivacyError,
    UnknownOption,
    place_in_plugin,
    raised_by_dpfl,
    without_values,
)
from dpfl_cli.config.identity import stored_config
from dpfl_cli.config.paths import COMMAND
from dpfl_cli.data.devices import noise_device, pick_device
from dpfl_cli.data.federation import Federation
from dpfl_cli.data.programs import fallbacks
from dpfl_cli.privacy.accountants import price
from dpfl_cli.privacy.draws import Sampling
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.views import CONVENTIONS, collusion, mean_alone
from dpfl_cli.simulation.checked import failed_check, unchecked
from dpfl_cli.simulation.checks import proof_gap
from dpfl_cli.simulation.member import Member, MetricsRow
from dpfl_cli.simulation.memory import peak_bytes, peak_device_bytes
from dpfl_cli.simulation.noise import calibration_text, nominal_because
from dpfl_cli.simulation.run_plan import Plan, federation_of
from dpfl_cli.simulation.store import (
    CLAIMED,
    MODEL,
    delta_warning,
    json_text,
    metrics_csv,
    sealed,
    yaml_text,
)

Report = dict[str, Any]  # a part of result.json
# of an algorithm's `needs`
CURVATURE = frozenset({"damped_solve", "newton_direction", "covariance", "clipped_covariance"})


def run_files(member: Member, status: str, reason: str | None = None) -> dict[str, bytes]:
    """The files that a run publishes, by name."""
    plan = member.plan
    config = stored_config(plan.config, plan.identity)
    largest = {} if status == "failed" else _largest_class(plan)  # the data may be what failed
    # of a plugin's data nobody knows whose the tests are
    owned = bool(largest) and (plan.dataset.plugin or federation_of(plan).dataset.tests_owned)
    result: Report = {
        "id": plan.id,
        "status": status,
        "seed": plan.seed,
        "rounds": member.round,
        "metrics": summary(member.rows, plan.evaluation.final_window),
        # reported metrics that look at client data without a release
        "diagnostics": [*member.unreleased, *(largest if owned else ())],
        "privacy": privacy_report(plan, _priced(member), status == "failed", member.claims),
        "communication": communication(plan, member.ledger),
        "data": {
            "name": plan.info.name,
            "source": plan.info.source,
            "sha256": plan.info.sha256,
            "clients": plan.clients,
            **largest,
            **plan.info.details,
        },
        "timing": {
            "seconds": member.seconds,
            "seconds_per_round": member.seconds / max(member.round, 1),
            # of the process; the run's own where it was made alone, for its times
            "peak_bytes": peak_bytes(),
            "peak_device_bytes": peak_device_bytes(),
            "flops_per_round": plan.flops_per_round,
            "compute": member.compute_at,  # until each evaluated round
        },
        "environment": environment(plan),
        "origin": origin(),
        **({} if reason is None else {"reason": reason}),
        "config": config,
    }
    files: dict[str, str | bytes] = {
        "config.yaml": yaml_text(config),
        "metrics.csv": metrics_csv(member.rows),
        "ledger.json": json_text(_priced(member).to_json()),
    }
    if status != "failed":
        files["partition.npz"] = _partition(federation_of(plan))
        if plan.runtime.keep_model:
            model = torch.stack(member.recent).mean(0).numpy(force=True)  # evaluated last, [d]
            files[MODEL] = _npz(np.savez, model=model)
    return sealed(files, result)


def _largest_class(plan: Plan) -> Report:
    """The share in percent of the test records that their largest class has: the accuracy of one
    answer for all.
    """
    test = federation_of(plan).dataset.test
    if plan.info.classes is None or test is None or test.targets.ndim != 1:
        return {}
    return {"largest_class": 100 * float(np.unique_counts(test.targets).counts.max() / len(test))}


def privacy_report(
    plan: Plan, ledger: Ledger, failed: bool = False, claims: Sequence[str] = ()
) -> Report:
    """The privacy of a ledger, as every row that carries an epsilon states it; none is stated of a
    run that failed.

    Priced here once, for result.json; reports and tables read it there.
    """
    report = privacy_statement(plan, ledger, failed, claims)
    if "epsilon_reason" in report:
        return report
    accountant, delta, trust = plan.accountant_object(), plan.dp.delta, plan.dp.trust
    honest = price(ledger, accountant, delta)
    report |= {"epsilon": honest.epsilon, "vacuous": honest.vacuous}
    if honest.epsilon is None:
        report["epsilon_reason"] = honest.reason
        if honest.reason == "not private":
            report["guarantee"] = "none: its epsilon is infinite"
    report |= paper_price(plan, ledger)
    # of a method that needs nothing but means: others make of messages what their next ones show;
    # and whose clients' contributions have one bound, which a plugin's need not, nor need the noise
    # of its messages be independent
    own = plan.algorithm.plugin or plan.mechanism.plugin
    means = "secure_aggregation" in plan.algorithm.target.trusts and not own
    if trust == "local" and means and (seen := mean_alone(ledger, plan.clients)) is not None:
        found = price(seen, accountant, delta)
        why = {} if found.reason is None else {"reason": found.reason}
        report["epsilon_central"] = {"reading": _reading(plan), "value": found.epsilon, **why}
    if trust == "secure_aggregation" and ledger.releases and proof_gap(plan) is None:
        report["collusion"] = collusion(ledger, plan.clients, accountant, delta)
    return report


def privacy_statement(
    plan: Plan, ledger: Ledger, failed: bool = False, claims: Sequence[str] = ()
) -> Report:
    """What is stated of a ledger's privacy beside prices; why it has none, where that is known.

    Args:
      claims: why bounds were not proved, as releases showed.
    """
    dp = plan.dp
    report: Report = {
        "epsilon": None,
        "delta": dp.delta,
        "accountant": plan.accountant.name,
        "unit": dp.unit,
        "relation": dp.relation,
        "trust": dp.trust,
        "releases": ledger.releases,
        "guarantee": "none: the run failed" if failed else _guarantee(plan, ledger, claims),
        "vacuous": False,
        "not_covered": list(dict.fromkeys(plan.not_covered())),
    }
    if plan.sampling is not None:
        report["participation"] = _participation(plan, plan.sampling)
    elif (text := _batches(plan, ledger)) is not None:
        report["batches"] = text
    if plan.last_round < plan.rounds:
        report["stopped"] = (
            f"before round {plan.last_round + 1} of {plan.rounds}, whose release would take "
            f"epsilon above dp.max_epsilon={dp.max_epsilon:g}"
        )
    if dp.epsilon is not None:
        report["epsilon_target"] = dp.epsilon
    if (set_by := calibration_text(plan, ledger)) is not None:
        report["calibration"] = set_by
    if failed or dp.trust == "none":  # also where nothing happened to be released
        report["epsilon_reason"] = "the run failed" if failed else "not private"
    return report


def paper_price(plan: Plan, ledger: Ledger) -> Report:
    """The epsilon of a ledger under its paper's convention; {} where there is none."""
    convention = CONVENTIONS.get(plan.dp.convention or plan.algorithm.name)
    if convention is None or plan.sampling is not None:
        return {}
    part, words = convention(ledger)
    accountant = plan.accountant_object()
    value = price(part, accountant, plan.dp.delta).epsilon if part.releases else None
    return {"epsilon_paper": {"value": value, "convention": words}}


def _guarantee(plan: Plan, ledger: Ledger, claims: Sequence[str]) -> str:
    if plan.dp.trust == "none":
        return "none: values are released as they are"
    if not ledger.releases:
        return "nothing was released"
    reasons = filter(None, (proof_gap(plan), failed_check(plan), *claims))
    missing = "; ".join(dict.fromkeys(reasons))
    stated = (
        f"(epsilon, delta)-DP per {plan.dp.unit} under {plan.dp.relation}, {plan.dp.trust} trust: "
        "proved"
        if not missing
        else f"{CLAIMED}: {missing}"
    )
    if (check := unchecked(plan)) is not None:
        stated += f"; {check}"
    if plan.own_data:
        stated += "; within the records and clients that code of yours made"
    units = plan.clients if plan.dp.unit == "client" else plan.records
    stated += delta_warning(plan.dp.delta, units, plan.dp.unit)
    if (why := nominal_because(plan, ledger)) is not None:
        stated += f"; this epsilon is the ledger's, dp.epsilon is nominal ({why})"
    return stated


def _participation(plan: Plan, sampling: Sampling) -> str:
    """Who takes part, and whether the epsilon is less for it."""
    size, clients = f"{sampling.size:g}", plan.clients
    text = f"{size} of {clients} clients a round, a uniform subset"
    if sampling.law == "poisson":
        text = f"each of {clients} clients with probability {sampling.rate:g}, {size} on average"
    if plan.dp.trust == "none":
        return text
    if sampling.law in plan.accountant.target.amplifies:
        return f"{text}; amplified by {plan.accountant.name}"
    return f"{text}; accountant={plan.accountant.name} prices it as if all took part"


def _batches(plan: Plan, ledger: Ledger) -> str | None:
    """Whether the epsilon is less for batches that are drawn; None where none are."""
    drawn = [entry for entry in ledger.entries if entry.count and entry.rate is not None]
    if not drawn or plan.dp.trust == "none":
        return None
    largest = max(entry.rate or 0.0 for entry in drawn)
    law = drawn[0].batch
    text = f"at most {largest:.3g} of a client's records, without replacement"
    if law == "poisson":
        text = f"each of a client's records with probability {largest:.3g} at most"
    name, own = plan.accountant.name, plan.accountant.target
    if not any(map(own.misses, drawn)):
        return f"{text}; counted by {name}" + ", as far as its theorem goes" * (law == "subset")
    best = "rdp" if law == "subset" else "pld"
    knows = own if law in own.amplifies_batches else lookup("accountant", best).target
    known = knows.amplifies_batches[law]
    under = "" if plan.dp.relation in known else f" under dp.relation={' or '.join(known)}"
    if knows is own:
        return f"{text}; {name} prices it as if all were in, and amplifies it{under}"
    return f"{text}; {name} prices it as if all were in; accountant={best} amplifies it{under}"


def _reading(plan: Plan) -> str:
    """What `epsilon_central` means, in words."""
    reading = (
        "for information: against somebody who is shown the mean of the messages by a trusted "
        "party, and nothing else"
    )
    if not all(spec.sums_suffice for spec in plan.specs):
        reading += "; not proved where clients go on from their own messages, as they do here"
    return reading


def communication(plan: Plan, ledger: Ledger) -> Report:
    """What one client sent over the run (on average, where clients are drawn), in numbers as they
    were released, and whether the method looks at second derivatives.
    """
    sent = ledger.floats if plan.sampling is None else round(ledger.floats * plan.sampling.rate)
    return {"uplink_floats": sent, "uses_curvature": bool(CURVATURE & plan.algorithm.target.needs)}


def _priced(member: Member) -> Ledger:
    """What a run's epsilon is of: what it released; all that it would have, where it ended early,
    for when it ends depends on what was released.
    """
    return member.ledger if member.diverged is None else member.plan.ledger()


def summary(rows: Sequence[MetricsRow], window: int) -> dict[str, dict[str, float]]:
    """first, last and final (mean over the last `window` evaluations) value of every metric."""
    if not rows:
        return {}
    plain = [{name: row[name] for name in row if name != "round"} for row in rows]
    first, last, recent = plain[0], plain[-1], plain[-window:]
    final = {name: float(np.mean([row[name] for row in recent if name in row])) for name in last}
    return {"first": first, "last": last, "final": final}


def environment(plan: Plan) -> Report:
    """Where and with what the run was computed."""
    device = pick_device(plan.runtime.device)
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "noise": "host" if noise_device(plan.runtime.noise, device) is None else "device",
        "threads": torch.get_num_threads(),
        **({"fallbacks": fallbacks} if fallbacks else {}),
    }


def origin() -> dict[str, str | None]:
    """Who made the run, and when; no part of its identity."""
    return {
        "command": os.environ.get(COMMAND) or None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "dpfl": dpfl_cli.__version__,
        "commit": _commit(),
    }


@cache
def _commit() -> str | None:
    """The git commit of dpfl's source tree, with -dirty where it was edited; None where dpfl was
    installed without it.
    """
    tree = Path(dpfl_cli.__file__).parents[1]
    if not (tree / ".git").exists():  # another tree's, above it, is not dpfl's
        return None
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.check_output(
            command, cwd=tree, stderr=subprocess.DEVNULL, text=True, timeout=10
        ).strip()
    except (OSError, subprocess.SubprocessError):
        return None


@lru_cache(maxsize=2)  # the runs of a grid often share their data
def _partition(federation: Federation) -> bytes:
    """The file partition.npz."""
    dealt = federation.partition
    indices = dealt.indices.astype(np.int32)
    return _npz(np.savez_compressed, indices=indices, offsets=dealt.offsets)


def _npz(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def failure_reason(error: BaseException, private: bool) -> str:
    """An exception as one line; without what a message of code that is not dpfl's may tell of the
    data, where these are private.
    """
    text = str(error)
    if private and not (isinstance(error, DpflError | UnknownOption) and raised_by_dpfl(error)):
        hint = (
            "; its message may tell of the data (`dpfl check FILE`, on made-up data, may show it)"
        )
        return without_values(error) + hint * bool(place_in_plugin(error))
    if not private and isinstance(error, PrivacyError) and error.__cause__ is not None:
        text += f": {error.__cause__}"
    if not isinstance(error, DpflError | UnknownOption):
        text = " ".join(traceback.format_exception_only(error)[-1].split())
    return text + place_in_plugin(error)
