"""`dpfl data`: which data sets there are, getting the files of those that come in files, and
computing features of images.
"""

import argparse
from functools import partial

from rich import progress as shown
from rich.filesize import decimal

from dpfl_cli.cli.tables import print_table, wide_console
from dpfl_cli.config.component import components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, DataError
from dpfl_cli.data.fetching import fetch
from dpfl_cli.data.loading import find_folder
from dpfl_cli.data.sources import CATALOGUE, FOLDERS, Status, cache_dir, catalogue_entry, status
from dpfl_cli.simulation.progress import Progress

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
        "overrides", nargs="*", metavar="dataset.KEY=VALUE", help="its options, as of `dpfl run`"
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
        _list()
    elif args.action == "fetch":
        _fetch(args.names, args.quiet)
    else:
        _features(args)
    return 0


# --- what there is --------------------------------------------------------------------------------


def _not_downloaded() -> dict[str, tuple[str, str, str]]:
    """Registered data sets that are not in the catalogue, in the order of the list: what it is,
    what of, and what there is to fetch; generated, of a file of the user's, computed from images.
    """
    generated, own, computed = {}, {}, {}
    for name, found in components("dataset").items():
        base, parts = (getattr(found.target, key, None) for key in ("base", "sources"))
        what = found.summary
        if base is not None:
            how = f"dpfl data fetch {base}, dpfl data features {name}"
            computed[name] = (what, f"computed from {base}", how)
        elif name in CATALOGUE or name in FOLDERS:
            continue
        elif "path" in found.settings.model_fields:
            own[name] = (what, "a file of yours (dataset.path)", "nothing to fetch")
        elif parts is not None:
            generated[name] = (
                what,
                f"made of {', '.join(parts)}",
                f"dpfl data fetch {' '.join(parts)}",
            )
        else:
            generated[name] = (what, "generated from the seed", "nothing to fetch")
    return generated | own | computed


def _list() -> None:
    """Prints a table of all data sets."""
    rows = []
    for name, entry in CATALOGUE.items():
        found = status(name)
        sources = ", ".join(source.host for source in entry.sources)
        size = decimal(found.size) if found.files else ""
        rows.append((name, entry.what, entry.licence, sources, _where(found), size))
    for name, own in FOLDERS.items():
        try:
            where = str(find_folder(name))
        except DataError:
            where = f"absent: {cache_dir() / name}, or a folder {name} in DPFL_DATA"
        what = f"{own.what}; where absent, use {own.standin}"
        source = f"from your files: {own.layout.rstrip(',')}"
        rows.append((name, what, own.licence, source, where, ""))
    for name, (what, source, where) in _not_downloaded().items():
        rows.append((name, what, "", source, where, ""))
    print_table(("name", "what", "licence", "sources", "where", "size"), rows)


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
    console.quiet = quiet
    with shown.Progress(*BAR, console=console, disable=not console.is_terminal) as progress:
        for name in names:
            try:
                if name in made:
                    news = "; ".join(made[name][1:])
                elif name in FOLDERS:
                    news = f"your files in {find_folder(name)}, nothing to fetch"
                else:
                    fetch(name, progress)
                    found = status(name)
                    size = decimal(found.size)
                    news = f"{len(found.files)} files, {size}, verified, in {_where(found)}"
                console.print(f"{name}: {news}")
            except DataError as error:  # the others are fetched all the same
                failures.append(str(error))
    if failures:
        raise DataError("; ".join(failures))


# --- features -------------------------------------------------------------------------------------


def _features(args: argparse.Namespace) -> None:
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.simulation.memory import keep_freed_memory

    chosen = compose_config([f"dataset={args.name}", *args.overrides])["dataset"]
    found = lookup("dataset", chosen.pop("name"))
    if getattr(found.target, "base", None) is None:
        raise ConfigError(f"{args.name}: not a data set of features, as mnist_features")
    settings = parse_settings(found.settings, chosen, "dataset")
    info = found.target.info(settings)
    keep_freed_memory()
    try:  # every stage has a bar or lines of its own
        made = found.target.prepare(settings, partial(Progress, quiet=args.quiet))
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt("the same command goes on from the finished blocks") from stop
    if args.quiet:
        return
    news = f"{made} images looked at" if made else "nothing to compute"
    standin = " (stand-in)" if info.source == "standin" else ""
    size = f"{info.feature_shape[0]} values a record"
    print(f"{args.name}: {info.details['backbone']}{standin}, {size}; {news}")
    print(found.target.content(settings))
