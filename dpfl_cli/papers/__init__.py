"""The five papers, and what compares their methods (cross): a package each, a module per group of
artifacts that share runs.
"""

import importlib
import pkgutil
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.own_files import import_own
from dpfl_cli.config.paths import expanded
from dpfl_cli.reproduction.artifact import Artifact


@cache
def artifacts() -> dict[str, Artifact]:
    """Every artifact of every paper, by name."""
    names = [one.name for one in pkgutil.walk_packages(__path__, f"{__name__}.")]
    found = [one for name in names for one in declared(importlib.import_module(name))]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def declared(module: ModuleType) -> list[Artifact]:
    """The artifacts that a module has."""
    return [one for one in vars(module).values() if isinstance(one, Artifact)]


def own(path: Path) -> list[Artifact]:
    """The artifacts of a file of one's own.

    Raises:
      ConfigError: the file cannot be read, fails, declares none, or one whose id names no folder.
    """
    module = import_own(str(path), "")
    folder = expanded(str(path)).absolute().parent  # files of one content are one module
    found = [
        replace(one, numbers=str(folder / one.numbers)) if one.numbers else one
        for one in declared(module)
        if one.paper is None
    ]
    if not found:
        raise ConfigError(
            f"{path}: declares no Artifact with paper=None; docs/reproduce.md shows one"
        )
    for one in found:
        if not re.fullmatch(r"[\w-]+", one.id):
            raise ConfigError(f"{path}: id={one.id!r}: name a folder: letters, digits, _ and -")
    return found


def select(words: Sequence[str]) -> list[Artifact]:
    """The artifacts that words mean: all, a paper, <paper>/<id>, or a Python file of one's own.

    Raises:
      ConfigError: an unknown name, with the nearest one; two that would be written to one folder.
    """
    meant = {"all": [*artifacts().values()]}
    for name, one in artifacts().items():
        meant.setdefault(name.split("/")[0], []).append(one)
        meant[name] = [one]
    found: dict[str, Artifact] = {}
    for word in dict.fromkeys(words):
        if not word.endswith(".py") and word not in meant:
            same = [name for name in meant if name.endswith(f"/{word}")]
            near = f"choose from: {', '.join(same)}" if same else nearest(word, meant)
            raise ConfigError(f"{word}: no such artifact; {near} (dpfl reproduce --list)")
        for artifact in meant.get(word) or own(Path(word)):
            other = found.setdefault(artifact.name, artifact)
            if other is not artifact:
                raise ConfigError(
                    f"{artifact.path}: {other.path} has a {artifact.name} too; rename one"
                )
    return [*found.values()]
