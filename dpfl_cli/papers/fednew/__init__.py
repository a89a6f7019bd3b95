"""DP-FedNew: second-order steps under differential privacy; what its pages say everywhere."""

from collections.abc import Mapping

from dpfl_cli.reproduction.api import Paper, Scale

TITLES = {
    "FN": "DP-FedNew",
    "FN_off": "DP-FedNew without duals",
    "FN_FC": "DP-FedNew-FC",
    "FN_FC_off": "DP-FedNew-FC without duals",
    "FGD": "DP-FedGD",
    "FFC": "DP-FedFC",
    "Scaf": "DP-SCAFFOLD",
    "Scaf_share": "DP-SCAFFOLD, shares of noise",
    "FN_narrow": "DP-FedNew, 64 features",
    "FGD_narrow": "DP-FedGD, 64 features",
    "Scaf_narrow": "DP-SCAFFOLD, 64 features",
    "eps": "epsilon",
    "alpha": "damping alpha",
    "rho": "penalty rho",
    "bound": "curvature bound",
    "eta": "server step",
    "gamma": "damping gamma",
    "feature_clip": "clip of features",
    "gradient_clip": "clip of gradients",
    "clip": "clip norm C",
    "steps": "local steps",
    "length": "local steps * local step size",
    "task": "data",
    "adult": "Adult",
    "cifar10": "CIFAR-10",
    "fmnist": "Fashion-MNIST",
    "emnist": "EMNIST (MNIST stands in), whole",
    "cifar10_small": "CIFAR-10, 6000 images",
    "fmnist_small": "Fashion-MNIST, 6000 images",
    "emnist_small": "EMNIST (MNIST stands in)",
    "femnist": "EMNIST by class (two MNISTs stand in), 47 clients, whole",
    "femnist_small": "EMNIST by class (two MNISTs stand in), 47 clients",
    "femnist_500": "EMNIST by class (two MNISTs stand in), 500 clients, whole",
    "femnist_500_small": "EMNIST by class (two MNISTs stand in), 500 clients",
    "synthetic": "Synthetic(5, 5), 100 clients",
    "synthetic_500": "Synthetic(5, 5), 500 clients",
    "synthetic_small": "Synthetic(5, 5), 50 clients",
}
PAPER = Paper(
    key="fednew",
    authors="Krouka, Koskela, Kulkarni",
    title="Communication Efficient Differentially Private Federated Learning "
    "Using Second Order Information",
    where="PoPETs 2025(1), 584–612",
    looks={
        "method": {
            "FN": 0,
            "FN_FC": 1,
            "FGD": 2,
            "Scaf": 3,
            "Scaf_share": 4,
            "FN_off": 5,
            "FN_FC_off": 6,
            "FFC": 7,
        },
        "variant": {"paper": 0, "proved": 5, "own": 6, "unequal": 7},  # as FN and FN_off
    },
    titles=TITLES,
)

# --- notes of several pages ---------------------------------------------------------------------

CLIENTS_DIFFER = (
    "47 classes of MNIST and Fashion-MNIST stand in where EMNIST is absent. Principal components "
    "of EMNIST are fitted on all training images, and its test records chosen by their classes, "
    "which no epsilon covers; every record is scaled to norm 1."
)
FEATURES = (
    "delta is one over the number of the paper's training records (50,000 of CIFAR-10, 60,000 of "
    "Fashion-MNIST, 240,000 of EMNIST's digits), at scale=quick of those that are used. Features "
    "are those of EfficientNet-Lite0, trained on ImageNet, in place of the paper's ResNets, whose "
    "weights come in no package: 1280 where the paper has 2048, and 64 principal components of "
    "them, fitted on 1000 public images that no client has. They are scaled to norm 1. MNIST "
    "stands in where EMNIST is absent: 500 clients hold 118 records each, the paper's hold 480."
)
ADULT = (
    "Adult's features are 0 or 1 as they are, not scaled: records have a norm of about 3.7, which "
    "the clip of gradients and curvatures cuts."
)
OURS = (
    "Ours, for the paper does not say or its text is lost: the grids (table7), of whose ends one "
    "is often the best, as (edge) says above. On narrow features at record level, and where "
    "clients differ, DP-FedNew's searches at scale=paper begin with all its triples, but at record "
    "level a damping and a penalty of 0.01 with a bound of 1, whose constant needs more records "
    "than a client has at the reduced size, and with some beyond; elsewhere with a few, beside "
    "which the check of whole grids found nothing better by more than 0.03 points. DP-FedFC's clip "
    "norm of features, and at record level that of gradients, is 1, not tuned as in the paper. "
    "DP-SCAFFOLD takes 1 or 5 local steps (in figure 3, and at scale=paper where clients differ "
    "and in table4, also 20). Models start at zero and have no bias; DP-FedFC's covariance is a "
    "mean over records with eigenvalues of at least gamma, and all its releases have one noise "
    "multiplier. Printed otherwise: equation 4.3 "
    "gives the mean of what n clients send noise of variance C^2 sigma^2, which is that of their "
    "sum (the mean has C^2 sigma^2 / n^2); Algorithm 2 adds the noise to what line 12 is about to "
    "define (here: to the bounded direction, and nothing is clipped there)."
)
WIDER: Mapping[Scale, str] = {
    "paper": "Of grids whose ends were both the best somewhere, or one nearly everywhere, these go "
    "on at scale=paper. DP-SCAFFOLD's local steps (their number times their size) do from 4 to "
    "256, in figure 6 to 64, in figure 3 from 2 to 8192: worth up "
    "to 12 points (figure 2, 100 synthetic clients at epsilon 10: 75.6 before, now 88.0; with "
    "shares of the noise on wide features, table11, 50 clients at 0.5: 81.2, now 93.2). Where "
    "clients differ (figure 2, table5) they go on from 0.25 to 1024, with 16, 256 and 1024 in 20 "
    "steps too, the most there are and the best in 32 of 70 cells: the accuracy changed by -0.32 "
    "(one seed chooses) to 3.2 points (FEMNIST's stand-in with 47 clients and shares of the noise "
    "at epsilon 10: 81.1 before, now 84.3), and there 1024 is the best with 500 and 1000 clients "
    "and shares from epsilon 1 on, so that longer ones may be better still. So they do in table4: "
    "20 steps are the best in 43 of 90 cells, the accuracy changed by -0.28 to 0.31 points, and "
    "with shares 1024 is the best in 19 of 45. Twice "
    "256 changed the accuracy by -0.06 to 0.05 points in a trial (narrow features of images, 20 "
    "and 500 clients, one seed). DP-FedFC's damping is from 0.001 to 10 at record level (in "
    "figures 7 and 8 0.01 to 10, the last beside a clip norm of 0.03 alone), and so is "
    "DP-FedNew's bound on Adult in table8 and figures 1 and 9 (beside a penalty of 0.1 a bound of "
    "10 is refused at the reduced size; there 0.001, the smallest, is the best at three epsilons "
    "of figure 1, by 0.02 points at most, and in 40 of 72 cells of table8, whose accuracies it "
    "changed by -0.13 to 0.12 points, 0.00 in the mean). On Adult DP-FedGD and DP-FedFC have steps "
    "of 5 and 7 between 3 and 10, but in figure 4: 7 is DP-FedGD's best in 34 of 36 cells of "
    "table8 and all of figure 1. In figures 3, 7 and 8 clip norms go down to 0.01, with server "
    "steps to 3000, DP-FedNew's up to 10 and its damping and penalty down to 0.00001; in figure "
    "6 DP-FedNew's clip norms go down to 0.001, DP-FedGD's to 0.01; in figures 3 and 6 "
    "DP-SCAFFOLD's go down to 0.0001.",
}
WHOLE = "every client adds the whole noise, which secure aggregation does not need"
