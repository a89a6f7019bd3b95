"""A user's own components in one file: the algorithm that the README's guide shows, a model and a
data set.
"""

from __future__ import annotations

import numpy as np

from dpfl_cli.algorithms.api import (
    CLIPPED,
    Bound,
    Field,
    LocalSettings,
    Number,
    ReleaseSpec,
    State,
    algorithm,
    bounded_local_update,
    per_run,
    torch,
)
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings


class FedMomentumSettings(LocalSettings):
    local_steps: int = Field(5, ge=1)
    local_lr: Number = Field(0.01, gt=0)
    clip_norm: Bound = 1.0
    momentum: Number = Field(0.5, ge=0, lt=1)


@algorithm(
    "fedmomentum",
    revision=1,
    paper="Hsu, Qi, Brown 2019, arXiv:1909.06335",
    unit="client",
    trusts=("none", "local", "central"),
    proved=("local", "central"),  # clients hold no state; the server sees releases only
)
class FedMomentum:
    """DP-FedAvg with server momentum: v <- beta v + mean update, w <- w + v."""

    hyper: FedMomentumSettings  # floats are tensors [R], one value a run

    @staticmethod
    def releases(settings, run):
        return [ReleaseSpec("update", note=f"client update {CLIPPED}")]

    def init(self, objective, streams):
        model = objective.initial(streams)
        return State({"model": model, "velocity": torch.zeros_like(model)}, {})

    def round(self, state, at):
        model, velocity = state.server["model"], state.server["velocity"]
        update = bounded_local_update(at, model, self.hyper)
        mean = at.release("update", update).mean
        velocity = per_run(self.hyper.momentum, model) * velocity + mean
        return State({"model": model + velocity, "velocity": velocity}, {}), {}


class TwinSettings(Settings):
    clients: int = Field(8, ge=1)


@component("dataset", "twin", revision=1, settings=TwinSettings)
class Twin:
    """Every client holds the same two records."""

    @staticmethod
    def info(settings):
        return DatasetInfo(
            "twin", "synthetic", "", (2,), None, 2 * settings.clients, settings.clients
        )

    @staticmethod
    def load(settings, seed):
        features = np.tile(np.eye(2), (settings.clients, 1))
        natural = np.repeat(np.arange(settings.clients), 2)
        truth = {"optimum": np.array([1.0, -1.0])}
        return Dataset(
            Twin.info(settings),
            Records(features, features @ truth["optimum"]),
            None,
            natural,
            truth,
        )


@component("model", "twin_regression", revision=1, settings=LinearRegressionSettings)
class TwinRegression(LinearRegression):
    """Linear regression under a name of its own."""
