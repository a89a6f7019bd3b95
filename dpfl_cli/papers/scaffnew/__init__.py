"""DP-ScaffNew: local steps against rounds."""

from dpfl_cli.reproduction.artifact import Paper

PAPER = Paper(
    key="scaffnew",
    authors="Hou, Khirirat, Yaqub, Horváth",
    title=("Balancing Privacy and Performance for Private Federated Learning Algorithms"),
    where="2023, arXiv:2304.05127",
    looks={
        "method": {"ScaffNew": 0, "FedAvg": 1},
        "eps": {0.5: 0, 1.0: 1, 2.0: 2, 3.3: 3, "none": 4},
    },
)
