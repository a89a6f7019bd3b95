"""What `mypy --strict` sees of dpfl in a file of a user: `make typecheck` runs it over this one."""

import dpfl_cli as dpfl
from dpfl_cli.algorithms.api import LocalSettings, Round, State, Tensor, algorithm, np, torch
from dpfl_cli.reproduction.api import Artifact, Comparisons, Rows, above, claim


class Hyper(LocalSettings):
    """A method's own settings."""

    step: float = 1.0


def moved(state: State, round: Round) -> Tensor:
    """A model after a step of one."""
    del round
    return state.server["model"] + torch.ones(1)


def of_runs(records: list[dpfl.Run]) -> list[np.ndarray]:
    """The models of runs."""
    return [dpfl.model(record) for record in records]


NAMES = (Artifact, Comparisons, Rows, above, algorithm, claim)
