"""`dpfl account RUN…`: prices finished runs under every accountant that supports their ledger."""

from __future__ import annotations

import argparse

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import outputs_dir


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help="ids, beginnings of ids, or folders")
    parser.add_argument("--delta", type=float, help="delta (default: the run's own)")


def execute(args: argparse.Namespace) -> int:
    from rich.table import Table

    from dpfl_cli.cli.report import collusion_text, epsilon_number, is_claimed, is_nominal, wide_console
    from dpfl_cli.privacy.accountants import accountant, price, price_all
    from dpfl_cli.privacy.collusion import collusion
    from dpfl_cli.privacy.mean_alone import mean_alone
    from dpfl_cli.simulation.plan import load_components
    from dpfl_cli.simulation.store import RunStore

    if args.delta is not None and not 0 < args.delta < 1:
        raise ConfigError(f"--delta {args.delta}: must lie strictly between 0 and 1")
    load_components()
    store = RunStore(outputs_dir())
    console = wide_console()
    for record in [store.match(name) for name in args.runs]:
        privacy = record.result["privacy"]
        delta = args.delta or privacy["delta"]
        table = Table(
            title=f"{record.id}: {privacy['unit']}, {privacy['relation']}, {record.ledger.releases} releases, delta {delta:g}"
        )
        for column in ("accountant", "epsilon", "remark"):
            table.add_column(column)
        for priced in price_all(record.ledger, delta):
            text = "" if priced.epsilon is None else f"{priced.epsilon:.6f}" + (" (claimed)" if is_claimed(privacy) else "")
            remark = priced.reason or ("vacuous: above 20" if priced.vacuous else "")
            table.add_row(priced.accountant, text, remark)
        console.print(table)
        for entry in record.ledger.entries:
            console.print(
                f"  release {entry.name}: {entry.count} x {entry.kind} per {entry.scope}, parameter {_shown(entry.parameter)}, "
                f"sensitivity {entry.sensitivity}",
                markup=False,
            )
        if "calibration" in privacy:
            aim = f"{'nominal' if is_nominal(privacy) else 'target'} epsilon {privacy['epsilon_target']:g}"
            console.print(f"  noise by {privacy['calibration']}; {aim} at delta {privacy['delta']:g}", markup=False)
        console.print(f"  guarantee: {privacy['guarantee']}", markup=False)
        clients = record.result["data"]["clients"]
        options = {key: value for key, value in record.config["accountant"].items() if key not in ("name", "revision")}
        own = accountant(privacy["accountant"], options)
        if "epsilon_central" in privacy:
            seen_alone = mean_alone(record.ledger, clients)
            assert seen_alone is not None
            found = price(seen_alone, own, delta)
            worth = f"none ({found.reason})" if found.epsilon is None else epsilon_number(found.epsilon)
            console.print(f"  {own.label}: epsilon {worth}, {privacy['epsilon_central']['reading']}", markup=False)
        if "collusion" in privacy:
            seen = collusion(record.ledger, clients, own, delta)
            console.print(f"  {privacy['accountant']}: {collusion_text(seen, clients).removesuffix('.')}", markup=False)
        console.print(f"  not covered: {'; '.join(privacy['not_covered'])}", markup=False)
    return 0


def _shown(parameter: object) -> str:
    return f"array of {len(parameter)}" if isinstance(parameter, tuple | list) else str(parameter)
