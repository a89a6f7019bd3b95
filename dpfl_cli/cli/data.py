"""`dpfl data`: which data sets there are, getting the files of those that come in files, and
computing features of images.
"""

import argparse
import time
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

from rich import progress as shown
from rich.filesize import decimal
from rich.table import Table

from dpfl_cli.cli.tables import wide_console
from dpfl_cli.config.component import components, parse_settings
from dpfl_cli.config.errors import ConfigError, DataError, nearest
from dpfl_cli.data.catalogue import CATALOGUE, FOLDERS, catalogue_entry
from dpfl_cli.data.fetching import FetchProgress, fetch
from dpfl_cli.data.folders import find_folder
from dpfl_cli.data.sources import Status, cache_dir, status
from dpfl_cli.simulation.progress import Progress

LINE_EVERY = 10.0  # seconds between lines of a long download where there is no terminal
BAR = (
    shown.TextColumn("{task.description}"),
    shown.BarColumn(),
    shown.DownloadColumn(),
    shown.TransferSpeedColumn(),
    shown.TimeRemainingColumn(),
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dpfl data`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | fetch | features")
    actions.add_parser(
        "list", help="what there is, from where, under which licence, present or not"
    )
    fetch = actions.add_parser(
        "fetch",
        help="get the files of data sets into the cache, each verified by its published checksum",
    )
    fetch.add_argument(
        "names", nargs="+", metavar="NAME", help="a data set, as `dpfl data list` names it"
    )
    features = actions.add_parser(
        "features", help="compute the features of a data set's images and keep them in the cache"
    )
    features.add_argument("name", metavar="NAME", help="a data set of features, as mnist_features")
    features.add_argument(
        "--backbone",
        default="auto",
        metavar="NAME",
        help="auto, or a backbone that conf/dataset/NAME.yaml lists",
    )
    features.add_argument(
        "--weights", metavar="FILE", help="the backbone's weights, where they come from you"
    )
    features.add_argument(
        "--components",
        type=int,
        metavar="N",
        help="principal components, to see that they can be had",
    )
    for split, what in (("fit", "public"), ("train", "private training"), ("test", "test")):
        features.add_argument(
            f"--{split}-records", type=int, metavar="N", help=f"the first so many {what} records"
        )
    for action in (fetch, features):
        action.add_argument(
            "--quiet", action="store_true", help="print nothing unless something is wrong"
        )


def execute(args: argparse.Namespace) -> int:
    """Runs the command; the exit code.

    Raises:
      DataError: an unknown name, or data that could not be had; one line.
    """
    from dpfl_cli.simulation.plan import load_components

    load_components()
    if args.action == "list":
        wide_console().print(_table())
    elif args.action == "fetch":
        _fetch(args.names, args.quiet)
    else:
        _features(args)
    return 0


# --- what there is --------------------------------------------------------------------------------


class _Made(NamedTuple):
    """A data set that is not downloaded: what it is, what of, where, and what `fetch` says."""

    what: str
    source: str
    where: str
    hint: str


def _not_downloaded() -> dict[str, _Made]:
    """Registered data sets that are not in the catalogue, in the order of the list: generated, of a
    file of the user's, computed from images.
    """
    generated, own, computed = {}, {}, {}
    for name, found in components("dataset").items():
        base, parts = (getattr(found.target, key, None) for key in ("base", "sources"))
        what = found.summary
        if base is not None:
            how = f"dpfl data features {name}"
            hint = f"computed from {base} (dpfl data fetch {base}), by: {how}"
            computed[name] = _Made(what, f"computed from {base}", how, hint)
        elif name in CATALOGUE or name in FOLDERS:
            continue
        elif "path" in found.settings.model_fields:
            hint = "reads a file of yours (dataset.path), nothing to fetch"
            own[name] = _Made(what, "dataset.path", "wherever you say", hint)
        elif parts is not None:
            source = f"made of {', '.join(parts)}"
            hint = f"{source} (dpfl data fetch {' '.join(parts)})"
            generated[name] = _Made(what, source, "where they are", hint)
        else:
            source = "generated from the seed"
            generated[name] = _Made(what, source, "always there", f"{source}, nothing to fetch")
    return generated | own | computed


def _table() -> Table:
    """All data sets, as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what", "licence", "sources", "where"):
        table.add_column(column, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for name, entry in CATALOGUE.items():
        found = status(name)
        sources = "\n".join(source.host for source in entry.sources)
        size = decimal(found.size) if found.files else ""
        table.add_row(name, entry.what, entry.licence, sources, _where(found), size)
    for name, own in FOLDERS.items():
        try:
            where = str(find_folder(name))
        except DataError:
            where = f"absent: {cache_dir() / name}, or a folder {name} in DPFL_DATA"
        what = f"{own.what}; where absent, use {own.standin}"
        table.add_row(name, what, own.licence, f"from your files: {own.layout.rstrip(',')}", where)
    for name, made in _not_downloaded().items():
        table.add_row(name, made.what, "", made.source, made.where)
    return table


def _where(found: Status) -> str:
    """Where a data set is, in a few words."""
    if found.problem is not None:
        return found.problem
    if not found.files:
        return "absent"
    if found.missing:
        return f"incomplete: no {', '.join(found.missing)}"
    return ", ".join(dict.fromkeys(str(path.parent) for path in found.files.values()))


# --- fetching -------------------------------------------------------------------------------------


def _fetch(names: list[str], quiet: bool) -> None:
    made = _not_downloaded()
    names = list(dict.fromkeys(names))
    for name in names:
        if name not in made and name not in FOLDERS:
            catalogue_entry(name)  # an unknown name, before anything is fetched
    failures = []
    console = wide_console()
    with shown.Progress(*BAR, console=console, disable=quiet or not console.is_terminal) as bars:
        progress = FetchProgress() if quiet else _Shown(bars)
        for name in names:
            try:
                if name in made:
                    news = made[name].hint
                elif name in FOLDERS:
                    news = f"your files in {find_folder(name)}, nothing to fetch"
                else:
                    fetch(name, progress)
                    found = status(name)
                    size = decimal(found.size)
                    news = f"{len(found.files)} files, {size}, verified, in {_where(found)}"
            except DataError as error:  # the others are fetched all the same
                failures.append(str(error))
            else:
                progress.note(f"{name}: {news}")
    if failures:
        raise DataError("; ".join(failures))


class _Shown(FetchProgress):
    """Notes; on a terminal a bar for each file, elsewhere for a long download one line every so
    many seconds.
    """

    def __init__(self, bars: shown.Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, shown.TaskID] = {}
        self._last = time.monotonic()

    def advanced(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)
        if self._bars.disable and time.monotonic() - self._last >= LINE_EVERY:
            self._last = time.monotonic()
            self.note(f"  {what}: {decimal(done)}" + (f" of {decimal(total)}" if total else ""))

    def note(self, line: str) -> None:
        self._bars.console.print(line, markup=False)


# --- features -------------------------------------------------------------------------------------


def _features(args: argparse.Namespace) -> None:
    from dpfl_cli.simulation.memory import keep_freed_memory

    known = {
        name: found
        for name, found in components("dataset").items()
        if getattr(found.target, "base", None) is not None
    }
    if args.name not in known:
        raise ConfigError(f"{args.name}: not a data set of features; {nearest(args.name, known)}")
    found = known[args.name]
    chosen = {
        name: getattr(args, name)
        for name in found.settings.model_fields
        if getattr(args, name, None) is not None
    }
    settings = parse_settings(found.settings, chosen, "dataset")
    keep_freed_memory()
    info = found.target.info(settings)
    begun = time.monotonic()
    # every stage has a bar or lines of its own
    stages = SimpleNamespace(stage=partial(Progress, quiet=args.quiet))
    try:
        made = found.target.prepare(settings, stages)
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("the same command goes on from the finished blocks") from stop
    if args.quiet:
        return
    seconds = time.monotonic() - begun
    news = "nothing to compute"
    if made:
        news = f"{made} images looked at in {seconds:.1f} s ({made / seconds:.1f} images/s)"
    standin = " (stand-in)" if info.source == "standin" else ""
    size = f"{info.feature_shape[0]} values a record"
    print(f"{args.name}: {info.details['backbone']}{standin}, {size}; {news}")
    print(found.target.folder(settings))
