"""`dpfl runs`: the run store at a glance: list, show, compare, export, prune."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import ConfigError, StoreError, nearest
from dpfl_cli.config.identity import flat
from dpfl_cli.config.paths import outputs_dir

ACTIONS = {
    "list": "finished runs, oldest first",
    "show": "everything about some runs, as JSON",
    "compare": "runs side by side: what differs, metrics, epsilon, and a plot of their curves",
    "export": "one CSV of all evaluated rounds of the runs",
    "prune": "delete runs, and what interrupted runs left behind",
}
READ = {  # what an action needs of a run
    "list": ("result", "config"),
    "show": ("result", "config", "ledger"),
    "compare": ("result", "config", "rows"),
    "export": ("result", "config", "rows"),
}
RESULT_KEYS = ("id", "status", "seed", "metrics", "privacy", "data")


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    for name, summary in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("runs", nargs="*", metavar="RUN", help="ids, beginnings of ids, or folders; none means all")
        action.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="only runs whose config has this, as algorithm.name=fedexp",
        )
        action.add_argument("--status", choices=("done", "diverged", "failed"), help="only runs with this status")
        if name in ("export", "compare"):
            action.add_argument(
                "--output",
                metavar="FILE",
                help="where to write; export: CSV (default: standard output), compare: PNG or PDF; folders are created",
            )
        if name == "compare":
            action.add_argument("--metric", help="the metric to plot (default: the first)")
        if name == "prune":
            action.add_argument("--yes", action="store_true", help="delete; without it only say what would be deleted")
            action.add_argument("--unfinished", action="store_true", help="only checkpoints of interrupted runs")


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.simulation.store import RunStore

    store = RunStore(outputs_dir())
    if args.action == "prune":
        return _prune(store, args)
    records = select(store, args.runs, args.where, args.status, READ[args.action])
    if not records:
        print(f"no runs in {store.runs}" + (" match" if args.where or args.status else "; make one with: dpfl run"))
        return 0
    return {"list": _list, "show": _show, "compare": _compare, "export": _export}[args.action](records, args)


def select(
    store: Any, names: Sequence[str], where: Sequence[str], status: str | None, read: Sequence[str] = ("result", "config")
) -> list[Any]:
    """The runs that the words of a command line mean, each with the files that `read` names read.

    A damaged run is left out with a line on standard error; one that was asked for by name is an error.

    Raises:
      ConfigError, StoreError: nothing fits the words, or a named run is damaged.
    """
    records = []
    for record in [store.match(name) for name in names] if names else store.all():
        try:
            _read(record, read)
        except StoreError as error:
            if names:
                raise
            print(f"dpfl: left out: {error}", file=sys.stderr)
        else:
            records.append(record)
    for condition in where:
        key, equals, value = condition.partition("=")
        if not equals:
            raise ConfigError(f"--where {condition}: write KEY=VALUE, as algorithm.name=fedexp")
        known = {path for record in records for path in flat(record.config)}
        if records and key not in known:
            raise ConfigError(f"--where {key}: no run has this key; {nearest(key, known)}")
        records = [record for record in records if _text(flat(record.config).get(key)) == value]
    return [record for record in records if status is None or record.status == status]


def _read(record: Any, names: Sequence[str]) -> None:
    """Reads parts of a run; a StoreError names the folder where something cannot be read or is not what it should be."""
    import yaml

    if not names:
        return
    try:
        missing = [key for key in RESULT_KEYS if key not in record.result]
        record.check()
        for name in names:
            getattr(record, name)
    except (yaml.YAMLError, ValueError, TypeError, KeyError, AttributeError) as error:
        problem = " ".join(str(error).split())
        raise StoreError(f"{record.folder}: damaged ({problem}); run it again with runtime.force=true, or prune it") from error
    if missing:
        raise StoreError(f"{record.folder}/result.json: damaged (no {missing[0]}); run it again, or prune it")


def _text(value: Any) -> str:
    return {True: "true", False: "false", None: "null"}.get(value, str(value)) if isinstance(value, bool | None) else str(value)


def _list(records: Sequence[Any], args: argparse.Namespace) -> int:
    from dpfl_cli.cli.report import print_results, wide_console

    print_results(wide_console(), [(record.config, record.result) for record in records])
    return 0


def _show(records: Sequence[Any], args: argparse.Namespace) -> int:
    from dpfl_cli.cli.report import epsilon_remark

    shown = []
    for record in records:
        result, privacy = record.result, record.result["privacy"]
        remark = epsilon_remark(privacy)
        if remark:  # said beside the number, for `guarantee` is far below it
            result = {**result, "privacy": {"epsilon": privacy["epsilon"], "epsilon_remark": remark, **privacy}}
        shown.append({"config": record.config, "result": result, "ledger": record.ledger.to_json()})
    print(json.dumps(shown, indent=2))
    return 0


def _compare(records: Sequence[Any], args: argparse.Namespace) -> int:
    from rich.table import Table

    from dpfl_cli.cli.compare import differences, plot_comparison
    from dpfl_cli.cli.report import print_results, wide_console

    console = wide_console()
    print_results(console, [(record.config, record.result) for record in records])
    differing = differences(records)
    if differing:
        table = Table(title="what differs")
        table.add_column("key")
        for record in records:
            table.add_column(record.id)
        for key, values in differing.items():
            table.add_row(key, *[_text(value) for value in values])
        console.print(table)
    print(plot_comparison(records, args.metric, Path(args.output) if args.output else None))
    return 0


def _export(records: Sequence[Any], args: argparse.Namespace) -> int:
    from dpfl_cli.cli.files import write_output
    from dpfl_cli.cli.report import epsilon_remark

    configs = [flat(record.config) for record in records]
    keys = sorted({key for config in configs for key in config if len({_text(other.get(key)) for other in configs}) > 1})
    metrics = list(dict.fromkeys(name for record in records for row in record.rows for name in row))
    calibrated = any("calibration" in record.result["privacy"] for record in records)
    about = ["epsilon_target", "calibration"] if calibrated else []
    about += ["delta", "unit", "relation", "releases", "accountant"]
    rows = [
        ["run", "status", "epsilon", "epsilon_remark", *about, *keys, *metrics],
        *(
            [
                record.id,
                record.status,
                _text(record.result["privacy"]["epsilon"]),
                epsilon_remark(record.result["privacy"]),
                *[_text(record.result["privacy"].get(name)) for name in about],
                *[_text(config.get(key)) for key in keys],
                *[repr(row[name]) if name in row else "" for name in metrics],
            ]
            for record, config in zip(records, configs, strict=True)
            for row in record.rows
        ),
    ]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    if args.output:
        write_output(Path(args.output), out.getvalue().encode())
        print(args.output)
    else:
        sys.stdout.write(out.getvalue())
    return 0


def _prune(store: Any, args: argparse.Namespace) -> int:
    partial = [path.name for path in store.partial.iterdir() if path.is_dir()] if store.partial.is_dir() else []
    read = ("result", "config") if args.where or args.status else ()  # a damaged run can be deleted by name
    records = [] if args.unfinished else select(store, args.runs, args.where, args.status, read)
    if not (args.runs or args.where or args.status or args.unfinished) and records:
        raise ConfigError("prune: name runs, or narrow them with --where, --status or --unfinished (all: --where engine=1)")
    ids = [record.id for record in records] + (partial if args.unfinished else [])
    for run_id in ids:
        if args.yes:
            with store.lock(run_id) as held:
                if not held:
                    print(f"{run_id}: in use by another process, kept")
                    continue
                store.remove(run_id)
        print(f"{'deleted' if args.yes else 'would delete'} {run_id}")
    if ids and not args.yes:
        print("nothing was deleted; add --yes")
    elif not ids:
        print("nothing to delete")
    return 0
