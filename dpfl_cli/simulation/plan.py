"""From a composed config to a plan: everything about a run that can be known before it starts.

Planning validates settings and combinations, resolves the data (its content is part of a run's
identity), calibrates the noise where a target epsilon is given, and writes the ledger that the run
will have if it completes.
"""

import importlib
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

from dpfl_cli.config.component import SEED, Settings, components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, DpflError, nearest, without_values
from dpfl_cli.config.own_files import noted_for
from dpfl_cli.config.schema import (
    DpSettings,
    EvaluationSettings,
    LauncherSettings,
    ParticipationSettings,
    RootSettings,
    RuntimeSettings,
)
from dpfl_cli.privacy.releases import ReleaseSpec, Setup
from dpfl_cli.simulation.checks import (
    check_needs,
    check_numbers,
    check_participation,
    check_releases,
    check_runtime,
    check_trust,
)
from dpfl_cli.simulation.confined import closed
from dpfl_cli.simulation.noise import check_calibration, with_noise
from dpfl_cli.simulation.run_plan import CHOSEN, Choice, Options, Plan, noted

SECTIONS: dict[str, type[Settings]] = {
    "evaluation": EvaluationSettings,
    "dp": DpSettings,
    "participation": ParticipationSettings,
    "runtime": RuntimeSettings,
    "launcher": LauncherSettings,
}
Config = Mapping[str, Any]  # as it is composed, in plain values
MOST = 10**9  # of clients, records, steps or whatever a component counts
IGNORED = ("hints", "scale")  # they act on other keys while the config is composed
WITHOUT_COMPONENTS = (  # slow to import, needed by few commands
    "dpfl_cli.data.normal_loops",
    "dpfl_cli.privacy.auditing",
    "dpfl_cli.models.cnn_kernel",
    "dpfl_cli.models.cnn_layers",
    "dpfl_cli.models.layer_kernel",
    "dpfl_cli.models.layer_loops",
    "dpfl_cli.models.vector_code",
    "dpfl_cli.models.vectors",
)


@cache
def load_components() -> None:
    """Imports every module of the rooms that hold components, so that they are registered."""
    for room in ("data", "models", "privacy", "algorithms"):
        package = importlib.import_module(f"dpfl_cli.{room}")
        for module in pkgutil.iter_modules(package.__path__, f"dpfl_cli.{room}."):
            if module.name not in WITHOUT_COMPONENTS:
                importlib.import_module(module.name)


def make_plan(config: Config) -> Plan:
    """Validates and resolves a composed config.

    Raises:
      ConfigError: an unknown key, a wrong type, an impossible combination; one line with what to
        write instead.
      DataError: the data are absent or damaged.
    """
    load_components()
    try:
        plan = _planned(config)
        _ = plan.id  # of a user's files as they are now: `check_unchanged`
        return plan
    except DpflError:
        raise
    except Exception as error:
        chosen = [lookup(group, str(config[group]["name"])) for group in CHOSEN]
        own = [
            f"{one.group}={one.name} from {one.origin}" for one in chosen if one.origin != "dpfl"
        ]
        if not own:
            raise
        # data were read: what its message says may be of them
        raise ConfigError(
            f"{', '.join(own)}: {without_values(error)}; --debug shows its message"
        ) from error


def _planned(config: Config) -> Plan:
    known = {*RootSettings.model_fields, *SECTIONS, *CHOSEN}
    for key in config:
        if key not in known and key not in IGNORED:
            raise ConfigError(f"{key}: unknown option; {nearest(key, known)}")
    scalars = {k: config[k] for k in RootSettings.model_fields if k in config}
    root = parse_settings(RootSettings, scalars, "")
    parse_settings(Settings, config.get("scale") or {}, "scale")  # it sets other keys, none here
    if lacking := [name for name in SECTIONS if name not in config]:
        raise ConfigError(
            f"{lacking[0]}: missing; a config of your own begins with dpfl's: "
            "defaults: [config, _self_]"
        )
    sections = {n: parse_settings(kind, config.get(n), n) for n, kind in SECTIONS.items()}
    chosen: Options = {group: _chosen(group, config.get(group)) for group in CHOSEN}
    dp = sections["dp"]
    if dp.trust == "none":  # nothing is protected, of neither unit
        dp = sections["dp"] = dp.model_copy(update={"unit": chosen["algorithm"].target.unit})
    check_trust(chosen["algorithm"], chosen["mechanism"], dp)
    check_calibration(dp)
    check_runtime(sections["runtime"], dp)
    check_needs(chosen["algorithm"], chosen["model"])
    data, partitioner, model = (chosen[group] for group in ("dataset", "partitioner", "model"))
    with noted(data):
        info = data.target.info(data.settings)
    clients = partitioner.target.clients(partitioner.settings, info)
    check_participation(sections["participation"], chosen["algorithm"], dp, clients)
    with noted(model):
        dimension = model.target.dimension_of(model.settings, info)
    plan = Plan(
        **root.model_dump(),
        **sections,
        **chosen,
        info=info,
        clients=clients,
        dimension=dimension,
    )
    check_numbers(plan)
    with closed(plan.data_files):
        specs = specs_of(plan.algorithm.target, plan.algorithm.settings, plan.setup)
    plan = replace(plan, specs=specs)
    with noted(plan.algorithm):  # whose `gaps` are asked for
        check_releases(plan)
    plan = with_noise(plan)
    try:
        plan.mechanism.target.check(plan.mechanism.settings, plan.dimension)
    except ConfigError as error:
        if plan.dp.epsilon is None:
            raise
        raise ConfigError(  # what it names was not given
            f"dp.epsilon={plan.dp.epsilon:g}: give another target; with noise for this one: {error}"
        ) from error
    reason = plan.accountant_object().supports(plan.ledger(plan.rounds))
    if reason is not None:
        raise ConfigError(f"accountant={plan.accountant.name} cannot price this run: {reason}")
    if dp.max_epsilon is not None and (dp.trust == "none" or not plan.last_round):
        why = "nothing is private" if dp.trust == "none" else "the first round exceeds it"
        raise ConfigError(
            f"dp.max_epsilon={dp.max_epsilon:g}: {why}; add noise (dp.epsilon sets it), or drop it"
        )
    return plan


def specs_of(method: Any, settings: Settings, setup: Setup) -> tuple[ReleaseSpec, ...]:
    """What a method declares; a ConfigError where that is no list of releases."""
    declared = method.releases(settings, setup)
    several = isinstance(declared, Iterable)
    specs = tuple(declared) if several else (declared,)
    if not several or not all(isinstance(one, ReleaseSpec) for one in specs):
        kinds = ", ".join(type(one).__name__ for one in specs)
        raise ConfigError(
            f"algorithm={method.name}: releases gives {kinds}; return a list of ReleaseSpec"
        )
    return specs


def make_plans(configs: Sequence[Config]) -> list[Plan]:
    """Plans of several configs; the first bad one is refused before any is run."""
    return [make_plan(config) for config in configs]


def _chosen(group: str, values: Any) -> Choice:
    if not isinstance(values, Mapping) or "name" not in values:
        raise ConfigError(f"{group}: choose one, as {group}=NAME; {nearest('', components(group))}")
    found = lookup(group, str(values["name"]))
    settings = {key: value for key, value in values.items() if key != "name"}
    for key, field in found.settings.model_fields.items():
        value = settings.get(key)
        if isinstance(value, int) and value > MOST and SEED not in field.metadata:
            raise ConfigError(f"{group}.{key}={value}: more than {MOST}, which no machine holds")
    with noted_for(found.target.__module__) if found.origin != "dpfl" else nullcontext():
        return Choice(found, parse_settings(found.settings, settings, group))


def with_values(config: Config, changes: Config) -> Options:
    """A composed config with values at dotted keys replaced; unknown keys are refused.

    >>> with_values({"a": {"b": 1}, "seed": 0}, {"a.b": 2})
    {'a': {'b': 2}, 'seed': 0}
    """
    result: Options = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()
    }
    for path, value in changes.items():
        node: Any = result
        *parents, last = path.split(".")
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            known = node if isinstance(node, dict) else result
            below = path.rpartition(".")[0] if known is node else ""
            raise ConfigError(f"{path}: unknown option; {nearest(last, known, below)}")
        node[last] = value
    return result
