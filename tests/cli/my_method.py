"""A user's own components, as the README shows them: an algorithm, a model and a data set in one file."""

from __future__ import annotations

import numpy as np
import torch
from pydantic import Field

from dpfl_cli.algorithms.base import State
from dpfl_cli.algorithms.local import LocalSettings, bounded_local_update, check_clip_norm, per_run
from dpfl_cli.config.component import Settings, component
from dpfl_cli.data.federation import Dataset, DatasetInfo, Records
from dpfl_cli.models.linear import LinearRegression, LinearRegressionSettings
from dpfl_cli.privacy.mechanism import ReleaseSpec


class FedMomentumSettings(LocalSettings):
    local_steps: int = Field(5, ge=1)
    local_lr: float = Field(0.01, gt=0)
    clip_norm: float | None = Field(1.0, gt=0)
    momentum: float = Field(0.5, ge=0, lt=1)


@component("algorithm", "fedmomentum", revision=1, settings=FedMomentumSettings)
class FedMomentum:
    """DP-FedAvg with server momentum: v <- beta v + mean update, w <- w + v."""

    trusts = frozenset({"none", "local", "central"})
    proved = frozenset({"local", "central"})  # clients hold no state; the server sees releases only
    units = frozenset({"client"})
    paper = "Hsu, Qi, Brown 2019, arXiv:1909.06335"

    def __init__(self, hyper):
        self.hyper = hyper  # floats are tensors [R], one value a run

    @staticmethod
    def releases(settings, trust):
        check_clip_norm(settings, trust)
        return [ReleaseSpec("update", note="client update clipped to C: 2C under replace_one, C otherwise")]

    def init(self, objective, streams):
        model = objective.initial(streams)
        return State(server={"model": model, "velocity": torch.zeros_like(model)}, clients={})

    def round(self, state, objective, mechanism, streams, rounds):
        model, velocity = state.server["model"], state.server["velocity"]
        update = bounded_local_update(objective, model, self.hyper, streams, rounds)
        mean = mechanism.release("update", update, rounds).mean
        velocity = per_run(self.hyper.momentum, model) * velocity + mean
        return State({"model": model + velocity, "velocity": velocity}, {}), {}


class TwinSettings(Settings):
    clients: int = Field(8, ge=1)


@component("dataset", "twin", revision=1, settings=TwinSettings)
class Twin:
    """Every client holds the same two records."""

    @staticmethod
    def info(settings):
        return DatasetInfo("twin", "synthetic", "", (2,), None, 2 * settings.clients, settings.clients)

    @staticmethod
    def load(settings, seed):
        features = np.tile(np.eye(2), (settings.clients, 1))
        natural = np.repeat(np.arange(settings.clients), 2)
        truth = {"optimum": np.array([1.0, -1.0])}
        return Dataset(Twin.info(settings), Records(features, features @ truth["optimum"]), None, natural, truth)


@component("model", "twin_regression", revision=1, settings=LinearRegressionSettings)
class TwinRegression(LinearRegression):
    """Linear regression under a name of its own."""
