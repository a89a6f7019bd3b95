"""Facts of the optimisation problem behind a plan: diagnostics of its data, for tables of what a theorem asks for.

They look at the records without a release, so no epsilon covers them.
"""

from __future__ import annotations

import numpy as np
import torch

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.streams import Streams
from dpfl_cli.models.optimum import smoothness
from dpfl_cli.privacy.client_values import client_values, opened
from dpfl_cli.simulation.engine import federation_of
from dpfl_cli.simulation.plan import Plan

_known: dict[str, dict[str, float]] = {}


def _solved(plan: Plan) -> dict[str, float]:
    objective = plan.model.target(plan.model.settings, [federation_of(plan)], np.array([0]))
    minimisers = getattr(objective, "minimisers", None)
    if minimisers is None:
        raise ConfigError(
            f"model={plan.model.name}: its optimum is not known; facts of a problem need model=logistic with model.l2 > 0"
        )
    best, clients = minimisers[0], plan.clients
    at_best = opened(objective.gradient(client_values(best.expand(1, clients, -1).contiguous())))[0]  # [M, d]
    l2 = float(plan.model.settings.model_dump()["l2"])
    start = objective.initial(Streams([plan.seed]))[0]
    dual = (at_best.mean(dim=0) - at_best) / clients  # Lambda_i at the fixed point, where xt_i is the same for all i
    return {
        "initial_distance": float(clients * (start - best).square().sum()),
        "dual_norm": float(dual.square().sum()),
        "optimum_norm": float(torch.linalg.vector_norm(best)),
        "smoothness": float(smoothness(federation_of(plan), l2).max()),
        "strong_convexity": l2,
    }


def problem_facts(plan: Plan) -> dict[str, float]:
    """What is known of min_x (1/M) sum_i f_i(x) + g(x) once it is solved.

    Returns:
      initial_distance: sum_i ||x_i^1 - x*||^2 of the run's start.
      dual_norm: ||y*||^2 = sum_i ||Lambda_i*||^2 of the primal-dual method, Lambda_i* = (mean_j grad f_j(x*) - grad f_i(x*)) / M,
        from the stationarity of its messages at x*.
      optimum_norm: ||x*||.
      smoothness, strong_convexity: the largest L_i, and mu, of the f_i.

    Raises:
      ConfigError: the model does not know its optimum.
    """
    if plan.id not in _known:
        _known[plan.id] = _solved(plan)
    return _known[plan.id]
