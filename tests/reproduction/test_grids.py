"""fednew/table7 says what is searched: its grids against those of the artifacts that search."""

from __future__ import annotations

from collections.abc import Iterator

from dpfl_cli.reproduction.declaration import Block, artifact_names, load_artifact
from dpfl_cli.reproduction.grid import requests

PARAMETERS = {
    "algorithm.damping": "alpha",
    "algorithm.penalty": "rho",
    "algorithm.curvature_clip_norm": "bound",
    "algorithm.side_clip_norm": "side",
    "algorithm.clip_norm": "clip",
    "algorithm.feature_clip_norm": "feature_clip",
    "algorithm.server_lr": "eta",
    "algorithm.local_steps": "steps",
}
Searched = dict[tuple[str, str], set[float]]  # algorithm, parameter -> values


def algorithms(block: Block) -> list[str]:
    """What the block's runs train with."""
    cases = [case for axis in block.axes.values() for case in axis.cases.values()]
    words = [word for words in (block.overrides, *(case.overrides for case in cases)) for word in words]
    return [word.removeprefix("algorithm=") for word in words if word.startswith("algorithm=")]


def varied(block: Block) -> Iterator[tuple[str, float]]:
    """Parameter and value of everything that axes and zipped tables vary; steps times step size is the label `length`."""
    for axis in block.axes.values():
        if axis.key in PARAMETERS:
            yield from ((PARAMETERS[axis.key], float(value)) for value in axis.values)
    for table in block.zip:
        for column, name in enumerate([*table.labels, *table.keys]):
            parameter = "length" if name == "length" else PARAMETERS.get(name)
            if parameter is not None:
                yield from ((parameter, float(row[column])) for row in table.rows)  # type: ignore[arg-type]


def searches(names: list[str]) -> Searched:
    found: Searched = {}
    for name in names:
        for block in load_artifact(name).declaration.runs:
            if "paper" in block.scales:
                for algorithm in algorithms(block):
                    for parameter, value in varied(block):
                        found.setdefault((algorithm, parameter), set()).add(value)
    return found


def stated() -> Searched:
    found: Searched = {}
    for block in load_artifact("fednew/table7").declaration.runs:
        (algorithm,), (table,) = algorithms(block), block.zip
        assert [row[0] for row in table.rows] == list(range(1, len(table.rows) + 1))
        found[algorithm, str(block.labels["parameter"])] = {float(row[1]) for row in table.rows}  # type: ignore[arg-type]
    return found


def test_every_grid_of_the_searches_is_stated_and_no_other() -> None:
    known, said = (
        searches([name for name in artifact_names() if name.startswith("fednew/") and name != "fednew/table7"]),
        stated(),
    )
    assert {key: said.get(key) for key in known} == known
    assert len(known) >= 20


def test_what_is_stated_and_not_searched_is_what_all_runs_take() -> None:
    names = [
        name for name in artifact_names() if name.startswith("fednew/") and name not in ("fednew/table7", "fednew/extra_privacy")
    ]
    known = searches(names)
    fixed = {key: values for key, values in stated().items() if key not in known}
    keys = {parameter: key.removeprefix("algorithm.") for key, parameter in PARAMETERS.items()}
    assert fixed
    taken: Searched = {}
    for name in ("fednew/table6", "fednew/table8", "fednew/fig3"):  # every method that has something fixed
        for request in requests(load_artifact(name), "smoke"):
            named = [word.removeprefix("algorithm=") for word in request.overrides if word.startswith("algorithm=")][-1]
            hyper = request.config()["algorithm"]
            for algorithm, parameter in fixed:
                if named == algorithm:
                    taken.setdefault((algorithm, parameter), set()).add(float(hyper[keys[parameter]]))
    assert taken == fixed
