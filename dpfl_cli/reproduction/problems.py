"""Facts of the optimisation problem behind a plan: diagnostics of its data, for tables of what a
theorem asks for.

They look at the records without a release, so no epsilon covers them.
"""

import numpy as np

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import canonical_json
from dpfl_cli.data.streams import Streams
from dpfl_cli.simulation.federations import federation_of
from dpfl_cli.simulation.run_plan import Plan

_known: dict[str, dict[str, float]] = {}


def problem_facts(plan: Plan) -> dict[str, float]:
    """What is known of min_x (1/M) sum_i f_i(x) + g(x) and of the run's start once it is solved
    (see the model's `problem`).

    Raises:
      ConfigError: the model does not know its optimum.
    """
    key = canonical_json([plan.dealt, plan.model.identity()])
    if key not in _known:
        objective = plan.model.target(plan.model.settings, [federation_of(plan)], np.array([0]))
        describe = getattr(objective, "problem", None)
        facts = {} if describe is None else describe(objective.initial(Streams([plan.seed]))[0])
        if not facts:
            raise ConfigError(
                f"model={plan.model.name}: its optimum is not known; facts of a problem need "
                "model=logistic with model.l2 > 0 "
                "or a model.condition"
            )
        _known[key] = facts
    return _known[key]
