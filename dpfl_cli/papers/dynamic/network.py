"""Figure 3: test accuracy over rounds of a sigmoid network on MNIST (appendix A.4)."""

from dpfl_cli.papers.dynamic import PRINTED
from dpfl_cli.reproduction.api import (
    CHOSEN,
    Artifact,
    Best,
    Claim,
    Figure,
    Judge,
    Metric,
    Run,
    Runs,
    Scale,
    Search,
    Size,
    Table,
    above,
    every,
    grid,
    level,
    sized,
)

BUDGETS = {"eps_1": "", "eps_05": "dp.epsilon=0.5 dp.delta=1e-5"}
ROUNDS = {"T500": 500, "T1000": 1000, "T1200": 1200}
CLIP_NORMS = (1.0, 4.0)
FEWER = {"T500": 150, "T1000": 300, "T1200": 360}  # at quick
SMALL_STEP = "algorithm.step=0.25 algorithm.strong_convexity=0.12"  # the same pace
AT_QUARTER = [  # the clip norms that held-out records chose with the larger step
    {"budget": "eps_1", "clip_norm": 4.0, "T": "T1000_quarter"},
    {"budget": "eps_05", "clip_norm": 1.0, "T": "T1000_quarter"},
]


def runs(scale: Scale) -> Runs:
    preset = "+experiment=dynamic/mnist algorithm=primal_dual"
    words = "algorithm.step=1.25 algorithm.strong_convexity=0.024"
    if scale != "paper":
        words = "algorithm.step=1.25 algorithm.strong_convexity=0.08 evaluation.every=10"
        words += " model.hidden=[32] model.average_pool=2"
    more = AT_QUARTER if scale == "paper" else []
    for labels in [*grid(budget=BUDGETS, clip_norm=CLIP_NORMS, T=ROUNDS), *more]:
        T, _, quarter = labels["T"].partition("_")
        rounds = (ROUNDS if scale == "paper" else FEWER)[T]
        own = f"{preset} {BUDGETS[labels['budget']]} {SMALL_STEP if quarter else words}"
        yield Run(labels, own, {"rounds": rounds, "algorithm.clip_norm": labels["clip_norm"]})


HELD_OUT = 10_000  # training records, which leave the clients theirs
ON_HELD_OUT = "at the clip norm that does better on held-out records; no test record has chosen it"


THREE = (
    "the paper has both at about 70 % and names no margin; 3 points are ours, set before any result"
)
FIGURE_3 = "appendix A.4, Figure 3"


QUARTER = "with step 1/4, which Theorem 4.5 allows"


def _flat(**where: object) -> Judge:
    return every(level, "final", "T", **where, budget=BUDGETS, T=("T1200", "T1000"), within=3)


def _longer(**where: object) -> Judge:
    return every(above, "final", "T", **where, budget=BUDGETS, T=("T1000", "T500"), by=2)


def _level(T: object = "T1000", **where: object) -> Judge:
    return every(level, "final", **where, budget=BUDGETS, T=T, right=70, within=5)


CLAIMS = [
    Claim(
        "c8_more",
        "1000 rounds end at least 2 points above 500, under both budgets",
        FIGURE_3,
        _longer(**CHOSEN),
        "holds",
        note=f"{ON_HELD_OUT}; the paper says lower with 500, 2 points are ours",
        readings={
            "by any amount, as the paper has it": {"by": 0},
            **{f"with clip norm {B:g}": _longer(clip_norm=B) for B in CLIP_NORMS},
        },
    ),
    Claim(
        "c8_flat",
        "1200 rounds end within 3 points of 1000, under both budgets",
        FIGURE_3,
        _flat(**CHOSEN),
        note=f"{ON_HELD_OUT}; {THREE}",
        readings={
            "with clip norm 4, which a search of fewer rounds chose on an earlier page": _flat(
                clip_norm=4.0
            )
        },
    ),
    Claim(
        "c8_flat_clip_1",
        "so they do with clip norm 1",
        "ours",
        _flat(clip_norm=1.0),
        note=f"the paper names no clip norm; {THREE}",
    ),
    Claim(
        "c8_level",
        "with 1000 rounds it reaches about 70 % (within 5 points) under both budgets",
        "appendix A.4, in words",
        _level(**CHOSEN),
        note=f"{ON_HELD_OUT}; at scale=quick it is a smaller network on smaller images. The paper "
        "gives no more than that 70 %, and no spread; 5 points are ours, set before any run at "
        "its size",
        readings={
            **{f"with clip norm {B:g}": _level(clip_norm=B) for B in CLIP_NORMS},
            QUARTER: _level(**CHOSEN, T="T1000_quarter"),
            "at least 65 %": {"compare": above, "right": 65, "within": None},
        },
    ),
]


fig3 = Artifact(
    id="fig3",
    title="Test accuracy over rounds, a sigmoid network on MNIST",
    shows="The proposed method on a non-convex problem, outside its theory: 10 workers hold 1000 "
    "records drawn from all digits and 2850 of their own digit each. The paper sees about 70 % "
    "with 1000 rounds and with 1200.",
    source="Figure 3",
    sizes=sized(
        Size(
            1,
            3,
            "images averaged to 14 x 14 pixels, 32 hidden units, 150, 300 and 360 rounds in place "
            "of 500, 1000, 1200",
        ),
        Size(
            3,
            111,
            "the network 784-200-10, d = 159,010; three seeds, declared before any run at this "
            "size",
        ),
    ),
    runs=runs,
    measures={
        "accuracy": Metric("accuracy", "series"),
        "final": Metric("accuracy", "last", title="final test accuracy"),
        "loss": Metric("train_loss", "last", better="lower", title="final train loss"),
    },
    best=[Best("clip_norm", "final", note="best on records held out of training")],
    search=Search(
        reduced=lambda run: {"dataset.held_out": HELD_OUT},
        note=f"all rounds; tested on {HELD_OUT:,} training records that no client has, not on the "
        "test records",
        keep=1,
        scales=("quick", "paper"),
        always=[{"clip_norm": list(CLIP_NORMS)}],
    ),
    show={"rounds": "rounds"},
    titles={
        "T": "number of rounds",
        "clip_norm": "clip norm B",
        "eps_1": "epsilon 1, delta 1e-4",
        "eps_05": "epsilon 0.5, delta 1e-5",
        "T500": "the paper's T = 500",
        "T1000": "the paper's T = 1000",
        "T1200": "the paper's T = 1200",
        "T1000_quarter": "T = 1000, step 1/4",
    },
    tables=[
        Table(
            "Final test accuracy",
            ["clip_norm", "budget"],
            "T",
            "final",
            notes="the paper gives numbers in words only: about 70 % with 1000 and 1200 rounds. "
            "The clip norm of claims is chosen on records held out.",
        ),
        Table("Final train loss", ["clip_norm", "budget"], "T", "loss"),
    ],
    figures=[Figure("lines", "round", "accuracy", series="T", panels=["clip_norm", "budget"])],
    notes=[
        "Ours, for the paper gives no step size, clip norm or pace of the schedule: the step is "
        "1.25, five times what Theorem 4.5 allows (gamma at most 1/4), for from 4/3 on the "
        "workers' copies drift apart whatever the data; the pace follows the rule of the number of "
        "rounds (gamma mu_f T = 3 for the middle one); the clip norm is 1 or 4, which were tried "
        "after looking at test accuracy; which of them a claim has is chosen on training records "
        "that are held out. The network starts as the framework draws it; pixels are in [0, 1].",
        "At scale=paper two more cells have step 1/4 and T = 1000, at the clip norms that held-out "
        "records chose with 1.25 (no search of their own) and the same schedule of the noise: a "
        "reading of c8_level, declared before they ran. c8_more would need T = 500 with it, too, "
        "which was not run.",
        PRINTED,
        "The search chooses the better clip norm in all six cells at scale=paper, where both have "
        "all seeds on the test records. With 150, 300 or 360 rounds, as on an earlier page, it "
        "missed two: at epsilon 0.5 it chose 4 for T = 1000 and 1200 (67.56 % against 78.09, 64.29 "
        "against 79.05), and c8_flat was undecided.",
    ],
)
