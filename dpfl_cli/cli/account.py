"""`dpfl account RUN...`: prices finished runs under every accountant that supports their ledger."""

import argparse
import re
from collections.abc import Iterator

from dpfl_cli.cli.pricing import distinct, prices_of, release_line
from dpfl_cli.cli.selection import own_store
from dpfl_cli.cli.tables import collusion_text, is_nominal, print_table, some_claimed, wide_console
from dpfl_cli.privacy.nominal import epsilon_number
from dpfl_cli.simulation.checked import checks_since
from dpfl_cli.simulation.store import LARGE_DELTA, RunRecord, delta_warning

UNAMPLIFIED = "as if all took part: it counts no amplification by drawing clients or batches"
TOGETHER = (
    "covered: these runs together, and a choice among them, whose noise was fixed beforehand; what "
    "each by itself does not cover is below"
)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids, beginnings of ids, or folders")
    parser.add_argument("--delta", type=float, help="delta (default: the run's own)")
    parser.add_argument(
        "--together",
        action="store_true",
        help="price all that the runs released as one, also where one of them is chosen",
    )


def execute(args: argparse.Namespace) -> int:
    console = wide_console()
    records = distinct(map(own_store().match, args.runs))
    for some in [records] if args.together else [[one] for one in records]:
        privacy = some[0].result["privacy"]
        claimed = " (claimed)" * some_claimed(some)
        prices = prices_of(some, args.delta)
        rows = []
        for priced in prices:
            remarks = [priced.reason or "vacuous: above 20" * priced.vacuous]
            shown = ""
            if priced.epsilon is not None:
                shown = f"{epsilon_number(priced.epsilon, 6)}{claimed}"
                remarks.append(UNAMPLIFIED * priced.unamplified)
            rows.append((priced.accountant, shown, "; ".join(filter(None, remarks))))
        title = (
            f"{', '.join(one.id for one in some)}: {privacy['unit']}, {privacy['relation']}, "
            f"{prices[0].releases} releases, delta {prices[0].delta:g}"
        )
        print_table(("accountant", "epsilon", "remark"), rows, title)
        told = [line for one in some for line in _remarks(one, args.delta, alone=len(some) == 1)]
        for line in [*[TOGETHER] * (len(some) > 1), *dict.fromkeys(told)]:
            console.print(f"  {line}")
    return 0


def _remarks(record: RunRecord, delta: float | None, alone: bool) -> Iterator[str]:
    """What was released, who set the noise, and what the epsilons mean.

    Args:
      delta: None for the run's own, whose further epsilons are stored.
      alone: else of what it shares with other runs.
    """
    privacy, own_delta = record.result["privacy"], delta is None and alone
    for key in ("participation", "batches"):
        if key in privacy:
            yield f"{key}: {privacy[key]}"
    for entry in record.ledger.entries if alone else ():
        yield release_line(entry)
    if "calibration" in privacy and alone:
        aim = f"{'nominal' if is_nominal(privacy) else 'target'} epsilon"
        target = f"{aim} {privacy['epsilon_target']:g} at delta {privacy['delta']:g}"
        yield f"noise by {privacy['calibration']}; {target}"
    guarantee, unit = privacy["guarantee"], privacy["unit"]
    if delta is not None:
        units = record.result["data"]["clients"] if unit == "client" else record.dealt
        guarantee = re.sub(rf"; WARNING: {LARGE_DELTA}[^;]*", "", guarantee)
        guarantee += delta_warning(delta, units, unit)
    yield f"guarantee: {guarantee}"
    yield from checks_since(record)
    central = privacy.get("epsilon_central")
    if central is not None and own_delta:
        why = f" ({central['reason']})" if central.get("reason") else ""
        worth = f"{epsilon_number(central['value'])}{why}"
        yield f"{privacy['accountant']}: epsilon {worth}, {central['reading']}"
    if own_delta and (line := collusion_text(record.result)):
        yield f"{privacy['accountant']}: {line}"
    yield f"not covered: {'; '.join(privacy['not_covered'])}"
