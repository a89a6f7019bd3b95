"""The config files of options, and what is written in them."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

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


def options_of(group: str, name: str) -> list[str]:
    """The options that choose a component: its namesake, else all that do, itself where it is a
    plugin's.
    """
    chosen = sorted(one for one, component in component_names(group).items() if component == name)
    return [name] if name in chosen or not chosen else chosen


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


def documented(path: Path) -> Iterator[tuple[str, str, str]]:
    """(key, value as it is written, comment) of everything that a config file sets, keys of nested
    values dotted; its defaults list is left out. A comment goes on in lines below that have no more
    than a comment and are indented further than the key.
    """
    text = path.read_text()
    lines = text.splitlines()

    def comment(key: yaml.Mark, value: yaml.Mark) -> str:
        found = [lines[value.line].partition(" #")[2]]
        for line in lines[value.line + 1 :]:
            before, mark, more = line.partition("#")
            if not mark or before.strip() or len(before) <= key.column:
                break
            found.append(more)
        return " ".join(" ".join(found).split())

    def below(node: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            name, mark = prefix + key.value, value.start_mark
            if not isinstance(value, yaml.ScalarNode) and not value.flow_style:
                yield from below(value, f"{name}.")
            elif written := text[mark.index : value.end_mark.index]:
                yield name, written, comment(key.start_mark, mark)

    yield from below(yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
