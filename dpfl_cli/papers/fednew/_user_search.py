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
# wider at scale=paper, where ends were the best at quick, and of those to 30 the largest again
SERVER_STEPS = {
    "smoke": (1.0, 3.0),
    "quick": (0.3, 1.0, 3.0, 10.0),
    "paper": (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
}
FEDFC_STEPS = {
    "smoke": (1.0,),
    "quick": (0.3, 1.0, 3.0),
    "paper": (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
}
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


def points(method: str, scale: Scale, preset: str) -> Iterator[Point]:
    """The points of a method's grid at user level that are searched; at scale=paper also those
    beyond, for the ends of the others were the best, and where clients differ DP-SCAFFOLD's alone.
    """
    adult, wider = preset == "adult", scale == "paper"
    differ = preset in ("federated_emnist", "synthetic")
    beyond = wider and not differ
    clips = SMALL_CLIPS if wider or (adult and scale == "quick") else SMALL_CLIPS[1:]
    if method == "FGD":
        yield from grid(eta=SERVER_STEPS[scale], clip=clips)
        if beyond:
            yield from grid(eta=WITH_SMALLER_CLIP, clip=SMALLER_CLIP)
            yield {"eta": 1000.0, "clip": 0.03}
    elif method == "FFC":
        gammas = (0.01, *GAMMAS) if wider else GAMMAS
        yield from grid(eta=FEDFC_STEPS[scale], gamma=gammas, feature_clip=1.0, clip=clips)
        if beyond:
            yield from grid(eta=WITH_SMALLER_CLIP, gamma=1.0, feature_clip=1.0, clip=SMALLER_CLIP)
            yield from grid(eta=WITH_SMALLER_CLIP[2:], gamma=10.0, feature_clip=1.0, clip=0.03)
            yield {"eta": 1000.0, "gamma": 1.0, "feature_clip": 1.0, "clip": 0.03}
    elif method in SCAFFOLD:
        local, lengths = [(1, 1.0), (5, 2.0 if differ else 1.0)], LENGTHS[differ]
        if wider:
            local += [(1, 0.5), *((5, length) for length in lengths)]
        for clip, (steps, length) in product(clips, local):
            yield {"steps": steps, "length": length, "clip": clip}
        if wider:
            # of clip norms the smallest was the best nearly everywhere: 0.01, then 0.001
            longer, clips = lengths if differ else lengths[1:], (SMALLER_CLIP, 0.003, 0.001)
            yield from grid(steps=5, length=longer, clip=(*clips, 0.0003, 0.0001))
        if beyond:
            yield from grid(steps=20, length=lengths[2:5], clip=0.03)
    else:
        penalties = {"smoke": (1.0,), "quick": (0.01, 0.1), "paper": (0.01, 0.1, 1.0)}[scale]
        if adult and scale == "quick":  # elsewhere the largest was the best nowhere
            penalties = (0.01, 0.1, 1.0)
        triples, pairs = [*product((0.1,), penalties, clips)], list[tuple[float, float]]()
        if wider:
            # elsewhere checks of whole grids found nothing better by more than 0.03 points
            triples += product(DAMPINGS, PENALTIES, NEWTON_CLIPS) if differ else ()
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


at_user_level = partial(compared, points=points, level=USER_LEVEL, keep=3)
