"""`dpfl data`: which data sets there are, and getting the files of those that come in files."""

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

SUMMARY = "data sets: what there is, where it is, and fetching it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `dpfl data`."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | fetch")
    actions.add_parser("list", help="what there is, from where, under which licence, present or not")
    fetch = actions.add_parser("fetch", help="get the files of data sets into the cache, each verified by its published checksum")
    fetch.add_argument("names", nargs="+", metavar="NAME", help="a data set, as `dpfl data list` names it")
    fetch.add_argument("--quiet", action="store_true", help="print nothing unless something is wrong")


def execute(args: argparse.Namespace) -> int:
    """Runs the command; the exit code.

    Raises:
      DataError: an unknown name, or data that could not be had; one line.
    """
    return _list() if args.action == "list" else _fetch(args.names, getattr(args, "quiet", False))


def _console() -> Console:
    """A console on stdout that never breaks a line where that is not a terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)


def _list() -> int:
    from rich.table import Table

    from dpfl_cli.data.catalogue import CATALOGUE
    from dpfl_cli.data.sources import status

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "what", "licence", "sources", "where"):
        table.add_column(column, overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    for name, entry in CATALOGUE.items():
        found = status(name)
        sources = "\n".join(source.host for source in entry.sources)
        table.add_row(name, entry.what, entry.licence, sources, _where(found), _size(found.size) if found.files else "")
    for name, what in _generated().items():
        table.add_row(name, what, "", "generated from the seed", "always there", "")
    for name, what in _own_files().items():
        table.add_row(name, what, "", "dataset.path", "wherever you say", "")
    _console().print(table)
    return 0


def _generated() -> dict[str, str]:
    """Registered data sets that come in no files, with the first line of their docstrings."""
    return {name: summary for name, (summary, own) in _uncatalogued().items() if not own}


def _own_files() -> dict[str, str]:
    """Registered data sets that read a file of the user's, with the first line of their docstrings."""
    return {name: summary for name, (summary, own) in _uncatalogued().items() if own}


def _uncatalogued() -> dict[str, tuple[str, bool]]:
    """Registered data sets that are not in the catalogue: name -> summary, and whether they read a file of the user's."""
    import dpfl_cli.data.libsvm_datasets
    import dpfl_cli.data.mnist
    import dpfl_cli.data.synthetic
    import dpfl_cli.data.synthetic_alpha_beta  # noqa: F401
    from dpfl_cli.config.component import components
    from dpfl_cli.data.catalogue import CATALOGUE

    return {
        name: (found.summary, "path" in found.settings.model_fields)
        for name, found in components("dataset").items()
        if name not in CATALOGUE
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
    from dpfl_cli.data.catalogue import catalogue_entry
    from dpfl_cli.data.sources import fetch, status

    names = list(dict.fromkeys(names))
    generated = [name for name in names if name in _generated()]
    own = [name for name in names if name in _own_files()]
    wanted = [name for name in names if name not in (*generated, *own)]
    for name in wanted:
        catalogue_entry(name)
    if generated and not quiet:
        print(f"{', '.join(generated)}: generated from the seed, nothing to fetch")
    if own and not quiet:
        print(f"{', '.join(own)}: reads a file of yours (dataset.path), nothing to fetch")
    failures = []
    with _progress(quiet) as progress:
        for name in wanted:
            try:
                fetch(name, progress)
            except DataError as error:  # the others are fetched all the same
                failures.append(str(error))
                continue
            found = status(name)
            progress.note(f"{name}: {len(found.files)} files, {_size(found.size)}, verified, in {_where(found)}")
    if failures:
        raise DataError("; ".join(failures))
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
