"""`dpfl runs`: the run store: list, show, compare, table, export, import, verify, prune."""

import argparse
import csv
import io
import json
import shutil
import sys
from collections.abc import Sequence
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import Any

from dpfl_cli.cli.files import write_output
from dpfl_cli.cli.selection import STATUSES, chosen, load, narrowed, row_of
from dpfl_cli.cli.tables import epsilon_remark, make_table, print_results, wide_console
from dpfl_cli.cli.varying import cell_of, differences
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import text_of
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.simulation.archive import packed, take
from dpfl_cli.simulation.store import RunRecord, RunStore, is_id

RESULT, ROWS, LEDGER = map(attrgetter, ("result", "rows", "ledger"))
WHOLE = methodcaller("check")
ACTIONS = {  # name -> (what it does, what it reads of a run first)
    "list": ("finished runs, the newest last", RESULT),
    "show": ("everything about some runs, as JSON", LEDGER),
    "compare": (
        "runs side by side: what differs, metrics, epsilon, and a plot of their curves",
        ROWS,
    ),
    "table": ("a metric over two kinds of keys, averaged over seeds", ROWS),
    "export": ("all evaluated rounds of the runs in one file, or the runs themselves", ROWS),
    "import": ("take the runs of archives; finished runs are never replaced", None),
    "verify": ("check every file of the runs against its hash; exit code 3 if one differs", None),
    "prune": ("delete runs, and what interrupted runs left behind", None),
}
ABOUT = (  # of an epsilon, in an export
    "epsilon_target",
    "calibration",
    "delta",
    "unit",
    "relation",
    "releases",
    "accountant",
)
NOT_CONFIG = ("run", "epsilon", "delta", "status")  # of a row
FORMS = ("latex", "markdown", "csv")
LISTED = 100  # runs that a list shows unless it is asked for all
EXIT_DAMAGED = 3


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    for name, (summary, _) in ACTIONS.items():
        action = actions.add_parser(name, help=summary, description=summary)
        if name == "import":
            action.add_argument(
                "files", type=Path, nargs="+", metavar="FILE", help="of export --archive"
            )
            continue
        action.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="ids, beginnings of ids, folders, or an artifact's manifest.json for all of its "
            "runs; none means all",
        )
        action.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="only runs of which this holds, as algorithm=fedexp, dp.epsilon=8, accuracy>80",
        )
        action.add_argument("--status", choices=STATUSES, help="only runs with this status")
        if name == "list":
            action.add_argument("--sort", metavar="KEY", help="in its order; --sort=-KEY: reversed")
            lengths = action.add_mutually_exclusive_group()
            lengths.add_argument("--all", action="store_true", help=f"also more than {LISTED} runs")
            lengths.add_argument("--json", action="store_true", help="every key of every run")
        if name == "table":
            for flag in ("--rows", "--cols"):
                action.add_argument(
                    flag, required=True, type=lambda text: text.split(","), metavar="KEY[,KEY]"
                )
            forms = action.add_mutually_exclusive_group()
            for form in FORMS:
                forms.add_argument(f"--{form}", dest="form", action="store_const", const=form)
        if name in ("export", "compare"):
            files = action.add_mutually_exclusive_group()
            files.add_argument(
                "--output",
                type=Path,
                metavar="FILE",
                help="where to write; export: .csv, .json or .parquet (default: CSV on standard "
                "output), compare: .png or .pdf; folders are created",
            )
            if name == "export":
                files.add_argument(
                    "--archive",
                    type=Path,
                    metavar="FILE",
                    help="whole finished runs, as a tar.xz; exit code 3: without damaged ones",
                )
        if name in ("compare", "table"):
            action.add_argument("--metric", help="the metric (default: the first)")
        if name == "prune":
            action.add_argument(
                "--yes", action="store_true", help="delete; without it only say what would be"
            )
            action.add_argument(
                "--unfinished", action="store_true", help="only checkpoints of interrupted runs"
            )


def execute(args: argparse.Namespace) -> int:
    store = RunStore(outputs_dir())
    archive = getattr(args, "archive", None)
    if archive and not archive.name.endswith(".tar.xz"):
        raise ConfigError(f"{archive}: an archive is a tar.xz; name it so, as runs.tar.xz")
    if args.action == "prune":
        _prune(store, args)
        return 0
    if args.action == "import":
        return max(_import(store, file) for file in args.files)
    found = chosen(store, args.runs)
    if args.action == "list":
        _list(found, args)
        return 0
    reads = WHOLE if archive else ACTIONS[args.action][1]
    loaded = load(found, reads, named=bool(args.runs)) if reads else found
    records = narrowed(loaded, args.where, args.status)
    if not records:
        _say_none(args)
    elif args.action == "verify":
        whole = load(records, WHOLE, listed=True)
        print(f"{len(whole)} of {len(records)} runs are whole")
        return EXIT_DAMAGED if len(whole) < len(records) else 0
    elif archive:
        finished = [record for record in records if record.finished]
        write_output(archive, packed(finished))
        print(f"{len(finished)} runs in {archive}")
    elif args.action == "export":
        _export(records, load(store.all(), ROWS) if args.runs else loaded, args.output)
    else:
        {"show": _show, "compare": _compare, "table": _table}[args.action](records, args)
    return EXIT_DAMAGED if archive and len(loaded) < len(found) else 0


# --- the actions ----------------------------------------------------------------------------------


def _say_none(args: argparse.Namespace) -> None:
    asked = args.where or args.status
    print(f"no runs in {outputs_dir()}{' match' if asked else '; make one with: dpfl run'}")


def _list(found: Sequence[RunRecord], args: argparse.Namespace) -> None:
    """Reads no more runs than are shown, unless what they hold decides which these are."""
    content_decides = args.all or args.json or args.where or args.status or args.sort
    if content_decides:
        records = load(found, RESULT, named=bool(args.runs), listed=not args.json)
        records = narrowed(records, args.where, args.status, args.sort)
        count = len(records)
    else:
        records = load(found[-LISTED:], RESULT, named=bool(args.runs), listed=True)
        count = len(found)
    if args.json:
        print(json.dumps([row_of(record) for record in records], indent=2))
        return
    if not records:
        _say_none(args)
        return
    cut = count > LISTED and not args.all
    if cut:
        records = records[:LISTED] if args.sort else records[-LISTED:]
    print_results(wide_console(), records, means=not cut)  # a mean over some seeds would mislead
    if cut:
        print(
            f"the {'first' if args.sort else 'newest'} {LISTED} of {count} runs; the others: "
            "--where KEY=VALUE, --sort KEY, --json, or --all (with means over seeds)"
        )


def _show(records: Sequence[RunRecord], args: argparse.Namespace) -> None:
    shown = []
    for record in records:
        privacy = record.result["privacy"]
        if remark := epsilon_remark(privacy):  # said beside the number, for `guarantee` is far off
            first = {"epsilon": privacy["epsilon"], "epsilon_remark": remark}
            privacy = {**first, **privacy}
        result = {**record.result, "privacy": privacy}
        del result["config"]
        shown.append({"config": record.config, "result": result, "ledger": record.ledger.to_json()})
    print(json.dumps(shown, indent=2))


def _compare(records: Sequence[RunRecord], args: argparse.Namespace) -> None:
    from dpfl_cli.cli.compare import plot_comparison  # imports pandas, as the next one does

    print_results(wide_console(), records)
    if differing := differences([record.config for record in records]):
        rows = [(key, *map(text_of, values)) for key, values in differing.items()]
        columns = ("key", *(record.id for record in records))
        wide_console().print(make_table(columns, rows, title="what differs"))
    print(plot_comparison(records, args.metric, args.output))


def _table(records: Sequence[RunRecord], args: argparse.Namespace) -> None:
    from dpfl_cli.cli.pivot import print_pivot

    print_pivot(records, args.rows, args.cols, args.metric, args.form)


def _export(records: Sequence[RunRecord], known: Sequence[RunRecord], path: Path | None) -> None:
    """Writes a row for every evaluated round; the columns are those of all runs in the store.

    Raises:
      ConfigError: the file's suffix is none that can be written.
    """
    kind = path.suffix.lower() if path else ".csv"
    if kind not in (".csv", ".json", ".parquet"):
        raise ConfigError(f"{path}: cannot be written as {kind}; write .csv, .json or .parquet")
    keys = sorted({key for record in known for key in row_of(record) if key not in NOT_CONFIG})
    metrics = list(dict.fromkeys(name for record in known for row in record.rows for name in row))
    keys = [key for key in keys if key not in metrics]
    rows = []
    for record in records:
        privacy, values = record.result["privacy"], row_of(record)
        run = {
            "run": record.id,
            "status": record.status,
            "epsilon": privacy["epsilon"],
            "epsilon_remark": epsilon_remark(privacy),
            **{name: privacy.get(name) for name in ABOUT},
            **{key: values.get(key) for key in keys},
        }
        rows += [{**run, **{name: row.get(name) for name in metrics}} for row in record.rows]
    payload = _payload(rows, kind)
    if path:
        write_output(path, payload)
        print(path)
    else:
        sys.stdout.write(payload.decode())


def _import(store: RunStore, path: Path) -> int:
    code = 0
    for run_id, became in take(path, store):
        print(f"{run_id} {became}")
        code = EXIT_DAMAGED if became == "differs" else code
    return code


def _payload(rows: Sequence[dict[str, Any]], kind: str) -> bytes:
    """Rows with the same keys, as a file of this suffix."""
    if kind == ".json":
        return json.dumps(rows, indent=2).encode()
    if kind == ".csv":
        out = io.StringIO()
        lines = [rows[0], *([cell_of(value) for value in row.values()] for row in rows)]
        csv.writer(out, lineterminator="\n").writerows(lines)
        return out.getvalue().encode()
    import pandas as pd  # slow: not for a file of text

    frame = pd.DataFrame(rows, dtype=object)
    mixed = [key for key in rows[0] if any(isinstance(row[key], str | list) for row in rows)]
    frame[mixed] = frame[mixed].map(cell_of)  # a column of a file has one type
    sink = io.BytesIO()
    try:
        frame.infer_objects().to_parquet(sink, engine="pyarrow", index=False)
    except ImportError as error:
        raise ConfigError(
            ".parquet needs pyarrow: pip install 'dpfl[parquet]', or write .csv"
        ) from error
    return sink.getvalue()


def _prune(store: RunStore, args: argparse.Namespace) -> None:
    asked = args.runs or args.where or args.status
    if args.unfinished and asked:
        raise ConfigError("prune: --unfinished means all interrupted runs; drop the choice of runs")
    if args.unfinished and store.partial.is_symlink():
        raise ConfigError(f"{store.partial}: a link; prune deletes nothing outside {store.runs}")
    if args.unfinished:  # others there are folders of running workers
        ids = [path.name for path in store.partial.glob("*") if path.is_dir() and is_id(path.name)]
    else:  # a damaged run can be deleted by name
        found = chosen(store, args.runs)
        if args.where or args.status:
            found = load(found, RESULT, named=bool(args.runs))
        ids = [record.id for record in narrowed(found, args.where, args.status)]
        if ids and not asked:
            raise ConfigError(
                "prune: name runs, or narrow them with --where, --status or --unfinished "
                "(all: --where engine=1)"
            )
    for run_id in ids:
        if args.yes:
            with store.lock(run_id) as held:
                if not held:
                    print(f"{run_id}: in use by another process, kept")
                    continue
                if args.unfinished:  # the result that a forced rerun was to replace stays
                    store.recover(run_id)
                    shutil.rmtree(store.partial / run_id, ignore_errors=True)
                else:
                    store.remove(run_id)
        print(f"{'deleted' if args.yes else 'would delete'} {run_id}")
    if not ids:
        print("nothing to delete")
    elif not args.yes:
        print("nothing was deleted; add --yes")
