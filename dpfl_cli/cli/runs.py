"""`dpfl runs`: the run store: list, show, compare, table, export, import, verify, prune."""

import contextlib
import json
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

from dpfl_cli.cli.pricing import distinct
from dpfl_cli.cli.selection import (
    Needs,
    cell_of,
    chosen,
    load,
    narrowed,
    own_store,
    row_of,
)
from dpfl_cli.cli.tables import epsilon_remark, print_results, wide_console
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import outputs_dir
from dpfl_cli.data.files import write_output
from dpfl_cli.simulation.archive import DIFFERS, KNOWN, TAKEN, packed, take
from dpfl_cli.simulation.store import RunRecord

# What is read of a run first, which is left out where that is damaged.
RESULT, ROWS, LEDGER = map(attrgetter, ("result", "rows", "ledger"))
WHOLE = RunRecord.check
# of an epsilon, in an export
ABOUT = ("epsilon_target", "calibration", "unit", "relation", "releases", "accountant")
FORMS = ("latex", "markdown", "csv")
LISTED = 100  # runs that a list shows unless it is asked for all
EXIT_DAMAGED = 3


def configure(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    parsers = {
        name: actions.add_parser(name, help=summary, description=summary)
        for name, (summary, _) in ACTIONS.items()
    }
    parsers.pop("import").add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="made by export --archive"
    )
    for name, action in parsers.items():
        action.add_argument(
            "runs",
            nargs="*",
            metavar="RUN",
            help="ids, beginnings of ids, folders, or an artifact's manifest.json for all of its "
            f"runs{'' if name == 'prune' else ' (default: all runs)'}",
        )
        action.add_argument(
            "--where",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="only runs for which this holds: algorithm=fedexp,fedavg (either of them), "
            "dp.epsilon=8, accuracy>80; may be given several times",
        )
    parsers["list"].add_argument(
        "--sort", metavar="KEY", help="order runs by this key; --sort=-KEY: descending"
    )
    for flag, about in (
        ("--rows", None),
        ("--cols", None),
        ("--best", "in every cell, the values of these keys that have the best mean over seeds"),
    ):
        parsers["table"].add_argument(
            flag,
            action="extend",
            required=about is None,
            default=[],
            type=lambda text: text.split(","),
            metavar="KEY[,KEY]",
            help=about,
        )
    forms = parsers["table"].add_mutually_exclusive_group()
    for form in FORMS:
        forms.add_argument(f"--{form}", dest="form", action="store_const", const=form)
    for name in ("compare", "table"):
        parsers[name].add_argument("--metric", help="the metric (default: the first in tables)")
    parsers["compare"].add_argument("--output", type=Path, metavar="FILE", help="a .png or .pdf")
    files = parsers["export"].add_mutually_exclusive_group()
    files.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="a .csv, .json or .parquet (default: CSV on standard output); folders are created",
    )
    files.add_argument(
        "--archive",
        type=Path,
        metavar="FILE",
        help="whole finished runs, as a tar.xz; damaged runs are left out (exit code 3)",
    )
    for name, flag, what in (
        ("list", "--all", f"all runs, not only {LISTED}"),
        ("list", "--json", "every key of every run"),
        ("prune", "--yes", "delete; without it, only say what would be deleted"),
        ("prune", "--unfinished", "only checkpoints of interrupted runs"),
    ):
        parsers[name].add_argument(flag, action="store_true", help=what)


def execute(args: Namespace) -> int:
    action = ACTIONS[args.action][1]
    return action(args) or 0


def _wanted(args: Namespace, needs: Needs) -> list[RunRecord]:
    """The runs that are asked for; says so where there are none."""
    found = load(chosen(args.runs), needs, args.runs)
    records = distinct(narrowed(found, args.where))  # a copy in another store is no second seed
    if not records:
        _say_none(args)
    return records


def _say_none(args: Namespace) -> None:
    why = " match" if args.where else "; make one with: dpfl run"
    with contextlib.redirect_stdout(sys.stderr):  # no part of a table
        print(f"no runs in {outputs_dir()}{why}")
        _say_unfinished(args)


def _say_unfinished(args: Namespace) -> None:
    """Where all runs were asked for: those too that have a checkpoint and no result yet."""
    store = own_store()
    new = (one for one in store.unfinished() if not (store.runs / one).exists())
    kept = [one for one in new if store.checkpoint_file(one).exists()]
    if kept and not args.runs and not args.where:
        print(
            f"and {len(kept)} interrupted or being run, as {min(kept)}: the command that began a "
            "run goes on with it; `dpfl runs prune --unfinished` shows what would be deleted"
        )


# --- the actions: each prints, and returns an exit code where it is not 0 -------------------------


def _list(args: Namespace) -> None:
    """Reads no more runs than are shown, unless what they hold decides which these are."""
    found = chosen(args.runs)
    content_decides = args.all or args.json or args.where or args.sort
    read = load(found if content_decides else found[-LISTED:], RESULT, args.runs)
    records = distinct(narrowed(read, args.where, args.sort))
    count = len(records if content_decides else found)
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
    _say_unfinished(args)
    if cut:
        print(
            f"the {'first' if args.sort else 'newest'} {LISTED} of {count} runs; the others: "
            "--where KEY=VALUE, --sort KEY, --json, or --all (with means over seeds)"
        )


def _show(args: Namespace) -> None:
    shown = []
    for record in _wanted(args, LEDGER):
        privacy = record.result["privacy"]
        if remark := epsilon_remark(privacy):  # said beside the number, for `guarantee` is far off
            first = {"epsilon": privacy["epsilon"], "epsilon_remark": remark}
            privacy = {**first, **privacy}
        result = {**record.result, "privacy": privacy}
        del result["config"]
        shown.append({"config": record.config, "result": result, "ledger": record.ledger.to_json()})
    if shown:
        print(json.dumps(shown, indent=2))


def _compare(args: Namespace) -> None:
    from dpfl_cli.cli.compare import plot_comparison  # imports pandas, as the next one does

    if records := _wanted(args, ROWS):
        print_results(wide_console(), records)
        print(plot_comparison(records, args.metric, args.output))


def _table(args: Namespace) -> None:
    from dpfl_cli.cli.compare import print_pivot

    if records := _wanted(args, ROWS):
        print_pivot(records, args.rows, args.cols, args.best, args.metric, args.form)


def _verify(args: Namespace) -> int:
    records = narrowed(chosen(args.runs), args.where)
    whole = load(records, WHOLE)
    print(f"{len(whole)} of {len(records)} runs are whole")
    return EXIT_DAMAGED if len(whole) < len(records) else 0


def _export(args: Namespace) -> int:
    """Writes a row for every evaluated round, with the columns of all runs in the store; or the
    runs themselves.

    Raises:
      ConfigError: the file's suffix is none that can be written.
    """
    if args.archive:
        return _archive(args)
    path: Path | None = args.output
    kind = path.suffix.lower() if path else ".csv"
    if kind not in (".csv", ".json", ".parquet"):
        raise ConfigError(f"{path}: cannot be written as {kind}; write .csv, .json or .parquet")
    found = load(chosen(args.runs), ROWS, args.runs)
    wanted = {*narrowed(found, args.where)}
    if not wanted:
        _say_none(args)
        return 0
    import pandas as pd

    # all have a say in the columns; a run may be of another store, under an id that is in both
    records = dict.fromkeys([*(load(own_store().all(), ROWS) if args.runs else ()), *found])
    frame = pd.DataFrame([row for record in records for row in _rounds(record)], dtype=object)
    shown = [record in wanted for record in records for _ in record.rows]
    frame = frame.where(frame.notna(), None)[shown]
    if kind == ".json":
        payload = json.dumps(frame.to_dict("records"), indent=2).encode()
    elif kind == ".csv":
        payload = frame.map(cell_of).to_csv(index=False).encode()
    else:
        mixed = [
            key
            for key in frame.columns
            if frame[key].map(lambda one: isinstance(one, str | list)).any()
        ]
        frame[mixed] = frame[mixed].map(cell_of)  # a column of a file has one type
        try:
            payload = frame.infer_objects().to_parquet(engine="pyarrow", index=False)
        except ImportError as error:
            raise ConfigError(
                ".parquet needs pyarrow: pip install '.[parquet]' in dpfl's folder, or write .csv"
            ) from error
    if path:
        write_output(path, payload)
        print(path)
    else:
        sys.stdout.write(payload.decode())
    return 0


def _archive(args: Namespace) -> int:
    path: Path = args.archive
    if not path.name.endswith(".tar.xz"):
        raise ConfigError(f"{path}: an archive is a tar.xz; name it so, as runs.tar.xz")
    found = chosen(args.runs)
    whole = load(found, WHOLE, args.runs)
    wanted = narrowed(whole, args.where)
    finished = [one for one in wanted if one.finished]
    if failed := len(wanted) - len(finished):
        print(f"left out, as they failed: {failed}")
    if finished:
        write_output(path, packed(finished))
        print(f"{len(finished)} runs in {path}")
    else:
        _say_none(args)
    return EXIT_DAMAGED if len(whole) < len(found) else 0


def _import(args: Namespace) -> int:
    differ = False
    for file in args.files:
        taken = take(file, own_store())
        counts = Counter(became for _, became in taken)
        print(f"{file}: {', '.join(f'{count} {became}' for became, count in counts.items())}")
        for run_id, became in taken:
            if became not in (TAKEN, KNOWN):
                print(f"{run_id} {became}")
        differ |= DIFFERS in counts
    return EXIT_DAMAGED if differ else 0


def _rounds(record: RunRecord) -> list[dict[str, Any]]:
    """A row for every evaluated round, each with all that is known of its run."""
    result, run = record.result, row_of(record)
    privacy, last = result["privacy"], result["metrics"].get("last", {})
    about = {
        **{key: value for key, value in run.items() if key not in last},
        "epsilon_remark": epsilon_remark(privacy),
        **{name: privacy.get(name) for name in ABOUT},
    }
    return [{**about, **row} for row in record.rows]


def _prune(args: Namespace) -> None:
    store, asked = own_store(), args.runs or args.where
    if args.unfinished:
        if asked:
            raise ConfigError(
                "prune: --unfinished means all interrupted runs; drop the choice of runs"
            )
        if store.partial.is_symlink():
            raise ConfigError(
                f"{store.partial}: a link; prune deletes nothing outside {store.runs}"
            )
        ids = store.unfinished()  # others there are folders of running workers
    else:  # a damaged run can be deleted by name
        found = chosen(args.runs)
        if other := [one.folder for one in found if one.folder.parent != store.runs]:
            raise ConfigError(
                f"{other[0]}: of another store; prune deletes nothing outside {store.runs}"
            )
        if args.where:
            found = load(found, RESULT, args.runs)
        ids = [record.id for record in narrowed(found, args.where)]
        if ids and not asked:
            raise ConfigError(
                "prune: name runs, or narrow them with --where or --unfinished "
                "(all: --where engine=1)"
            )
    if ids and args.yes:
        store.prepare()  # a copy of a store often lacks the hidden folder of locks
    for run_id in ids:
        if args.yes:
            with store.lock(run_id) as held:
                if not held:
                    print(f"{run_id}: in use by another process, kept")
                    continue
                if args.unfinished:  # the result that a forced rerun was to replace stays
                    shutil.rmtree(store.partial / run_id, ignore_errors=True)
                else:
                    store.remove(run_id)
        print(f"{'deleted' if args.yes else 'would delete'} {run_id}")
    if not ids:
        print("nothing to delete")
    elif not args.yes:
        print("nothing was deleted; add --yes")


ACTIONS: dict[str, tuple[str, Callable[[Namespace], int | None]]] = {
    "list": ("finished runs, newest last", _list),
    "show": ("everything about some runs, as JSON", _show),
    "compare": ("runs side by side: what differs, metrics, epsilon, and their curves", _compare),
    "table": ("a metric averaged over seeds, by keys in rows and keys in columns", _table),
    "export": ("all evaluated rounds of the runs in one file, or the runs themselves", _export),
    "import": ("take the runs of archives; finished runs are never replaced", _import),
    "verify": (
        "check every file of the runs against its hash (exit code 3: a file differs)",
        _verify,
    ),
    "prune": ("delete runs, and what interrupted runs left behind", _prune),
}
