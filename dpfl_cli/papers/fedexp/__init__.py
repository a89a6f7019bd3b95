"""DP-FedEXP: a server step that adapts to the noise. What its experiments share: methods, trust
models, the synthetic problem.
"""

from dpfl_cli.reproduction.api import Paper, numbers_in

PAPER = Paper(
    key="fedexp",
    authors="Takakura, Liew, Hasegawa",
    title="Accelerating Differentially Private Federated Learning via Adaptive Extrapolation",
    where="2025, arXiv:2504.09850",
    looks={
        "method": {"FedEXP": 0, "FedAvg": 1, "SCAFFOLD": 2, "naive": 3, "nonprivate": 4},
        "measure": {"proposed": 0, "naive": 3, "target": 6},
    },
    titles={
        "dp": "trust model",
        "ldp": "LDP (Gaussian)",
        "ldp_privunit": "LDP (PrivUnit)",
        "cdp": "CDP",
        "FedEXP": "DP-FedEXP",
        "FedAvg": "DP-FedAvg",
        "SCAFFOLD": "DP-SCAFFOLD",
        "setting": "step size and clip norm",
        "paper": "the paper's pair",
        "best": "best pair of the 25 at quick sizes, seed 0",
    },
)
METHODS = {
    "FedEXP": "algorithm=fedexp",
    "FedAvg": "algorithm=fedavg",
    "SCAFFOLD": "algorithm=scaffold algorithm.control=sent",
}
COMPARED = ("FedEXP", "FedAvg")
LOCAL = ("ldp", "ldp_privunit")
DIMENSION = {"ldp": 100, "ldp_privunit": 100, "cdp": 500}  # of the synthetic problem
TRUSTS = tuple(DIMENSION)
WORDS = {"ldp": "local Gaussian DP", "ldp_privunit": "local DP with PrivUnit", "cdp": "central DP"}
PAIR = {"local_lr": "algorithm.local_lr", "clip_norm": "algorithm.clip_norm"}
SCAFFOLD = (
    "The paper does not define DP-SCAFFOLD at client level. Here a client's control remembers the "
    "message that it sent (control=sent), which was chosen because it fits the order in Figure 2."
)
FRESH = range(100, 130)  # seeds at scale=paper of what takes seconds
FRESHLY = (
    "30 seeds (100 to 129), declared after a page with the seeds 0 to {last} had left claims "
    "undecided; none of those has a part in this one"
)
AVERAGED = (
    "After every round the mean of the last two models is evaluated, of every method alike; the "
    "paper takes it as the final model, against DP-FedEXP's oscillation (appendix G.1)."
)
PROBLEM = (
    "Ours, for the paper does not say: the gradient is that of half the squared residual, which "
    "the paper's step sizes imply; u_i has standard deviation 0.1, m_i is a vector; start at 0."
)

PRIVUNIT = (
    "PrivUnit is that of its source: Algorithms 3 and 4 print the cap's probability p as gamma, "
    "with which messages would be biased, and k = e^ceil(eps_2 / 3), no integer, for "
    "ceil(e^(eps_2 / 3))."
)


# Table 2: local step size, clip norm; of the synthetic problem as far as they can be read.
PAIRS = numbers_in("paper_numbers/fedexp/table2", "dataset", "dp", "method")
