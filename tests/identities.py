"""The ids that runs had while every option was hashed, beside those that they have now.

`python -m tests.identities` prints the two, and that they map one to one, for the golden runs;
`old_id` and `renamed` serve any list of plans, such as the requests of all artifacts.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any

from dpfl_cli.config.component import Settings
from dpfl_cli.config.identity import content_id
from dpfl_cli.simulation.run_plan import CHOSEN, Choice, Plan

# What was special then: options that had come later and were not hashed at their defaults, a
# revision of one value of an option, and revisions that were raised with the new identity.
RECORD = ("batch_size", "sampling", "clipping")
NETWORK = ("watched_client", "train_loss_records")
IMAGES = ("subset", "subset_seed", "held_out", "pixels")
LATER: dict[str, tuple[str, ...]] = {
    "dp": ("calibration", "v", "releases"),
    "fedavg": ("batch_size",),
    "fedexp": ("batch_size",),
    "scaffold": ("batch_size", "server_lr", "warm_start"),
    "fedavg_record": RECORD,
    "adaptdp": RECORD,
    "scaffold_record": (*RECORD, "warm_idle_rounds", "extra_inv_n"),
    "shared_gaussian": ("noise_share", "sens_scale"),
    "mnist": IMAGES,
    "fashion_mnist": IMAGES,
    "linear_regression": ("init", "objective", "gradient_quantiles"),
    "logistic_regression": ("condition", "gradient_quantiles"),
    "mlp": ("gradient_quantiles",),
    "softmax_regression": ("gradient_quantiles",),
    "cnn5x5": NETWORK,
    "lstm2": NETWORK,
    "mobilenet": NETWORK,
    "unet3d": NETWORK,
    "vgg11": (*NETWORK, "init"),
}
FEATURES = ("backbone", "weights")  # of features: what they resolve to is hashed
REVISIONS = {
    "linear_regression": 4,
    "logistic_regression": 2,
    "softmax_regression": 2,
    "mlp": 2,
}
CHOLESKY = 3  # the revision of softmax_regression's solver=cholesky


def _old_values(name: str, settings: Settings) -> dict[str, Any]:
    """Settings of a component as they were hashed."""
    fields = type(settings).model_fields
    later = LATER.get(name, ())
    return {
        option: value
        for option, value in settings.model_dump().items()
        if not (option in later and value == fields[option].default)
        and not (name.endswith("_features") and option in FEATURES)
    }


def _old_part(part: Choice) -> dict[str, Any]:
    revision = REVISIONS.get(part.name, part.component.revision)
    values = {"name": part.name, "revision": revision, **_old_values(part.name, part.settings)}
    if part.name == "softmax_regression" and values["solver"] == "cholesky":
        values["solver_revision"] = CHOLESKY
    return values


def old_id(plan: Plan) -> str:
    """The id that the plan had."""
    parts = {name: _old_part(getattr(plan, name)) for name in CHOSEN}
    parts["dataset"]["content"] = plan.identity["dataset"]["content"]
    return content_id(
        {
            "engine": plan.identity["engine"],
            "seed": plan.seed,
            "rounds": plan.rounds,
            "evaluation": plan.evaluation.model_dump(),
            "dp": _old_values("dp", plan.dp),
            **parts,
        }
    )


def renamed(plans: Iterable[Plan]) -> dict[str, str]:
    """Old id -> new id.

    Raises:
      ValueError: the map is not one to one.
    """
    new_of: dict[str, str] = {}
    old_of: dict[str, str] = {}
    for plan in plans:
        old = old_id(plan)
        if new_of.setdefault(old, plan.id) != plan.id or old_of.setdefault(plan.id, old) != old:
            others = new_of[old], old_of[plan.id]
            raise ValueError(f"not one to one: {old} -> {plan.id}, but also {others}")
    return new_of


def main() -> int:
    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.config.errors import DataError
    from dpfl_cli.simulation.plan import make_plan
    from tests.golden import RUNS

    plans = []
    for words in RUNS.values():
        with contextlib.suppress(DataError):
            plans.append(make_plan(compose_config(words)))
    found = renamed(plans)
    for old, new in found.items():
        print(old, new)
    print(f"{len(found)} ids of {len(plans)} runs, one to one", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
