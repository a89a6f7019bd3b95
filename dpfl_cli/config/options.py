"""The config files of options, and what is written in them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from dpfl_cli.config.paths import conf_dir


def option_files(group: str) -> list[Path]:
    """The config files of a group's options."""
    return sorted((conf_dir() / group).glob("*.yaml"))


@cache
def component_names(group: str) -> dict[str, str]:
    """Option -> the component that it chooses."""
    keys = ("name", f"{group}.name")
    return {
        path.stem: next((value for key, value, _ in documented(path) if key in keys), path.stem)
        for path in option_files(group)
    }


def parameters(group: str, path: Path) -> list[tuple[str, str, str]]:
    """(key, default, comment) of every option that a config file sets, keys as on a command line.

    Args:
      group: "" of config.yaml.
    """
    is_global = not group or "@package _global_" in path.read_text()
    found = []
    for key, value, comment in documented(path):
        whole = is_global or key.startswith((f"{group}.", "hints."))
        if key not in ("name", f"{group}.name", "_target_"):  # what chooses the component
            found.append((key if whole else f"{group.replace('/', '.')}.{key}", value, comment))
    return found


def documented(path: Path) -> list[tuple[str, str, str]]:
    """(key, value, comment) of every line of a config file that sets something, keys of nested
    values dotted.
    """
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
            dotted = ".".join([*(name for _, name in parents), key])
            found.append((dotted, value.strip(), comment.strip()))
        else:
            parents.append((indent, key))
    return found
