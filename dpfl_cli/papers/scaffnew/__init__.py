"""DP-ScaffNew: local steps against rounds."""

from dpfl_cli.reproduction.artifact import Paper

WORDS = {
    "cifar10": "CIFAR-10",
    "femnist": "FEMNIST",
    "reddit": "Reddit",
    "ixi": "Fed-IXI",
    "messidor": "Messidor",
}
PAPER = Paper(
    key="scaffnew",
    authors="Hou, Khirirat, Yaqub, Horváth",
    title="Balancing Privacy and Performance for Private Federated Learning Algorithms",
    where="2023, arXiv:2304.05127",
    looks={
        "method": {"ScaffNew": 0, "FedAvg": 1},
        "eps": {0.5: 0, 1.0: 1, 2.0: 2, 3.3: 3, "none": 4},
        "measure": {
            f"{group}_{what}": number
            for group in ("group_1", "group_2")
            for number, what in enumerate(("mean", "line_fit", "root_fit"))
        },
    },
    titles={
        "eps": "nominal epsilon",
        "tau": "local steps",
        "T": "local iterations T",
        "C": "clip norm C",
        "best.tau": "best local steps",
        "best.T": "best T",
        "none": "no noise",
        "ScaffNew": "DP-ScaffNew",
        "FedAvg": "DP-FedAvg",
        "task": "data",
        **{task: f"{name} stand-in" for task, name in WORDS.items()},
        "cifar10": "CIFAR-10",
    },
)
