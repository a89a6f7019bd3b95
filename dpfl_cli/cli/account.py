"""`dpfl account RUN...`: prices finished runs under every accountant that supports their ledger."""

import argparse
import re
from collections.abc import Iterator

from dpfl_cli.cli.pricing import prices_of, release_line
from dpfl_cli.cli.tables import (
    collusion_text,
    epsilon_number,
    is_claimed,
    is_nominal,
    print_table,
    wide_console,
)
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.store import LARGE_DELTA, RunRecord, RunStore, delta_warning

UNAMPLIFIED = "as if all took part: it counts no amplification by drawing clients or batches"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids, beginnings of ids, or folders")
    parser.add_argument("--delta", type=float, help="delta (default: the run's own)")


def execute(args: argparse.Namespace) -> int:
    store = RunStore(outputs_dir())
    console = wide_console()
    for record in [store.match(name) for name in args.runs]:
        privacy = record.result["privacy"]
        claimed = " (claimed)" * is_claimed(privacy)
        prices = prices_of(record, args.delta)
        rows = []
        for priced in prices:
            remarks = [priced.reason or "vacuous: above 20" * priced.vacuous]
            shown = ""
            if priced.epsilon is not None:
                shown = f"{epsilon_number(priced.epsilon, 6)}{claimed}"
                remarks.append(UNAMPLIFIED * priced.unamplified)
            rows.append((priced.accountant, shown, "; ".join(filter(None, remarks))))
        title = (
            f"{record.id}: {privacy['unit']}, {privacy['relation']}, "
            f"{record.ledger.releases} releases, delta {prices[0].delta:g}"
        )
        print_table(("accountant", "epsilon", "remark"), rows, title)
        for line in _remarks(record, args.delta):
            console.print(f"  {line}")
    return 0


def _remarks(record: RunRecord, delta: float | None) -> Iterator[str]:
    """What was released, who set the noise, and what the epsilons mean.

    Args:
      delta: None for the run's own, whose further epsilons are stored.
    """
    privacy, own_delta = record.result["privacy"], delta is None
    for key in ("participation", "batches"):
        if key in privacy:
            yield f"{key}: {privacy[key]}"
    for entry in record.ledger.entries:
        yield release_line(entry)
    if "calibration" in privacy:
        aim = f"{'nominal' if is_nominal(privacy) else 'target'} epsilon"
        target = f"{aim} {privacy['epsilon_target']:g} at delta {privacy['delta']:g}"
        yield f"noise by {privacy['calibration']}; {target}"
    guarantee, unit = privacy["guarantee"], privacy["unit"]
    if delta is not None:
        units = record.result["data"]["clients"] if unit == "client" else record.dealt
        guarantee = re.sub(rf"; WARNING: {LARGE_DELTA}[^;]*", "", guarantee)
        guarantee += delta_warning(delta, units, unit)
    yield f"guarantee: {guarantee}"
    central = privacy.get("epsilon_central")
    if central is not None and own_delta:
        why = f" ({central['reason']})" if central.get("reason") else ""
        worth = f"{epsilon_number(central['value'])}{why}"
        yield f"{privacy['accountant']}: epsilon {worth}, {central['reading']}"
    if own_delta and (line := collusion_text(record.result)):
        yield f"{privacy['accountant']}: {line}"
    yield f"not covered: {'; '.join(privacy['not_covered'])}"
