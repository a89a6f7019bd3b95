"""`dpfl list`: every option with one line on each; `dpfl list GROUP OPTION`: its parameters, defaults and facts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dpfl_cli.cli.calculate import CALCULATORS
from dpfl_cli.cli.plugins import load_plugins
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import conf_dir

GROUPS = ("algorithm", "dp", "mechanism", "accountant", "dataset", "partitioner", "model", "scale", "hydra/launcher")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", help=f"one of {', '.join(GROUPS)}")
    parser.add_argument("option", nargs="?", help="an option of the group")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE", help="a Python file with your own components")


def execute(args: argparse.Namespace) -> int:
    if args.group is not None and args.group not in GROUPS:
        raise ConfigError(f"list {args.group}: no such group; {nearest(args.group, GROUPS)}")
    plugged = _plugged(args.plugin)
    if args.option is None:
        for group in [args.group] if args.group else GROUPS:
            options = {**{path.stem: _line_of(group, path) for path in option_files(group)}, **plugged.get(group, {})}
            print(f"{group}=")
            width = max(map(len, options), default=0)
            for name, summary in options.items():
                print(f"  {name:<{width}}  {summary}")
        return 0
    files = {path.stem: path for path in option_files(args.group)}
    if args.option not in files and args.option not in plugged.get(args.group, {}):
        raise ConfigError(f"{args.group}={args.option}: {nearest(args.option, [*files, *plugged.get(args.group, {})])}")
    describe(args.group, args.option, files.get(args.option))
    return 0


def option_files(group: str) -> list[Path]:
    """The config files of a group's options."""
    return sorted((conf_dir() / group).glob("*.yaml"))


def summary_of(path: Path) -> str:
    """The line that says what an option is: the first comment that is not a Hydra header."""
    for line in path.read_text().splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
    return ""


def preset_of(group: str, path: Path) -> str | None:
    """The option whose component this one sets otherwise, where it is another one: the component's namesake."""
    name = next((value for key, value, _ in documented(path) if key in ("name", f"{group}.name")), path.stem)
    return name if name != path.stem and (path.parent / f"{name}.yaml").exists() else None


def _line_of(group: str, path: Path) -> str:
    """What an option is, and of what it is a preset."""
    found = preset_of(group, path)
    return summary_of(path) + (f" [preset of {group}={found}]" if found else "")


def documented(path: Path) -> list[tuple[str, str, str]]:
    """(key, value, comment) of every line of a config file that sets something, keys of nested values dotted."""
    found: list[tuple[str, str, str]] = []
    parents: list[tuple[int, str]] = []
    in_defaults = False
    for line in path.read_text().splitlines():
        body, _, comment = line.partition(" #")
        if not body.strip() or body.lstrip().startswith("#"):
            continue
        indent = len(body) - len(body.lstrip())
        if indent == 0:
            in_defaults = body.startswith("defaults:")
        if in_defaults or body.lstrip().startswith("- ") or ":" not in body:
            continue
        key, _, value = body.strip().partition(":")
        parents = [(depth, name) for depth, name in parents if depth < indent]
        if value.strip():
            found.append((".".join([*(name for _, name in parents), key]), value.strip(), comment.strip()))
        else:
            parents.append((indent, key))
    return found


def describe(group: str, option: str, path: Path | None) -> None:
    """Prints an option's parameters with defaults and comments, and what its component says of itself."""
    from dpfl_cli.config.component import components
    from dpfl_cli.simulation.plan import load_components

    load_components()
    rows = documented(path) if path is not None else []
    name = next((value for key, value, _ in rows if key in ("name", f"{group}.name")), option)
    found = (
        components(group).get(name)
        if group in ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model")
        else None
    )
    print(f"{group}={option}: {_line_of(group, path) if path else found.summary if found else ''}")
    if path is None and found is not None:
        rows = [(key, _default(info), str(info.annotation)) for key, info in found.settings.model_fields.items()]
    hidden = ("name", f"{group}.name", "_target_")
    shown = [(key, value, comment) for key, value, comment in rows if key not in hidden]
    width = max((len(key) for key, _, _ in shown), default=0)
    depth = max((len(value) for _, value, _ in shown), default=0)
    print("parameters (default):")
    for key, value, comment in shown:
        apart = key.startswith((f"{group}.", "hints.")) or (path and "@package" in path.read_text())
        full = key if apart else f"{group.replace('/', '.')}.{key}"
        print(f"  {full:<{width + len(group) + 1}}  {value:<{depth}}  {comment}")
    if found is not None:
        _facts(found.target, found.settings, group, option if path is not None else None)
        print(f"component: {found.name}, revision {found.revision}, from {found.origin}")
        if group == "algorithm" and found.name in CALCULATORS:
            print(f"in closed form: dpfl calculate {found.name}")


def _default(info: Any) -> str:
    return "(required)" if info.is_required() else str(info.default)


def _facts(target: Any, settings: Any, group: str, option: str | None) -> None:
    if getattr(target, "paper", None):
        print(f"paper: {target.paper}")
    if hasattr(target, "trusts"):
        print(f"trust models: {', '.join(sorted(target.trusts))}")
    if hasattr(target, "units"):
        print(f"privacy units: {', '.join(sorted(target.units))}")
    if group == "algorithm":
        from dpfl_cli.config.component import parse_settings
        from dpfl_cli.config.compose import compose_config

        print("releases:")
        # its own defaults, on a model that has what it needs; a plugin's method has no file and takes those of its settings
        words = [f"algorithm={option}", "model=logistic"] if option is not None else []
        for trust in sorted(target.trusts - {"none"}):
            try:
                values = {k: v for k, v in compose_config(words)["algorithm"].items() if k in settings.model_fields}
                specs = target.releases(parse_settings(settings, values, "algorithm"), trust)
            except ConfigError as error:
                print(f"  {trust}: {error}")
                continue
            for spec in specs:
                often = "per round" if spec.occurs is None else "in some rounds, by a public schedule"
                print(f"  {trust}: {spec.name} ({spec.shape}, {spec.per_round} {often}) {spec.note}")


def _plugged(files: list[str]) -> dict[str, dict[str, str]]:
    """group -> option -> summary of components that plugins bring."""
    load_plugins(files)
    from dpfl_cli.config.component import components

    return {
        group: {name: found.summary for name, found in components(group).items() if found.origin != "dpfl"}
        for group in ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model")
    }
