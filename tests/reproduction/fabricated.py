"""Finished runs made up by a test: real plans and the real store, invented metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpfl_cli.reproduction.declaration import Artifact, load_artifact
from dpfl_cli.reproduction.grid import Cell, cells
from dpfl_cli.simulation.results import privacy_report, summary
from dpfl_cli.simulation.store import SCHEMA_VERSION, RunRecord, RunStore, json_text, metrics_csv, yaml_text

SMALL = {
    "title": "Two methods",
    "shows": "What a test shows.",
    "source": "a test",
    "scales": {
        "smoke": {"seeds": 2, "minutes": 0.1, "set": {"rounds": 2}},
        "quick": {"seeds": 3, "minutes": 1.0},
        "paper": {"seeds": 3, "minutes": 1.0},
    },
    "runs": [
        {
            "overrides": [
                "dataset=synthetic",
                "dp=ldp",
                "dataset.clients=8",
                "dataset.dimension=4",
                "algorithm.local_steps=2",
                "rounds=4",
            ],
            "axes": {
                "method": {
                    "cases": {"FedEXP": {"overrides": ["algorithm=fedexp"]}, "FedAvg": {"overrides": ["algorithm=fedavg"]}}
                },
                "local_lr": {"key": "algorithm.local_lr", "values": [0.001, 0.003, 0.01]},
            },
        }
    ],
    "measures": {
        "distance": {"metric": "distance", "at": "last", "better": "lower", "decimals": 2},
        "curve": {"metric": "distance", "at": "series", "better": "lower"},
        "step": {"metric": "server_step", "at": "last", "absent": 1.0},
    },
    "best": [{"over": ["local_lr"], "measure": "distance"}],
    "tables": [{"rows": ["method"], "columns": ["local_lr"], "cells": ["distance"]}],
    "figure": {"kind": "lines", "x": "round", "measures": ["curve"], "series": "method", "where": {"local_lr": 0.003}},
    "claims": [
        {
            "id": "order",
            "text": "FedEXP ends closer than FedAvg",
            "source": "a test",
            "predicate": " < ".join(f"value('distance', method='{one}', local_lr=0.003)" for one in ("FedEXP", "FedAvg")),
            "expected": "holds",
        }
    ],
}


def declared(folder: Path, name: str = "small", **changes: Any) -> Artifact:
    """SMALL with changed parts (None takes one out), as an artifact of one's own in a yaml file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    values = {key: value for key, value in {**SMALL, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    load_artifact.cache_clear()
    return load_artifact(str(path))


Curve = Callable[[Mapping[str, Any], int, int], Mapping[str, float]]


def publish_runs(
    artifact: Artifact,
    scale: str,
    store: RunStore,
    curve: Curve,
    diverged: Callable[[Mapping[str, Any], int], bool] | None = None,
) -> list[Cell]:
    """Publishes every run of an artifact with metrics `curve(labels, seed, round)`; returns its cells."""
    store.prepare()
    found = cells(artifact, scale)
    for cell in found:
        bad = diverged is not None and diverged(cell.labels, cell.seed)
        last = 1 if bad else cell.plan.rounds
        rows = [{"round": number, **curve(cell.labels, cell.seed, number)} for number in range(last + 1)]
        publish_run(cell, store, rows, "diverged" if bad else "done")
    return found


def publish_run(cell: Cell, store: RunStore, rows: Sequence[Mapping[str, float]], status: str = "done") -> RunRecord:
    plan = cell.plan
    result = {
        "schema_version": SCHEMA_VERSION,
        "id": plan.id,
        "status": status,
        "seed": plan.seed,
        "rounds": len(rows) - 1,
        "metrics": summary([dict(row) for row in rows], plan.evaluation.final_window),
        "privacy": privacy_report(plan, plan.ledger()),
        "data": {"name": plan.info.name, "source": plan.info.source, "sha256": plan.info.sha256, "clients": plan.clients},
        "communication": {"uplink_floats": 40.0 * (len(rows) - 1), "uses_curvature": plan.algorithm.name == "fedexp"},
        "timing": {
            "seconds": 1.5,
            "seconds_per_round": 0.5,
            "compute": {str(int(row["round"])): 0.25 + 0.5 * row["round"] for row in rows},
        },
    }
    return store.publish(
        plan.id,
        {
            "config.yaml": yaml_text(plan.identity),
            "metrics.csv": metrics_csv(rows),
            "ledger.json": json_text(plan.ledger().to_json()),
            "result.json": json_text(result),
        },
    )
