"""What a finished run says of itself: the files of its folder."""

from __future__ import annotations

import io
import platform
import traceback
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

import dpfl_cli
from dpfl_cli.config.errors import DpflError
from dpfl_cli.privacy.accountants import price
from dpfl_cli.privacy.collusion import collusion
from dpfl_cli.privacy.conventions import priced_part
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.mean_alone import mean_alone
from dpfl_cli.simulation.engine import Member, Row, federation_of, noise_device, pick_device
from dpfl_cli.simulation.memory import peak_bytes, peak_device_bytes
from dpfl_cli.simulation.noise import calibration_text, nominal_because
from dpfl_cli.simulation.plan import Plan, gap
from dpfl_cli.simulation.store import CLAIMED, SCHEMA_VERSION, json_text, metrics_csv, yaml_text

_CURVATURE = frozenset({"damped_solve", "newton_direction", "covariance", "clipped_covariance"})  # of an algorithm's `needs`


def run_files(member: Member, status: str, reason: str | None = None) -> dict[str, str | bytes]:
    """The files that a run publishes, by name."""
    plan = member.plan
    files: dict[str, str | bytes] = {
        "config.yaml": yaml_text(plan.identity),
        "metrics.csv": metrics_csv(member.rows),
        "ledger.json": json_text(member.ledger.to_json()),
        "result.json": json_text(_result(member, status, reason)),
    }
    if status != "failed":  # the data may be what failed
        files["partition.npz"] = _partition(plan)
    return files


def privacy_report(plan: Plan, ledger: Ledger, failed: bool = False) -> dict[str, Any]:
    """The privacy of a ledger, as every row that carries an epsilon states it; none is stated of a run that failed."""
    accountant = plan.accountant_object()
    honest = price(ledger, accountant, plan.dp.delta)
    if plan.dp.trust == "none":  # also where nothing happened to be released
        honest = replace(honest, epsilon=None, reason="not private", vacuous=False)
    report: dict[str, Any] = {
        "epsilon": honest.epsilon,
        "delta": plan.dp.delta,
        "accountant": plan.accountant.name,
        "unit": plan.dp.unit,
        "relation": plan.dp.relation,
        "trust": plan.dp.trust,
        "releases": ledger.releases,
        "guarantee": _guarantee(plan, ledger),
        "vacuous": honest.vacuous,
        "not_covered": plan.not_covered(),
    }
    if plan.dp.epsilon is not None:
        report["epsilon_target"] = plan.dp.epsilon
    set_by = calibration_text(plan, ledger)
    if set_by is not None:
        report["calibration"] = set_by
    if honest.epsilon is None:
        report["epsilon_reason"] = honest.reason
    if failed:
        report |= {"epsilon": None, "epsilon_reason": "the run failed", "vacuous": False, "guarantee": "none: the run failed"}
        return report
    convention = plan.dp.convention or getattr(plan.algorithm.target, "convention", None)
    if convention is not None and plan.dp.trust != "none":
        part, words = priced_part(convention, ledger)
        value = price(part, accountant, plan.dp.delta).epsilon if part.releases else None
        report["epsilon_paper"] = {"value": value, "convention": words}
    if plan.dp.trust == "local":
        report |= _central(plan, ledger)
    proved = gap(plan.algorithm, plan.mechanism, plan.dp.trust) is None
    if plan.dp.trust == "secure_aggregation" and ledger.releases and proved:
        report["collusion"] = collusion(ledger, plan.clients, accountant, plan.dp.delta)
    return report


def _guarantee(plan: Plan, ledger: Ledger) -> str:
    if plan.dp.trust == "none":
        return "none: values are released as they are"
    if not ledger.releases:
        return "nothing was released"
    missing = gap(plan.algorithm, plan.mechanism, plan.dp.trust)
    stated = f"(epsilon, delta)-DP per {plan.dp.unit} under {plan.dp.relation}, {plan.dp.trust} trust: proved"
    if missing is not None:
        stated = f"{CLAIMED}: {missing}"
    why = nominal_because(plan, ledger)
    if why is not None:
        stated += f"; this epsilon is the ledger's, dp.epsilon is nominal ({why})"
    return stated


def _central(plan: Plan, ledger: Ledger) -> dict[str, Any]:
    """`epsilon_central`: what messages are worth against somebody who sees no more of them than their mean; {} if undefined."""
    seen = mean_alone(ledger, plan.clients)
    if seen is None or not seen.releases:
        return {}
    reading = "for information: against somebody who is shown the mean of the messages by a trusted party, and nothing else"
    if not all(spec.sums_suffice for spec in plan.specs):
        reading += "; not proved where clients go on from their own messages, as they do here"
    found = price(seen, plan.accountant_object(), plan.dp.delta)
    why = {} if found.reason is None else {"reason": found.reason}
    return {"epsilon_central": {"value": found.epsilon, "reading": reading, **why}}


def communication(plan: Plan, ledger: Ledger) -> dict[str, Any]:
    """What one client sent over the run, in numbers as they were released, and whether the method looks at second derivatives."""
    needs: frozenset[str] = getattr(plan.algorithm.target, "needs", frozenset())
    return {"uplink_floats": ledger.floats, "uses_curvature": bool(needs & _CURVATURE)}


def _result(member: Member, status: str, reason: str | None) -> dict[str, Any]:
    plan = member.plan
    result: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "id": plan.id,
        "status": status,
        "seed": plan.seed,
        "rounds": member.round,
        "metrics": summary(member.rows, plan.evaluation.final_window),
        "diagnostics": member.unreleased,  # reported metrics that look at client data without a release
        "privacy": privacy_report(plan, member.ledger, failed=status == "failed"),
        "communication": communication(plan, member.ledger),
        "data": {
            "name": plan.info.name,
            "source": plan.info.source,
            "sha256": plan.info.sha256,
            "clients": plan.clients,
            **plan.info.details,
        },
        "timing": {
            "seconds": member.seconds,
            "seconds_per_round": member.seconds / max(member.round, 1),
            "peak_bytes": peak_bytes(),  # of the process; the run's own where it was made alone, for its times
            "peak_device_bytes": peak_device_bytes(),
            **({} if plan.flops_per_round is None else {"flops_per_round": plan.flops_per_round}),
            "compute": {str(number): seconds for number, seconds in member.compute_at.items()},  # until each evaluated round
        },
        "environment": environment(plan),
    }
    if reason is not None:
        result["reason"] = reason
    return result


def summary(rows: Sequence[Row], window: int) -> dict[str, dict[str, float]]:
    """first, last and final (mean over the last `window` evaluations) value of every metric."""
    if not rows:
        return {}
    names = [name for name in rows[-1] if name != "round"]
    final = {name: float(np.mean([row[name] for row in rows[-window:] if name in row])) for name in names}
    return {
        "first": {name: value for name, value in rows[0].items() if name != "round"},
        "last": {name: rows[-1][name] for name in names},
        "final": final,
    }


def environment(plan: Plan) -> dict[str, Any]:
    """Where and with what the run was computed."""
    device = pick_device(plan.runtime.device)
    return {
        "dpfl": dpfl_cli.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "system": platform.system(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "noise": "host" if noise_device(plan.runtime.noise, device) is None else "device",
        "threads": torch.get_num_threads(),
    }


def _partition(plan: Plan) -> bytes:
    partition = federation_of(plan).partition
    return _packed(partition.indices.astype(np.int32).tobytes(), partition.offsets.tobytes(), partition.offsets.dtype.str)


@lru_cache(maxsize=2)  # the runs of a grid often share their partition
def _packed(indices: bytes, offsets: bytes, kind: str) -> bytes:
    """The file partition.npz."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, indices=np.frombuffer(indices, np.int32), offsets=np.frombuffer(offsets, kind))
    return buffer.getvalue()


def failure_reason(error: BaseException) -> str:
    """An exception as one line."""
    if isinstance(error, DpflError):
        return str(error)
    return " ".join(traceback.format_exception_only(error)[-1].split())
