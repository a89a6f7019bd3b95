"""`dpfl account RUN...`: prices finished runs under every accountant that supports their ledger."""

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
from dpfl_cli.simulation.store import RunRecord, RunStore

if TYPE_CHECKING:
    from dpfl_cli.privacy.accountants import PrivacyCost


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids, beginnings of ids, or folders")
    parser.add_argument("--delta", type=float, help="delta (default: the run's own)")


def execute(args: argparse.Namespace) -> int:
    store = RunStore(outputs_dir())
    console = wide_console()
    for record in [store.match(name) for name in args.runs]:
        privacy = record.result["privacy"]
        claimed = " (claimed)" if is_claimed(privacy) else ""
        delta = privacy["delta"] if args.delta is None else args.delta
        rows = [
            (
                priced.accountant,
                "" if priced.epsilon is None else f"{priced.epsilon:.6f}{claimed}",
                "; ".join(_remarks_on(priced, record)),
            )
            for priced in prices_of(record, args.delta)
        ]
        title = (
            f"{record.id}: {privacy['unit']}, {privacy['relation']}, "
            f"{record.ledger.releases} releases, delta {delta:g}"
        )
        print_table(("accountant", "epsilon", "remark"), rows, title)
        for line in _remarks(record, args.delta is None):
            console.print(f"  {line}")
    return 0


def _remarks_on(priced: "PrivacyCost", record: RunRecord) -> Iterator[str]:
    """What is to be known of one accountant's epsilon."""
    from dpfl_cli.config.component import lookup

    if priced.reason:
        yield priced.reason
    elif priced.vacuous:
        yield "vacuous: above 20"
    laws = {entry.law for entry in record.ledger.entries}
    known = lookup("accountant", priced.accountant.partition(" ")[0]).target.amplifies
    if priced.epsilon is not None and laws - {*known, "full"}:
        yield "as if all took part: it counts no amplification by drawing clients"


def _remarks(record: RunRecord, own_delta: bool) -> Iterator[str]:
    """What was released, who set the noise, and what the epsilons mean.

    Args:
      own_delta: whether it is the run's own, whose further epsilons are stored.
    """
    privacy = record.result["privacy"]
    if "participation" in privacy:
        yield f"participation: {privacy['participation']}"
    for entry in record.ledger.entries:
        yield release_line(entry)
    if "calibration" in privacy:
        aim = f"{'nominal' if is_nominal(privacy) else 'target'} epsilon"
        target = f"{aim} {privacy['epsilon_target']:g} at delta {privacy['delta']:g}"
        yield f"noise by {privacy['calibration']}; {target}"
    yield f"guarantee: {privacy['guarantee']}"
    central = privacy.get("epsilon_central")
    if central is not None and own_delta:
        why = f" ({central['reason']})" if central.get("reason") else ""
        worth = f"{epsilon_number(central['value'])}{why}"
        yield f"{privacy['accountant']}: epsilon {worth}, {central['reading']}"
    if own_delta and (line := collusion_text(record.result)):
        yield f"{privacy['accountant']}: {line}"
    yield f"not covered: {'; '.join(privacy['not_covered'])}"
