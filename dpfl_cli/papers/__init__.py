"""The five papers, and what compares their methods (cross): a package each, a module per group of
artifacts that share runs.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.own_files import import_own
from dpfl_cli.reproduction.artifact import Artifact


@cache
def artifacts() -> dict[str, Artifact]:
    """Every artifact of every paper, by name."""
    found: dict[str, Artifact] = {}
    for module in _modules():
        found |= {one.name: one for one in declared(module)}
    return dict(sorted(found.items()))


def _modules() -> Iterator[ModuleType]:
    for paper in pkgutil.iter_modules(__path__, f"{__name__}."):
        if paper.ispkg:
            package = importlib.import_module(paper.name)
            for module in pkgutil.iter_modules(package.__path__, f"{paper.name}."):
                yield importlib.import_module(module.name)


def declared(module: ModuleType) -> list[Artifact]:
    """The artifacts that a module has."""
    return [one for one in vars(module).values() if isinstance(one, Artifact)]


def own(path: Path) -> list[Artifact]:
    """The artifacts of a file of one's own.

    Raises:
      ConfigError: the file cannot be read, fails, or declares none.
    """
    module = import_own(str(path), "")
    found = [one for one in declared(module) if one.paper is None]
    if not found:
        raise ConfigError(
            f"{path}: declares no Artifact with paper=None; docs/reproduce.md shows one"
        )
    return found


def select(words: Sequence[str]) -> list[Artifact]:
    """The artifacts that words mean: all, a paper, <paper>/<id>, or a Python file of one's own.

    Raises:
      ConfigError: an unknown name, with the nearest one; two that would be written to one folder.
    """
    known = artifacts()
    papers = list(dict.fromkeys(name.split("/")[0] for name in known))
    chosen: list[Artifact] = []
    for word in dict.fromkeys(words):
        if word.endswith(".py"):
            chosen += own(Path(word))
        elif word == "all" or word in papers:
            chosen += [one for name, one in known.items() if word in ("all", name.split("/")[0])]
        elif word in known:
            chosen.append(known[word])
        else:
            near = nearest(word, ["all", *papers, *known])
            raise ConfigError(f"{word}: no such artifact; {near} (dpfl reproduce --list)")
    found: dict[str, Artifact] = {}
    for artifact in chosen:
        other = found.setdefault(artifact.name, artifact)
        if other is not artifact:
            raise ConfigError(
                f"{artifact.path}: {other.path} has a {artifact.name} too; rename one"
            )
    return list(found.values())
