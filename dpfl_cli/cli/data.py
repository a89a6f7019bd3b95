"""`dpfl data`: which data sets there are, getting the files of those that come in files, and computing features of images."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

    from dpfl_cli.data.sources import Progress, Status
    from dpfl_cli.simulation.progress import Progress as Steps

SUMMARY = "data sets: what there is, where it is, and fetching it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dpfl data`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | fetch | features")
    actions.add_parser("list", help="what there is, from where, under which licence, present or not")
    fetch = actions.add_parser("fetch", help="get the files of data sets into the cache, each verified by its published checksum")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="a data set, as `dpfl data list` names it")
    fetch.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")
    features = actions.add_parser("features", help="compute the features of a data set's images and keep them in the cache")
    features.add_argument("name", metavar="NAME", help="a data set of features, as mnist_features")
    features.add_argument(
        "--backbone", default="auto", metavar="NAME", help="auto, or a backbone that conf/dataset/NAME.yaml lists"
    )
    features.add_argument("--weights", metavar="FILE", help="the backbone's weights, where they come from you")
    features.add_argument("--components", type=int, metavar="N", help="principal components, to see that they can be had")
    for split, what in (("fit", "public"), ("train", "private training"), ("test", "test")):
        features.add_argument(f"--{split}-records", type=int, metavar="N", help=f"the first so many {what} records")
    features.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")


def execute(args: argparse.Namespace) -> int:
    """Runs the command; the exit code.

    Raises:
      DataError: an unknown name, or data that could not be had; one line.
    """
    if args.action == "features":
        return _features(args)
    return _list() if args.action == "list" else _fetch(args.names, getattr(args, "quiet", False))


def _console() -> Console:
    """A console on stdout that never breaks a line where that is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


def _list() -> int:
    from rich.table import Table

    from dpfl_cli.config.errors import DataError
    from dpfl_cli.data.catalogue import CATALOGUE, FOLDERS
    from dpfl_cli.data.folders import find_folder
    from dpfl_cli.data.sources import cache_dir, status

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what", "licence", "sources", "where"):
        table.add_column(column, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for name, entry in CATALOGUE.items():
        found = status(name)
        sources = "\n".join(source.host for source in entry.sources)
        table.add_row(name, entry.what, entry.licence, sources, _where(found), _size(found.size) if found.files else "")
    for name, own in FOLDERS.items():
        try:
            where = str(find_folder(name))
        except DataError:
            where = f"absent: {cache_dir() / name}, or a folder {name} in DPFL_DATA"
        what = f"{own.what}; where absent, use {own.standin}"
        table.add_row(name, what, own.licence, f"from your files: {own.layout.rstrip(',')}", where, "")
    for name, what in _generated().items():
        if (parts := _made_of(name)) is None:
            table.add_row(name, what, "", "generated from the seed", "always there", "")
        else:
            table.add_row(name, what, "", f"made of {', '.join(parts)}", "where they are", "")
    for name, what in _own_files().items():
        table.add_row(name, what, "", "dataset.path", "wherever you say", "")
    for name, (what, base) in _computed().items():
        table.add_row(name, what, "", f"computed from {base}", f"dpfl data features {name}", "")
    _console().print(table)
    return 0


def _generated() -> dict[str, str]:
    """Registered data sets that come in no files, with the first line of their docstrings."""
    return {name: summary for name, (summary, own) in _uncatalogued().items() if not own}


def _made_of(name: str) -> tuple[str, ...] | None:
    """The data sets of the catalogue that a generated one is made of, None where the seed is all it needs."""
    from dpfl_cli.config.component import lookup

    return getattr(lookup("dataset", name).target, "sources", None)


def _own_files() -> dict[str, str]:
    """Registered data sets that read a file of the user's, with the first line of their docstrings."""
    return {name: summary for name, (summary, own) in _uncatalogued().items() if own}


def _computed() -> dict[str, tuple[str, str]]:
    """Registered data sets computed from the images of another one: name -> first line of the docstring, that one's name."""
    import dpfl_cli.data.features  # noqa: F401
    from dpfl_cli.config.component import components

    bases = {name: (found.summary, getattr(found.target, "base", None)) for name, found in components("dataset").items()}
    return {name: (summary, base) for name, (summary, base) in bases.items() if base is not None}


def _uncatalogued() -> dict[str, tuple[str, bool]]:
    """Registered data sets that are not in the catalogue: name -> summary, and whether they read a file of the user's."""
    import dpfl_cli.data.libsvm_datasets
    import dpfl_cli.data.mnist
    import dpfl_cli.data.quadratic
    import dpfl_cli.data.standins
    import dpfl_cli.data.synthetic
    import dpfl_cli.data.synthetic_alpha_beta  # noqa: F401
    from dpfl_cli.config.component import components
    from dpfl_cli.data.catalogue import CATALOGUE, FOLDERS

    return {
        name: (found.summary, "path" in found.settings.model_fields)
        for name, found in components("dataset").items()
        if name not in (*CATALOGUE, *FOLDERS) and not hasattr(found.target, "base")
    }


def _where(found: Status) -> str:
    """Where a data set is, in a few words."""
    if found.problem is not None:
        return found.problem
    if not found.files:
        return "absent"
    if found.missing:
        return f"incomplete: no {', '.join(found.missing)}"
    return ", ".join(dict.fromkeys(str(path.parent) for path in found.files.values()))


def _size(size: float) -> str:
    """Bytes as people write them.

    >>> _size(11_594_722)
    '11.6 MB'
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _fetch(names: list[str], quiet: bool) -> int:
    from dpfl_cli.config.errors import DataError
    from dpfl_cli.data.catalogue import FOLDERS, catalogue_entry
    from dpfl_cli.data.folders import find_folder
    from dpfl_cli.data.sources import fetch, status

    names = list(dict.fromkeys(names))
    generated = [name for name in names if name in _generated()]
    own = [name for name in names if name in _own_files()]
    computed = {name: base for name, (_, base) in _computed().items() if name in names}
    wanted = [name for name in names if name not in (*generated, *own, *computed)]
    for name in wanted:
        if name not in FOLDERS:
            catalogue_entry(name)
    if (seeded := [name for name in generated if _made_of(name) is None]) and not quiet:
        print(f"{', '.join(seeded)}: generated from the seed, nothing to fetch")
    for name in generated:
        if (parts := _made_of(name)) is not None and not quiet:
            print(f"{name}: made of {', '.join(parts)} (dpfl data fetch {' '.join(parts)})")
    if own and not quiet:
        print(f"{', '.join(own)}: reads a file of yours (dataset.path), nothing to fetch")
    for name, base in computed.items():
        if not quiet:
            print(f"{name}: computed from {base} (dpfl data fetch {base}), by: dpfl data features {name}")
    failures = []
    with _progress(quiet) as progress:
        for name in wanted:
            try:
                if name in FOLDERS:
                    progress.note(f"{name}: your files in {find_folder(name)}, nothing to fetch")
                    continue
                fetch(name, progress)
            except DataError as error:  # the others are fetched all the same
                failures.append(str(error))
                continue
            found = status(name)
            progress.note(f"{name}: {len(found.files)} files, {_size(found.size)}, verified, in {_where(found)}")
    if failures:
        raise DataError("; ".join(failures))
    return 0


class _Watched:
    """Steps of a preparation, each with a bar on a terminal and plain lines elsewhere."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet

    def stage(self, title: str, total: int) -> Steps:
        from dpfl_cli.simulation.progress import Progress

        return Progress(title, total, quiet=self.quiet)


def _features(args: argparse.Namespace) -> int:
    from dpfl_cli.config.component import lookup, parse_settings
    from dpfl_cli.config.errors import ConfigError, nearest
    from dpfl_cli.simulation.execute import keep_freed_memory

    if args.name not in _computed():
        raise ConfigError(f"{args.name}: not a data set of features; {nearest(args.name, _computed())}")
    found = lookup("dataset", args.name)
    asked = {name: getattr(args, name) for name in found.settings.model_fields if getattr(args, name, None) is not None}
    settings = parse_settings(found.settings, asked, "dataset")
    keep_freed_memory()
    info = found.target.info(settings)
    begun = time.monotonic()
    try:
        made = found.target.prepare(settings, _Watched(args.quiet))
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("the same command goes on from the finished blocks") from stop
    if not args.quiet:
        seconds = time.monotonic() - begun
        new = f"{made} images looked at in {seconds:.1f} s ({made / seconds:.1f} images/s)" if made else "nothing to compute"
        standin = " (stand-in)" if info.source == "standin" else ""
        print(f"{args.name}: {info.details['backbone']}{standin}, {info.feature_shape[0]} values a record; {new}")
        print(found.target.folder(settings))
    return 0


@contextmanager
def _progress(quiet: bool) -> Iterator[Progress]:
    """Nothing when quiet, bars on a terminal, plain lines elsewhere."""
    from dpfl_cli.data.sources import Silent

    if quiet:
        yield Silent()
    elif not sys.stdout.isatty():
        yield Lines()
    else:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=_console()) as bars:
            yield Bars(bars)


class Lines:
    """Plain lines: every note, and for a long download one line every ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def advanced(self, what: str, done: int, total: int | None) -> None:
        if time.monotonic() - self._last >= 10.0:
            self._last = time.monotonic()
            print(f"  {what}: {_size(done)}" + (f" of {_size(total)}" if total else ""), flush=True)

    def note(self, line: str) -> None:
        print(line, flush=True)


class Bars:
    """One bar a file, and notes above the bars."""

    def __init__(self, bars: RichProgress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def advanced(self, what: str, done: int, total: int | None) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what, total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)

    def note(self, line: str) -> None:
        self._bars.console.print(line, markup=False)
