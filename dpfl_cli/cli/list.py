"""`dpfl list`: every option with one line on each; `dpfl list GROUP OPTION`: its parameters,
defaults and facts.
"""

import argparse
from pathlib import Path
from typing import Any

from dpfl_cli.cli.columns import aligned
from dpfl_cli.config.component import GROUPS as COMPONENT_GROUPS
from dpfl_cli.config.component import Component, components, parse_settings
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.options import component_names, option_files, parameters
from dpfl_cli.simulation.plugins import add_plugin_option, load_plugins

GROUPS = (*COMPONENT_GROUPS, "scale", "hydra/launcher")

OWN = """\
one of your own: dpfl new algorithm|model|dataset NAME, then dpfl check FILE.py
what a run gives away: dpfl audit OVERRIDES   what reproduces: dpfl report"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="?", choices=GROUPS, metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("option", nargs="?", metavar="OPTION", help="an option of the group")
    add_plugin_option(parser)


def execute(args: argparse.Namespace) -> int:
    load_plugins(args.plugin)
    if args.option is not None:
        describe(args.group, args.option)
        return 0
    for group in [args.group] if args.group else GROUPS:
        print(f"{group}=", *aligned(_lines(group).items(), "  "), sep="\n")
    if not args.group:
        print(OWN)
    return 0


def _lines(group: str) -> dict[str, str]:
    """Option -> what it is, of config files and of what plugins bring."""
    own = {one.name: one.summary for one in components(group).values() if one.origin != "dpfl"}
    return {path.stem: line_of(group, path) for path in option_files(group)} | own


# --- config files ---------------------------------------------------------------------------------


def summary_of(path: Path) -> str:
    """The line that says what an option is: the first comment that is not a Hydra header."""
    for line in path.read_text().splitlines():
        if line.startswith("#") and "@package" not in line:
            return line.lstrip("# ").strip()
    return ""


def line_of(group: str, path: Path) -> str:
    """What an option is, and of what it is a preset: the namesake of its component."""
    name = component_names(group)[path.stem]
    is_preset = name != path.stem and path.with_stem(name).exists()
    return summary_of(path) + f" [preset of {group}={name}]" * is_preset


# --- one option -----------------------------------------------------------------------------------


def describe(group: str, option: str) -> None:
    """Prints an option's parameters with defaults and comments, and what its component says of
    itself.

    Raises:
      ConfigError: the group has no such option.
    """
    from dpfl_cli.simulation.plan import load_components

    lines = _lines(group)
    if option not in lines:
        raise ConfigError(f"{group}={option}: {nearest(option, lines)}")
    load_components()
    print(f"{group}={option}: {lines[option]}")
    found = components(group).get(component_names(group).get(option, option))
    files = {path.stem: path for path in option_files(group)}
    if option in files:
        rows = parameters(group, files[option])
    else:
        assert found is not None
        rows = [
            (
                f"{group}.{key}",
                "(required)" if info.is_required() else str(info.default),
                str(info.annotation).removeprefix("<class '").removesuffix("'>"),
            )
            for key, info in found.settings.model_fields.items()
        ]
    print("parameters (default):", *aligned(rows, "  "), sep="\n")
    if found is None:
        return
    target = found.target
    if getattr(target, "paper", None):
        print(f"paper: {target.paper}")
    if hasattr(target, "trusts"):
        print(f"trust models: {', '.join(sorted(target.trusts))}")
    if found.group == "algorithm":
        print(f"privacy unit: {target.unit}")
        print("releases:")
        for trust in sorted(target.trusts - {"none"}):
            for line in _releases(found, option, trust):
                print(f"  {trust}: {line}")
    print(f"component: {found.name}, revision {found.revision}, from {found.origin}")


def _releases(found: Component, option: str, trust: Any) -> list[str]:
    """What a method releases under a trust model, with its defaults, on a model that has what it
    needs; or why it cannot.
    """
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.privacy.releases import Setup
    from dpfl_cli.simulation.plan import specs_of

    try:
        chosen: Any = compose_config([f"algorithm={option}", "model=logistic"])["algorithm"]
        del chosen["name"]
        parsed, method = parse_settings(found.settings, chosen, "algorithm"), found.target
        # of any run: its numbers do not matter for the names of releases
        run = Setup(trust, "replace_one", method.unit, 1000, 1000, 0, 1000, lambda: 10**9)
        specs = specs_of(method, parsed, run)
    except ConfigError as error:
        return [str(error)]
    often = {True: "per round", False: "in some rounds, by a public schedule"}
    return [
        f"{one.name} ({one.shape}, {one.per_round} {often[one.made is None]}) {one.note}"
        for one in specs
    ]
