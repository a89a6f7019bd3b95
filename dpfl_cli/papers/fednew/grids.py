"""Table 7: the grids of the searches; the paper's are lost (section 6.1). Nothing is trained."""

from collections.abc import Mapping, Sequence
from functools import partial

from dpfl_cli.papers.fednew._search import (
    DAMPINGS,
    KEYS,
    NEWTON_CLIPS,
    PENALTIES,
    SERVER_STEPS,
    SMALL_CLIPS,
    TABLE_8_BOUNDS,
    Points,
    search,
)
from dpfl_cli.papers.fednew._user_search import points as search_of_clients
from dpfl_cli.papers.fednew.setting import equal, private
from dpfl_cli.reproduction.api import (
    Artifact,
    Comparisons,
    Fact,
    Figure,
    Rows,
    Run,
    Runs,
    Scale,
    Table,
    claim,
    exact,
    untrained,
)

ONE = (1.0,)
LOCAL = {"steps": (1, 5), "length": (1.0, 2.0)}
NEWTON = {"alpha": DAMPINGS, "rho": PENALTIES}
COVARIANCE = {"alpha": DAMPINGS, "feature_clip": ONE, "clip": ONE}
GRIDS: Mapping[str, tuple[str, str, Mapping[str, Sequence[float]]]] = {
    "FN": (
        "record",
        "fednew_record",
        {**NEWTON, "bound": DAMPINGS, "clip": ONE, "side": ONE, "eta": ONE},
    ),
    "FGD": ("record", "fedgd_record", {"eta": SERVER_STEPS[2:], "clip": ONE}),
    "FFC": ("record", "fedfc_record", {"eta": SERVER_STEPS[2:], **COVARIANCE}),
    "Scaf": ("record", "scaffold_record", {**LOCAL, "clip": ONE, "eta": ONE}),
    "FN_client": ("client", "fednew", {**NEWTON, "clip": NEWTON_CLIPS, "eta": ONE}),
    "FGD_client": ("client", "fedgd", {"eta": SERVER_STEPS[1:6], "clip": SMALL_CLIPS}),
    "FFC_client": ("client", "fedfc", {"eta": (0.3, 1.0, 3.0), **COVARIANCE}),
    "Scaf_client": ("client", "scaffold", {**LOCAL, "clip": SMALL_CLIPS}),
}
PARAMETERS = {
    "alpha": "damping",
    "rho": "penalty",
    "bound": "curvature bound",
    "side": "bound with the auxiliary vector",
    "clip": "clip norm",
    "feature_clip": "clip of features",
    "eta": "server step",
    "steps": "local steps",
    "length": "local steps * local step size",
}
WHERE = {**KEYS, "length": "algorithm.local_lr"}
WHOSE = {
    "FN": "DP-FedNew, DP-FedNew-FC",
    "FGD": "DP-FedGD",
    "FFC": "DP-FedFC",
    "Scaf": "DP-SCAFFOLD",
}


SEARCHES: Mapping[str, Points] = {  # of a level
    "record": partial(search, bounds=TABLE_8_BOUNDS),
    "client": search_of_clients,
}
PARAMETER_OF = {"gamma": "alpha", "gradient_clip": "clip"}  # label of a search -> its name here
SEARCHED = ("fashion_mnist", "federated_emnist", "synthetic", "adult")  # presets


def grids(scale: Scale) -> dict[str, dict[str, list[float]]]:
    """`GRIDS`, and what the searches of a scale take beyond them; by method and parameter."""
    found = {}
    for method, (level, _, grid) in GRIDS.items():
        values = {parameter: set(known) for parameter, known in grid.items()}
        # not searched on Adult: figs 7 and 8 are of images alone
        for preset in SEARCHED[:-1] if method == "FFC_client" else SEARCHED:
            for point in SEARCHES[level](method.removesuffix("_client"), scale, preset):
                for label, value in point.items():
                    values[PARAMETER_OF.get(label, label)].add(value)
        found[method] = {parameter: sorted(many) for parameter, many in values.items()}
    return found


def table7_runs(scale: Scale) -> Runs:
    for method, grid in grids(scale).items():
        level, algorithm, _ = GRIDS[method]
        for parameter, values in grid.items():
            for place, value in enumerate(values, start=1):
                yield Run(
                    {"method": method, "parameter": parameter, "place": place},
                    ["dataset=synthetic_alpha_beta", *private(algorithm, level)],
                    {WHERE[parameter]: value},
                )


OWN_GRID = "about this project's grid, which is made so"


@claim("Tables 6 and 12", "holds", invariant=True, note=OWN_GRID)
def known(rows: Rows) -> Comparisons:
    """damping may be 0.01, 0.1 or 1, the penalty 0.01, 0.1, 1, 10 or 100"""
    for name, wanted in (("alpha", [0.01, 0.1, 1]), ("rho", [0.01, 0.1, 1, 10, 100])):
        found = rows.values(name, method="FN", parameter=name)
        yield exact(set(found) >= set(wanted), f"{PARAMETERS[name]} may be one of {wanted}")


@claim("Tables 6 and 12", "holds", invariant=True, note=OWN_GRID)
def fixed(rows: Rows) -> Comparisons:
    """server step and both bounds of gradients of DP-FedNew are 1"""
    for name in ("clip", "side", "eta"):
        yield from equal(rows, name, 1, method="FN", parameter=name)


table7 = Artifact(
    id="table7",
    title="Grids of the searches at record level, and at client level",
    shows="The values that searches choose from, at scale=paper with those that they take beyond "
    "this project's grid. The paper's table is lost: the damping and penalty "
    "of DP-FedNew are known from its Tables 6 and 12, what was tuned from its text, and the "
    "rest is this project's proposal. What second-order methods gain depends on how far "
    "DP-FedGD's server step goes.",
    source="Table 7 (lost), Tables 6 and 12",
    sizes=untrained(minutes=0.1),
    runs=table7_runs,
    measures={
        name: Fact(WHERE[name], where={"parameter": name}, title=title)
        for name, title in PARAMETERS.items()
    },
    titles={
        "place": "value",
        **WHOSE,
        **{f"{method}_client": f"{title}, client level" for method, title in WHOSE.items()},
    },
    tables=[
        Table(
            rows=["method", "parameter"],
            columns="place",
            cells=list(PARAMETERS),
            notes="The searches take some of these values, which the artifacts say; on Adult "
            "table8 takes no server step above 10, and it alone a curvature bound of 10.",
        )
    ],
    figures=[
        Figure(
            "lines",
            "place",
            ["alpha", "rho", varied, "eta", "steps", "length"],
            series="method",
            panels="parameter",
            where={"method": names},
            log="y",
            x_title="value no.",
            y_title="value",
            title=f"at {level} level",
        )
        for level, varied, names in (  # clip norms are 1 at record level
            ("record", "bound", list(WHOSE)),
            ("client", "clip", [f"{one}_client" for one in WHOSE]),
        )
    ],
)
