"""`dpfl account RUN...`: prices finished runs under every accountant that supports their ledger."""

import argparse
from collections.abc import Iterator
from typing import Any

from dpfl_cli.cli.pricing import release_line
from dpfl_cli.cli.tables import (
    collusion_text,
    epsilon_number,
    is_claimed,
    is_nominal,
    make_table,
    wide_console,
)
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.store import RunRecord, RunStore


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids, beginnings of ids, or folders")
    parser.add_argument("--delta", type=float, help="delta (default: the run's own)")


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.privacy.accountants import price_all
    from dpfl_cli.simulation.plan import load_components

    if args.delta is not None and not 0 < args.delta < 1:
        raise ConfigError(f"--delta {args.delta}: must lie strictly between 0 and 1")
    load_components()
    store = RunStore(outputs_dir())
    console = wide_console()
    for record in [store.match(name) for name in args.runs]:
        privacy = record.result["privacy"]
        claimed = " (claimed)" if is_claimed(privacy) else ""
        delta = args.delta or privacy["delta"]
        rows = [
            (
                priced.accountant,
                "" if priced.epsilon is None else f"{priced.epsilon:.6f}{claimed}",
                priced.reason or ("vacuous: above 20" if priced.vacuous else ""),
            )
            for priced in price_all(record.ledger, delta)
        ]
        title = (
            f"{record.id}: {privacy['unit']}, {privacy['relation']}, "
            f"{record.ledger.releases} releases, delta {delta:g}"
        )
        console.print(make_table(("accountant", "epsilon", "remark"), rows, title=title))
        for line in _remarks(record, args.delta):
            console.print(f"  {line}", markup=False)
    return 0


def _remarks(record: RunRecord, delta: float | None) -> Iterator[str]:
    """What was released, who set the noise, and what the epsilons mean.

    Args:
      delta: None for the run's own, whose epsilons are stored.
    """
    privacy, clients = record.result["privacy"], record.result["data"]["clients"]
    if "participation" in privacy:
        yield f"participation: {privacy['participation']}"
    for entry in record.ledger.entries:
        yield release_line(entry, f"sensitivity {entry.sensitivity}")
    if "calibration" in privacy:
        aim = f"{'nominal' if is_nominal(privacy) else 'target'} epsilon"
        target = f"{aim} {privacy['epsilon_target']:g} at delta {privacy['delta']:g}"
        yield f"noise by {privacy['calibration']}; {target}"
    yield f"guarantee: {privacy['guarantee']}"
    shown = privacy if delta is None else _at(record, delta)
    central = shown.get("epsilon_central")
    if central is not None:
        worth = f"none ({central.get('reason')})"
        if central["value"] is not None:
            worth = epsilon_number(central["value"])
        yield f"{privacy['accountant']}: epsilon {worth}, {central['reading']}"
    if "collusion" in shown:
        line = collusion_text(shown["collusion"], clients).removesuffix(".")
        yield f"{privacy['accountant']}: {line}"
    yield f"not covered: {'; '.join(privacy['not_covered'])}"


def _at(record: RunRecord, delta: float) -> dict[str, Any]:
    """What a run's report says of its messages' mean and of colluding clients, at another delta."""
    from dpfl_cli.privacy.accountants import accountant
    from dpfl_cli.privacy.views import central, collusion

    privacy, clients = record.result["privacy"], record.result["data"]["clients"]
    chosen = {k: v for k, v in record.config["accountant"].items() if k not in ("name", "revision")}
    own = accountant(privacy["accountant"], chosen)
    found: dict[str, Any] = {}
    if "epsilon_central" in privacy:
        seen = central(record.ledger, clients, own, delta)
        found["epsilon_central"] = {**privacy["epsilon_central"], **(seen or {})}
    if "collusion" in privacy:
        found["collusion"] = collusion(record.ledger, clients, own, delta)
    return found
