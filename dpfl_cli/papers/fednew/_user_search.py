"""What DP-FedNew's figures at user level share: methods, and the points of a method's grid."""

from collections.abc import Iterator
from functools import partial
from itertools import product

from dpfl_cli.papers.fednew._compared import compared
from dpfl_cli.papers.fednew._search import (
    COVARIANCE,
    DAMPINGS,
    GAMMAS,
    NEWTON_CLIPS,
    PENALTIES,
    SCAFFOLD,
    SHARE,
    SMALL_CLIPS,
    WARM,
    WHOLE_SHARE,
    Methods,
    Point,
)
from dpfl_cli.reproduction.api import Scale, grid

USER = {"dp.unit": "client", "dp.relation": "zero_out"}
DUALS = {"algorithm.dual": "paper", "dp.mode": "paper"}
NO_DUALS = {"algorithm.dual": "off", "dp.mode": "sound"}
PROVED = USER | {"dp.mode": "sound"}
SENT = USER | WARM | {"algorithm.control": "sent", "dp.mode": "paper"}
USER_LEVEL: Methods = {
    "FN": ("fednew", USER | DUALS),
    "FN_off": ("fednew", USER | NO_DUALS),
    "FN_FC": ("fednew", USER | DUALS | COVARIANCE),
    "FN_FC_off": ("fednew", USER | NO_DUALS | COVARIANCE),
    "FGD": ("fedgd", PROVED),
    "FFC": ("fedfc", PROVED),
    "Scaf": ("scaffold", SENT | WHOLE_SHARE),
    "Scaf_share": ("scaffold", SENT | SHARE),
}
# wider at scale=paper, where ends were the best at quick
SERVER_STEPS = {
    "smoke": (1.0, 3.0),
    "quick": (0.3, 1.0, 3.0, 10.0),
    "paper": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0),
}
FEDFC_STEPS = {
    "smoke": (1.0,),
    "quick": (0.3, 1.0, 3.0),
    "paper": (0.3, 1.0, 3.0, 10.0, 30.0),
}
WIDER_CLIP = 3.0  # where DP-FedNew's smallest dampings win, so does the largest of the clip norms
# The largest of those steps were the best and, where clients do not differ, DP-FedNew's smallest
# damping: both grids go on.
LARGEST_STEPS, SMALLEST_DAMPINGS = (100.0, 300.0), (0.0003, 0.0001)
# and where clients do not differ, clip norms go on with the steps that go with them
SMALLER_CLIP, LARGER_CLIP = 0.01, 10.0
WITH_SMALLER_CLIP = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


def _further(method: str, adult: bool, differ: bool) -> Iterator[Point]:
    """Beyond the other points at scale=paper, for the ends of those were the best; where clients
    differ, DP-SCAFFOLD's alone.
    """
    if method in SCAFFOLD:
        # of clip norms the smallest was the best nearly everywhere: 0.01, then 0.001
        lengths = (4.0, 16.0, 64.0) if differ else (8.0, 32.0, 128.0, 512.0, 2048.0, 8192.0)
        yield from grid(steps=5, length=lengths, clip=(SMALLER_CLIP, 0.003, 0.001, 0.0003, 0.0001))
        if not differ:
            yield from grid(steps=20, length=lengths[1:4], clip=0.03)
    elif differ:
        return
    elif method == "FGD":
        yield from grid(eta=WITH_SMALLER_CLIP, clip=SMALLER_CLIP)
        yield {"eta": 1000.0, "clip": 0.03}
    elif method == "FFC":
        yield from grid(eta=WITH_SMALLER_CLIP, gamma=1.0, feature_clip=1.0, clip=SMALLER_CLIP)
        yield from grid(eta=WITH_SMALLER_CLIP[2:], gamma=10.0, feature_clip=1.0, clip=0.03)
        yield {"eta": 1000.0, "gamma": 1.0, "feature_clip": 1.0, "clip": 0.03}
    else:
        pairs = [*product((0.00003, 0.00001), (0.1, 1.0, 3.0))]
        pairs += product((0.01, 0.001, *SMALLEST_DAMPINGS), (LARGER_CLIP,))
        pairs += product((0.01, 0.001, SMALLEST_DAMPINGS[0]), (SMALLER_CLIP,))
        for damping, clip in pairs:
            yield {"alpha": damping, "rho": damping, "clip": clip}
        if adult:  # there the largest damping was the best
            yield from grid(alpha=1.0, rho=(0.01, 0.1), clip=SMALL_CLIPS)
            yield {"alpha": 1.0, "rho": 1.0, "clip": 1.0}


def points(method: str, scale: Scale, preset: str, further: bool = True) -> Iterator[Point]:
    """The points of a method's grid at user level that are searched.

    Args:
      further: with what is beyond at scale=paper, which wide features, whose runs take long, leave
        out.
    """
    adult, wider = preset == "adult", scale == "paper"
    differ = preset in ("federated_emnist", "synthetic")
    steps, smallest = LARGEST_STEPS if wider else (), () if differ else SMALLEST_DAMPINGS
    clips = SMALL_CLIPS if wider or (adult and scale == "quick") else SMALL_CLIPS[1:]
    if method == "FGD":
        yield from grid(eta=(*SERVER_STEPS[scale], *steps), clip=clips)
    elif method == "FFC":
        gammas, steps = (0.01, *GAMMAS) if wider else GAMMAS, (*FEDFC_STEPS[scale], *steps)
        yield from grid(eta=steps, gamma=gammas, feature_clip=1.0, clip=clips)
    elif method in SCAFFOLD:
        long = 2.0 if differ else 1.0
        longer = (2, 8, 32) if differ else (2, 8, 32, 128, 512, 2048, 8192)
        more = [(1, 0.5), *((5, times * long) for times in longer)] if wider else []
        local = [(1, 1.0), (5, long), *more]
        for clip, (steps, length) in product(clips, local):
            yield {"steps": steps, "length": length, "clip": clip}
    else:
        penalties = {"smoke": (1.0,), "quick": (0.01, 0.1), "paper": (0.01, 0.1, 1.0)}[scale]
        if adult and scale == "quick":  # elsewhere the largest was the best nowhere
            penalties = (0.01, 0.1, 1.0)
        triples = [*product((0.1,), penalties, clips)]
        if wider:
            # elsewhere checks of whole grids found nothing better by more than 0.03 points
            triples += product(DAMPINGS, PENALTIES, NEWTON_CLIPS) if differ else ()
            beside = product((0.01, 0.001, *smallest), (*clips, WIDER_CLIP))
            triples += ((damping, damping, clip) for damping, clip in beside)
        for alpha, rho, clip in dict.fromkeys(triples):
            yield {"alpha": alpha, "rho": rho, "clip": clip}
    if further and wider:
        yield from _further(method, adult, differ)


at_user_level = partial(compared, points=points, level=USER_LEVEL, keep=3)
