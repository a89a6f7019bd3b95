"""What DP-FedNew's artifacts share: methods, grids, data, and the search for a method's best point.

The paper searches a grid per method, number of clients and epsilon, by the mean accuracy of the
last 20 rounds (section 6.1). Its grids (Table 7) are lost: those here are this project's.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from dpfl_cli.reproduction.api import Metric, Run, Scale, Search, Values, Where, grid

Point = Where  # of one point of a grid

# --- methods ----------------------------------------------------------------------------------

AS_CLAIMED = "algorithm.dual=paper algorithm.bound_aux=xi algorithm.sensitivity=paper"
COVARIANCE = "algorithm.curvature=covariance"
WARM = "algorithm.warm_start=true"
WHOLE_SHARE, SHARE = "mechanism.noise_share=false", "mechanism.noise_share=true"
Methods = Mapping[str, str]  # method -> algorithm and its settings, in words of `dpfl run`
RECORD_LEVEL: Methods = {
    "FN": f"fednew_record {AS_CLAIMED}",
    "FN_FC": f"fednew_record {AS_CLAIMED} {COVARIANCE}",
    "FGD": "fedgd_record",
    "FFC": "fedfc_record",
    "Scaf": f"scaffold_record {WARM} {WHOLE_SHARE}",
    "Scaf_share": f"scaffold_record {WARM} {SHARE}",
}
SCAFFOLD = ("Scaf", "Scaf_share")
FIRST_ORDER = ("FGD", *SCAFFOLD)

# --- grids ------------------------------------------------------------------------------------

DAMPINGS = (0.01, 0.1, 1.0)
PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0)
SERVER_STEPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
SMALL_CLIPS = (0.03, 0.1, 1.0)  # at user level
NEWTON_CLIPS = (*SMALL_CLIPS, 10.0)
NEWTON_GRID = {"alpha": DAMPINGS, "rho": PENALTIES, "bound": DAMPINGS, "clip": NEWTON_CLIPS}
KEYS = {  # label -> the config key that it sets
    "clients": "partitioner.clients",
    "eps": "dp.epsilon",
    "alpha": "algorithm.damping",
    "rho": "algorithm.penalty",
    "bound": "algorithm.curvature_clip_norm",
    "side": "algorithm.side_clip_norm",
    "eta": "algorithm.server_lr",
    "gamma": "algorithm.damping",
    "feature_clip": "algorithm.feature_clip_norm",
    "gradient_clip": "algorithm.clip_norm",
    "clip": "algorithm.clip_norm",
    "steps": "algorithm.local_steps",
}
EPSILONS = {  # of tables
    "quick": (0.1, 10.0),
    "paper": (0.1, 0.3, 0.5, 0.7, 1.0, 2.0, 3.0, 8.0, 10.0),
}
OF_CURVES = {**EPSILONS, "paper": (0.1, 0.5, 1.0, 2.0, 3.0, 10.0)}
# fewer where a run takes long: what claims ask for, the same in tables and figures with equal runs
OF_WIDE = {**EPSILONS, "paper": (0.1, 0.5, 8.0, 10.0)}  # a layer over all features
OF_DIFFERING = {**EPSILONS, "paper": (0.1, 0.5, 1.0, 3.0, 10.0)}  # federated EMNIST
ADULT_POINTS = ((0.1, 0.1, 0.1), (0.1, 0.1, 1.0), (0.1, 1.0, 0.1), (0.1, 1.0, 1.0))
IMAGE_POINTS = (
    (0.1, 1.0, 0.1),
    (0.1, 0.1, 0.1),
    (0.1, 0.1, 0.01),
    (0.01, 0.1, 0.1),
    (0.01, 0.1, 0.01),
    (0.01, 0.01, 0.01),
)
# at scale=paper all of Table 7's, but one: its constant needs more records than a client holds at
# the reduced size
TRIPLES = [one for one in product(DAMPINGS, PENALTIES, DAMPINGS) if one != (0.01, 0.01, 1.0)]
NEVER_BEST = (0.1, 0.1, 0.1)  # on images, wherever the whole grid was run at quick, which leaves it
# Where both DP-FedGD's largest step and DP-FedNew's smallest damping and penalty were the best at
# quick, both grids go on at scale=paper, beyond Table 7.
SMALLER_STEP, WIDER_STEPS = (0.1,), (300.0, 1000.0)
BETWEEN_ON_ADULT = (5.0, 7.0)  # there 3 was DP-FedGD's best everywhere, and 10 the next
WIDER_POINTS = ((0.01, 0.01, 0.001), (0.003, 0.003, 0.01), (0.001, 0.001, 0.001))
WIDER_ADULT_POINTS = ((0.1, 10.0, 0.1), (0.1, 1.0, 0.01))
# smaller and larger bounds beside a penalty of 1: both 0.01 and 1 were the best there; then the
# smaller one beside 0.1 too
WIDER_BOUNDS = ((0.1, 1.0, 0.001), (0.1, 1.0, 10.0), (0.1, 0.1, 0.001))
STEPS_UP_TO = f"up to {SERVER_STEPS[-1]:g}, and at scale=paper up to {WIDER_STEPS[-1]:g} on images"
GAMMAS = (0.1, 1.0)
WIDER_GAMMAS = (0.001, 0.01, 10.0)  # 0.01 at first, of which and 1 both were the best
LOCAL_POINTS = ((1, 1.0), (1, 2.0), (5, 2.0))  # local steps, and their number times their size
# with 4 as the longest, that was the best nearly everywhere
WIDER_LOCAL_POINTS = ((1, 0.5), (5, 4.0), (5, 16.0), (5, 64.0), (5, 256.0))
# where clients differ and in table4, for both ends of these, and both 1 and 5 local steps, were the
# best there
WIDEST_LOCAL_POINTS = ((1, 0.25), (5, 1024.0), (20, 16.0), (20, 256.0), (20, 1024.0))
DIFFERENT = ("federated_emnist", "synthetic")  # presets
Points = Callable[[str, Scale, str], Iterable[Point]]  # of a method, a scale and a preset


def search(
    method: str,
    scale: Scale,
    preset: str,
    steps: Sequence[float] = SERVER_STEPS[1:],
    between: Sequence[float] = BETWEEN_ON_ADULT,
    triples: Sequence[tuple[float, float, float]] = TRIPLES,
    widest: bool = False,
) -> Iterator[Point]:
    """The points of a method's grid at record level that are searched.

    Args:
      steps: server steps of DP-FedGD and DP-FedFC.
      between: more server steps on Adult, at scale=paper.
      triples: more dampings, penalties and bounds of DP-FedNew, at scale=paper; on Adult
        `WIDER_BOUNDS` join them, where there are any.
      widest: whether DP-SCAFFOLD has `WIDEST_LOCAL_POINTS` at scale=paper where clients do not
        differ.
    """
    adult, wider = preset == "adult", scale == "paper"
    if adult and triples:
        triples = (*WIDER_BOUNDS, *triples)
    if wider:
        steps = (*steps, *between) if adult else (*SMALLER_STEP, *steps, *WIDER_STEPS)
    if method in ("FN", "FN_FC"):
        usual, more = (ADULT_POINTS, WIDER_ADULT_POINTS) if adult else (IMAGE_POINTS, WIDER_POINTS)
        for alpha, rho, bound in dict.fromkeys((*usual, *more, *triples) if wider else usual):
            if wider or adult or (alpha, rho, bound) != NEVER_BEST:
                yield {"alpha": alpha, "rho": rho, "bound": bound}
    elif method == "FGD":
        yield from grid(eta=steps)
    elif method == "FFC":
        gammas = (*(WIDER_GAMMAS if wider else ()), *GAMMAS)
        steps = [step for step in steps if step < WIDER_STEPS[-1]]
        yield from grid(eta=steps, gamma=gammas, feature_clip=1.0, gradient_clip=1.0)
    else:
        widest_points = WIDEST_LOCAL_POINTS if widest or preset in DIFFERENT else ()
        more = (*WIDER_LOCAL_POINTS, *widest_points) if wider else ()
        for count, length in (*LOCAL_POINTS, *more):
            yield {"steps": count, "length": length}


# checks of whole grids of wide features found nothing better beside the few points
search_of_wide = partial(search, triples=())


def settings(labels: Point) -> Values:
    """The config values that labels stand for; `length` is local steps times their size."""
    found = {KEYS[name]: value for name, value in labels.items() if name in KEYS}
    if "length" in labels:
        found["algorithm.local_lr"] = labels["length"] / labels["steps"]
    return found


# --- methods and grids where a whole client is protected ------------------------------------------

USER = "dp.unit=client dp.relation=zero_out"
DUALS = "algorithm.dual=paper dp.mode=paper"
NO_DUALS = "algorithm.dual=off dp.mode=sound"
PROVED = f"{USER} dp.mode=sound"
SENT = f"{USER} {WARM} algorithm.control=sent dp.mode=paper"
USER_LEVEL: Methods = {
    "FN": f"fednew {USER} {DUALS}",
    "FN_off": f"fednew {USER} {NO_DUALS}",
    "FN_FC": f"fednew {USER} {DUALS} {COVARIANCE}",
    "FN_FC_off": f"fednew {USER} {NO_DUALS} {COVARIANCE}",
    "FGD": f"fedgd {PROVED}",
    "FFC": f"fedfc {PROVED}",
    "Scaf": f"scaffold {SENT} {WHOLE_SHARE}",
    "Scaf_share": f"scaffold {SENT} {SHARE}",
}
# wider at scale=paper, where ends were the best at quick, and of those to 30 the largest again
USER_STEPS, WIDER_USER_STEPS = (0.3, 1.0, 3.0, 10.0), (30.0, 100.0, 300.0)
WIDER_CLIP = 3.0  # where DP-FedNew's smallest dampings win, so does the largest of the clip norms
# Server steps of 30 were the best and, where clients do not differ, DP-FedNew's smallest damping:
# both grids go on.
SMALLEST_DAMPINGS = (0.0003, 0.0001)
LENGTHS = {  # of 5 local steps at scale=paper, where clients differ or not
    True: (4.0, 16.0, 64.0),
    False: (2.0, 8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0),
}
# and where clients do not differ, clip norms go on with the steps that go with them
SMALLER_CLIP, LARGER_CLIP = 0.01, 10.0
WITH_SMALLER_CLIP = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def search_of_clients(method: str, scale: Scale, preset: str) -> Iterator[Point]:
    """The points of a method's grid at user level that are searched; at scale=paper also those
    beyond, for the ends of the others were the best.
    """
    adult, wider = preset == "adult", scale == "paper"
    differ = preset in DIFFERENT
    beyond = wider and not differ
    clips = SMALL_CLIPS if wider or adult else SMALL_CLIPS[1:]
    server_steps = (0.1, *USER_STEPS, *WIDER_USER_STEPS) if wider else USER_STEPS
    if method == "FGD":
        yield from grid(eta=server_steps, clip=clips)
        if wider:
            yield from grid(eta=WITH_SMALLER_CLIP, clip=SMALLER_CLIP)
            yield {"eta": 1000.0, "clip": 0.03}
            if differ:  # there 300 was the best beside this clip norm
                yield {"eta": 1000.0, "clip": 0.1}
    elif method == "FFC":
        gammas = (0.01, *GAMMAS) if wider else GAMMAS
        steps = server_steps[1:] if wider else server_steps[:-1]
        yield from grid(eta=steps, gamma=gammas, feature_clip=1.0, clip=clips)
        if beyond:
            yield from grid(eta=WITH_SMALLER_CLIP, gamma=1.0, feature_clip=1.0, clip=SMALLER_CLIP)
            yield from grid(eta=WITH_SMALLER_CLIP[2:], gamma=10.0, feature_clip=1.0, clip=0.03)
            yield {"eta": 1000.0, "gamma": 1.0, "feature_clip": 1.0, "clip": 0.03}
    elif method in SCAFFOLD:
        local, lengths = [(1, 1.0), (5, 2.0 if differ else 1.0)], LENGTHS[differ]
        if wider:
            local += [(1, 0.5), *((5, length) for length in lengths)]
        for clip, (count, length) in product(clips, local):
            yield {"steps": count, "length": length, "clip": clip}
        if wider:
            # of clip norms the smallest was the best nearly everywhere: 0.01, then 0.001
            longer, clips = lengths if differ else lengths[1:], (SMALLER_CLIP, 0.003, 0.001)
            yield from grid(steps=5, length=longer, clip=(*clips, 0.0003, 0.0001))
        if beyond:
            yield from grid(steps=20, length=lengths[2:5], clip=0.03)
    else:
        # at quick the largest was the best nowhere else
        penalties = (0.01, 0.1, 1.0) if wider or adult else (0.01, 0.1)
        triples, pairs = [*product((0.1,), penalties, clips)], list[tuple[float, float]]()
        if wider:
            # elsewhere checks of whole grids found nothing better by more than 0.03 points
            if differ:  # there a clip norm of 0.03 was the best of DP-FedNew's in half of the cells
                triples += product(DAMPINGS, PENALTIES, (*NEWTON_CLIPS, SMALLER_CLIP))
                triples += product(DAMPINGS, (0.01, 0.1), (0.003, 0.001))
                triples += product((10.0,), (0.01, 0.1), SMALL_CLIPS)
            smallest = () if differ else SMALLEST_DAMPINGS
            pairs += product((0.01, 0.001, *smallest), (*clips, WIDER_CLIP))
        if beyond:
            pairs += product((0.00003, 0.00001), (0.1, 1.0, 3.0))
            pairs += product((0.01, 0.001, *SMALLEST_DAMPINGS), (LARGER_CLIP,))
            pairs += product((0.01, 0.001, SMALLEST_DAMPINGS[0]), (SMALLER_CLIP,))
        triples += ((damping, damping, clip) for damping, clip in pairs)
        if beyond and adult:  # there the largest damping was the best
            triples += product((1.0,), (0.01, 0.1), SMALL_CLIPS)
            triples += ((1.0, 1.0, 1.0),)
        for alpha, rho, clip in dict.fromkeys(triples):
            yield {"alpha": alpha, "rho": rho, "clip": clip}


# --- data -------------------------------------------------------------------------------------

# no page reads training losses, which take long
FEW_LOSSES = "model.train_loss_records=10"
SMALL = "dataset.train_records=6000 dataset.test_records=1000 dp.delta=1.6667e-04"
WIDE = "dataset.components=null"
HALF_WIDE = f"{SMALL} dataset.components=512"
SMALL_FEMNIST = "dataset.train_records=9400 dataset.test_records=2350 dp.delta=1.0638e-04"

# task, or number of clients -> preset and what differs from it, in words of `dpfl run`
Data = Mapping[Any, str]
Tasks = Mapping[Scale, Data]
HUNDRED = "partitioner.clients=100"
IMAGES = {"cifar10": "cifar10", "fmnist": "fashion_mnist", "emnist": "emnist"}
NARROW: Tasks = {
    "quick": {"adult": "adult", "fmnist_small": f"fashion_mnist {SMALL} {HUNDRED}"},
    "paper": {"adult": "adult", **IMAGES},
}
BROAD: Tasks = {
    "quick": {f"{task}_small": f"{data} {HALF_WIDE} {HUNDRED}" for task, data in IMAGES.items()},
    "paper": {task: f"{data} {WIDE}" for task, data in IMAGES.items()},
}
FIVE_HUNDRED = "partitioner.clients=500 partitioner.shards_per_client=2"
DIFFERING: Tasks = {  # clients that differ: 500 (section 6.1), and few with a class each (6.3)
    "quick": {
        "femnist_500_small": f"federated_emnist {SMALL_FEMNIST} {FIVE_HUNDRED}",
        "femnist_small": f"federated_emnist {SMALL_FEMNIST}",
        "synthetic_small": "synthetic dataset.clients=50 dataset.records_per_client=200 "
        "dp.delta=1.25e-04",
    },
    "paper": {
        "femnist_500": f"federated_emnist {FIVE_HUNDRED}",
        "femnist": "federated_emnist",
        "synthetic_500": "synthetic dataset.clients=500 dp.delta=5.0e-06",
        "synthetic": "synthetic",
    },
}
OF_IMAGES: Tasks = {  # a client of 500 is protected: 12 images each at quick
    "quick": {"fmnist_small": f"fashion_mnist {SMALL}"},
    "paper": IMAGES,
}
OF_WIDE_IMAGES: Tasks = {
    "quick": {"fmnist_small": f"fashion_mnist {HALF_WIDE}"},
    "paper": BROAD["paper"],
}
OF_ALL: Tasks = {
    "quick": {"adult": "adult", **OF_IMAGES["quick"]},
    "paper": NARROW["paper"],
}
SYNTHETIC = ("synthetic", "synthetic_small", "synthetic_500")
FEDERATED_500, FEDERATED_47 = ("femnist_500", "femnist_500_small"), ("femnist", "femnist_small")
FEDERATED = (*FEDERATED_500, *FEDERATED_47)
LEFT_OUT = {  # where clients differ, DP-FedNew is for the synthetic ones, DP-FedNew-FC for EMNIST's
    **dict.fromkeys(("FN", "FN_off"), FEDERATED),
    **dict.fromkeys(("FN_FC", "FN_FC_off"), SYNTHETIC),
}


# --- runs -------------------------------------------------------------------------------------


def run(
    data: str,
    labels: Point,
    methods: Methods = RECORD_LEVEL,
    tuned: Point | None = None,
    exclusive: bool = False,
) -> Run:
    """One run of the labels' method on a preset and what differs from it; `tuned` is what more
    labels would stand for.
    """
    overrides = f"+experiment=fednew/{data} {FEW_LOSSES} algorithm={methods[labels['method']]}"
    return Run(labels, overrides, settings({**labels, **(tuned or {})}), exclusive)


ACCURACY = Metric("accuracy", "last", title="test accuracy after the last round")
SELECTION = Metric("accuracy", title="test accuracy, mean of the last 20 rounds")
TUNED = "highest mean test accuracy over the last 20 rounds, tuned on test data as in the paper"

# --- the search at scale=paper ----------------------------------------------------------------

# The points of a grid that go on to full size, and of those whose runs take long and have three
# seeds: of a table with three, the best that was known at full size was up to the ninth of 46 at
# the reduced size, and among the first six in 56 of 72 grids.
KEPT, KEPT_OF_LONG = 6, 4
FEWER = {  # a third of the training records of a preset
    "adult": {"dataset.records": 10850},
    "cifar10": {"dataset.train_records": 16300},
    "fashion_mnist": {"dataset.train_records": 19600},
    "emnist": {"dataset.train_records": 19600},
    "federated_emnist": {"dataset.train_records": 30080},
    "synthetic": {"dataset.records_per_client": 165},
}
HALF = {"rounds": 35, "evaluation.final_window": 10}


def reduced(run: Run) -> Values:
    """Half of the rounds and a third of the records, at an epsilon with which the noise of a round
    is about that of the full size: it goes with the root of the rounds, and at record level with
    one over a client's records.
    """
    fewer = 1 if "dp.unit=client" in run.overrides else 3
    epsilon = run.values["dp.epsilon"] * fewer / math.sqrt(2)
    return {**HALF, **FEWER[run.overrides[0].rpartition("/")[2]], "dp.epsilon": epsilon}


def staged(whole: Sequence[Point], always: Sequence[Point], **more: Any) -> Search:
    """A search at scale=paper, with whole grids as a check."""
    return Search(
        reduced=reduced,
        note="35 of 70 rounds and a third of the training records, with the noise a round of the "
        "full size",
        whole=whole,
        always=always,
        **more,
    )
