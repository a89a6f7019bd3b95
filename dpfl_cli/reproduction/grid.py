"""From a declaration to the runs that it asks for: labels, seed and plan of each.

Every distinct list of Hydra overrides is composed once; what varies along axes with values and zipped tables is set afterwards,
so that a grid of hundreds of runs costs a handful of compositions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from dpfl_cli.config.compose import compose_config
from dpfl_cli.config.errors import ConfigError, DpflError
from dpfl_cli.reproduction.declaration import Artifact, Block, Label, Scalar, Scale, Where
from dpfl_cli.simulation.plan import Plan, make_plan, with_values


@dataclass(frozen=True)
class Request:
    """One run as declared: labels, seed, the overrides to compose, the values to set after them, whether it is run alone."""

    labels: dict[str, Label]
    seed: int
    overrides: tuple[str, ...]
    values: dict[str, Scalar] = field(default_factory=dict)
    exclusive: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for requests of one run."""
        return self.overrides, tuple(sorted(self.values.items())), self.seed

    def config(self) -> dict[str, Any]:
        """The composed config."""
        return with_values(composed(self.overrides), {**self.values, "seed": self.seed})


@dataclass(frozen=True)
class Cell:
    """A run that an artifact needs; an exclusive one alone and anew, for its times."""

    labels: dict[str, Label]
    seed: int
    plan: Plan
    exclusive: bool = False


@lru_cache(maxsize=512)
def composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The composed config of a list of overrides; not to be changed."""
    return compose_config(list(overrides))


def requests(artifact: Artifact, scale: str) -> list[Request]:
    """The runs that an artifact asks for at a scale, in the order of its blocks, axes and seeds."""
    found: list[Request] = []
    size = artifact.scale(scale)
    seeds = range(size.seeds if artifact.trains else 1)
    for number, block in enumerate(artifact.declaration.runs):
        if scale not in block.scales:
            continue
        shared = {**block.set, **size.set, **block.at.get(scale, {})}
        try:
            for labels, overrides, values in _combinations(block, size):
                found += [Request(labels, seed, overrides, {**shared, **values}, block.exclusive) for seed in seeds]
        except ConfigError as error:
            raise ConfigError(f"artifact {artifact.name}: runs.{number}: {error}") from None
    if artifact.used is not None:
        assert artifact.declaration.use is not None
        where = artifact.declaration.use.where
        found += [request for request in requests(artifact.used, scale) if matches(request.labels, where)]
    return found


def cells(artifact: Artifact, scale: str) -> list[Cell]:
    """The same as plans: everything is validated, and data are found, before anything runs.

    Raises:
      ConfigError, DataError: with the artifact's name and the labels of the run in front.
    """
    return [
        Cell(request.labels, request.seed, _plan(artifact, request), request.exclusive) for request in requests(artifact, scale)
    ]


def _plan(artifact: Artifact, request: Request) -> Plan:
    try:
        return make_plan(request.config())
    except DpflError as error:
        which = " ".join(f"{name}={value}" for name, value in request.labels.items())
        raise type(error)(f"artifact {artifact.name} ({which}): {error}") from error


def matches(labels: Mapping[str, Any], where: Where | Mapping[str, Any]) -> bool:
    """Whether labels have all these values (or one of each list)."""
    return all(same(labels.get(name, ""), wanted) for name, wanted in where.items())


def same(value: Any, wanted: Any) -> bool:
    """Whether a label has a value, or one of a list; true is not 1."""
    if isinstance(wanted, list | tuple):
        return any(same(value, one) for one in wanted)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)


def _combinations(block: Block, size: Scale) -> Iterator[tuple[dict[str, Label], tuple[str, ...], dict[str, Scalar]]]:
    """Labels, overrides and values of every combination of the axes that the zipped tables leave."""
    axes = [list(_choices(name, block, size)) for name in block.axes]
    for choice in itertools.product(*axes):
        labels: dict[str, Label] = dict(block.labels)
        overrides: list[str] = list(block.overrides)
        values: dict[str, Scalar] = {}
        for name, (label, more, sets) in zip(block.axes, choice, strict=True):
            labels[name] = label
            overrides += more
            values.update(sets)
        for joined, added in _joined(block, labels):
            yield joined, tuple(overrides), {**values, **added}


def _choices(name: str, block: Block, size: Scale) -> Iterator[tuple[Label, list[str], dict[str, Scalar]]]:
    axis = block.axes[name]
    wanted = size.axes.get(name)
    if axis.key is not None:
        for value in axis.values if wanted is None else wanted:
            yield value, [], {axis.key: value}
        return
    for choice in axis.cases if wanted is None else wanted:
        case = axis.cases.get(str(choice))
        if case is not None:  # a case of the axis of that name in another block
            yield str(choice), case.overrides, case.set
    if wanted is not None and not {str(choice) for choice in wanted} & set(axis.cases):
        raise ConfigError(f"axes.{name}: the scale leaves none of {', '.join(axis.cases)}")


def _joined(block: Block, labels: dict[str, Label]) -> Iterator[tuple[dict[str, Label], dict[str, Scalar]]]:
    """The labels with what each zipped table adds, once per combination of fitting rows."""
    options: list[tuple[dict[str, Label], dict[str, Scalar]]] = [(labels, {})]
    for table in block.zip:
        following = []
        for known, values in options:
            for row in table.rows:
                named = dict(zip(table.labels, row[: len(table.labels)], strict=True))
                if any(name in known and given != "*" and not same(known[name], given) for name, given in named.items()):
                    continue
                added = {name: given for name, given in named.items() if name not in known and given is not None}
                following.append(({**known, **added}, {**values, **dict(zip(table.keys, row[len(table.labels) :], strict=True))}))
        options = following
    yield from options
