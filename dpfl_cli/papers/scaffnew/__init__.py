"""DP-ScaffNew: local steps against rounds."""

from dpfl_cli.reproduction.api import Paper

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
    looks={  # nothing else has a method's
        "method": {"ScaffNew": 0, "FedAvg": 1},
        "eps": {0.5: 2, 1.0: 3, 2.0: 4, 3.3: 5, "none": 6, 33.0: 7, 330.0: 4, 3300.0: 3},
        "C": {10.0: 2, 20.0: 3, 50.0: 4, 100.0: 5},
        "clipping": {"at_1": 7, "at_10": 4, "never": 6},
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
