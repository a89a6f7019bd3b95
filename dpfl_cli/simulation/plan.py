"""From a composed config to a plan: everything about a run that can be known before it starts.

Planning validates settings and combinations, resolves the data (its content is part of a run's identity), calibrates
the noise where a target epsilon is given, and writes the ledger that the run will have if it completes. A plan that
exists can be run.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import dpfl_cli.algorithms
import dpfl_cli.data
import dpfl_cli.models
import dpfl_cli.privacy
from dpfl_cli.config.component import Component, Settings, components, lookup, parse_settings
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.identity import canonical_json, content_id
from dpfl_cli.config.paths import conf_dir
from dpfl_cli.config.schema import DpSettings, EvaluationSettings, LauncherSettings, RootSettings, RuntimeSettings
from dpfl_cli.data.federation import DatasetInfo
from dpfl_cli.privacy.conventions import CONVENTIONS
from dpfl_cli.privacy.ledger import Ledger
from dpfl_cli.privacy.mechanism import ReleaseSpec
from dpfl_cli.simulation.noise import check_calibration, planned_ledger, with_noise

ENGINE_REVISION = 1  # raised when the engine, the streams or the evaluation change a run's numbers
PARTS = ("algorithm", "mechanism", "accountant", "dataset", "partitioner", "model")
_ROOT = ("seed", "rounds")
_WITHOUT_COMPONENTS = (  # slow to import, needed by few commands
    "dpfl_cli.privacy.events",
    "dpfl_cli.data.noise_kernel",
    "dpfl_cli.models.cnn_kernel",
    "dpfl_cli.models.curvature_kernel",
    "dpfl_cli.models.linear_kernel",
    "dpfl_cli.models.single_output_kernel",
)
_fewest: dict[str, int] = {}  # records of the client with the fewest, by data, partition and seed
_IGNORED = ("hints", "scale")  # they act on other keys while the config is composed


@cache
def load_components() -> None:
    """Imports every module of the rooms that hold components, so that they are registered."""
    for room in (dpfl_cli.data, dpfl_cli.models, dpfl_cli.privacy, dpfl_cli.algorithms):
        for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
            if module.name not in _WITHOUT_COMPONENTS:
                importlib.import_module(module.name)


@dataclass(frozen=True)
class Part:
    """A component and the settings a run gives it."""

    component: Component
    settings: Settings

    @property
    def name(self) -> str:
        return self.component.name

    @property
    def target(self) -> Any:
        return self.component.target

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "revision": self.component.revision, **self.settings.identity()}


@dataclass(frozen=True)
class Plan:
    """A run that has been validated and resolved, and not yet started."""

    seed: int
    rounds: int
    evaluation: EvaluationSettings
    dp: DpSettings
    runtime: RuntimeSettings
    launcher: LauncherSettings
    algorithm: Part
    mechanism: Part
    accountant: Part
    dataset: Part
    partitioner: Part
    model: Part
    info: DatasetInfo
    clients: int
    dimension: int
    specs: tuple[ReleaseSpec, ...]
    flops_per_round: float | None = None  # as counted beforehand, of a run that is made for its times; no part of its identity

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that can change the run's numbers, as plain values; the run's config.yaml."""
        values: dict[str, Any] = {
            "engine": ENGINE_REVISION,
            "seed": self.seed,
            "rounds": self.rounds,
            "evaluation": self.evaluation.model_dump(),
            "dp": self.dp.identity(),
            **{part: getattr(self, part).identity() for part in PARTS},
        }
        values["dataset"]["content"] = {"source": self.info.source, "sha256": self.info.sha256, **self.info.details}
        return values

    @cached_property
    def id(self) -> str:
        return content_id(self.identity)

    @property
    def label(self) -> str:
        """A short name for progress and tables."""
        return f"{self.algorithm.name} {self.dp.name} {self.dataset.name} seed={self.seed}"

    def ledger(self, rounds: int | None = None) -> Ledger:
        """The ledger after `rounds` rounds (all of them by default), with the mechanism's own events."""
        return planned_ledger(self, self.mechanism.settings, self.rounds if rounds is None else rounds)

    def accountant_object(self) -> Any:
        return self.accountant.target(self.accountant.settings)

    def not_covered(self) -> list[str]:
        """What the epsilon does not cover; components name their own items at their source."""
        items = ["choice of hyperparameters (tuning)", "reported diagnostics, such as the train loss"]
        heuristic, batched = self.dp.calibration == "record_heuristic", getattr(self.algorithm.settings, "batch_size", None)
        if self.dp.unit == "record":
            items.append("numbers of records per client, which count as public and fixed")
        elif heuristic or batched is not None:  # a client's own number is private where the whole client is
            use = " and ".join(["sets the noise"] * heuristic + ["limits the batches"] * (batched is not None))
            items.append(f"numbers of records per client, the smallest of which {use}")
        for part in PARTS:
            stated = getattr(getattr(self, part).target, "not_covered", ())
            items += stated(getattr(self, part).settings) if callable(stated) else stated
        return list(dict.fromkeys(items))


def make_plan(config: Mapping[str, Any]) -> Plan:
    """Validates and resolves a composed config.

    Raises:
      ConfigError: an unknown key, a wrong type, an impossible combination; one line with what to write instead.
      DataError: the data are absent or damaged.
    """
    load_components()
    values = {key: value for key, value in config.items() if key not in _IGNORED}
    known = {*_ROOT, "evaluation", "dp", "runtime", "launcher", *PARTS}
    for key in values:
        if key not in known:
            raise ConfigError(f"{key}: unknown option; {nearest(key, known)}")
    root = parse_root({key: values[key] for key in _ROOT if key in values})
    evaluation = parse_settings(EvaluationSettings, values["evaluation"], "evaluation")
    dp = parse_settings(DpSettings, values["dp"], "dp")
    runtime = parse_settings(RuntimeSettings, values["runtime"], "runtime")
    launcher = parse_settings(LauncherSettings, values["launcher"], "launcher")
    parts = {group: _part(group, values.get(group)) for group in PARTS}
    if dp.trust == "none" and dp.unit not in parts["algorithm"].target.units:
        dp = dp.model_copy(update={"unit": min(parts["algorithm"].target.units)})  # nothing is protected, of neither unit
    _check_trust(parts, dp)
    check_calibration(dp)
    _check_runtime(runtime, dp)
    _check_needs(parts["algorithm"], parts["model"])
    info = parts["dataset"].target.info(parts["dataset"].settings)
    clients = parts["partitioner"].target.clients(parts["partitioner"].settings, info)
    _check_watched(parts, clients)
    dimension = parts["model"].target.dimension_of(parts["model"].settings, info)
    specs = tuple(parts["algorithm"].target.releases(parts["algorithm"].settings, dp.trust))
    fewest = partial(_fewest_records, parts["dataset"], parts["partitioner"], info.sha256, root.seed)
    specs = tuple(spec if spec.settle is None else spec.settle(spec, root.rounds, fewest()) for spec in specs)
    if dp.relation == "add_or_remove" and any(spec.rate is not None or spec.disjoint > 1 for spec in specs):
        raise ConfigError(
            "dp.relation=add_or_remove: where a record is gone, a batch holds another one in its place, so that batches have the "
            "sensitivity of replacing; write dp.relation=replace_one or zero_out"
        )
    plan = Plan(
        seed=root.seed,
        rounds=root.rounds,
        evaluation=evaluation,
        dp=dp,
        runtime=runtime,
        launcher=launcher,
        algorithm=parts["algorithm"],
        mechanism=parts["mechanism"],
        accountant=parts["accountant"],
        dataset=parts["dataset"],
        partitioner=parts["partitioner"],
        model=parts["model"],
        info=info,
        clients=clients,
        dimension=dimension,
        specs=specs,
    )
    for spec in specs:
        if spec.shape not in plan.mechanism.target.shapes:
            hint = _alternatives("mechanism", lambda t, shape=spec.shape: dp.trust in t.trusts and shape in t.shapes)
            raise ConfigError(
                f"algorithm={plan.algorithm.name} releases a {spec.shape} ('{spec.name}') that "
                f"mechanism={plan.mechanism.name} cannot release; {hint}"
            )
    plan = with_noise(plan, fewest)
    if dp.epsilon is None:
        plan.mechanism.target.check(plan.mechanism.settings, dimension)
    reason = plan.accountant_object().supports(plan.ledger())
    if reason is not None:
        raise ConfigError(f"accountant={plan.accountant.name} cannot price this run: {reason}")
    return plan


def parse_root(values: dict[str, Any]) -> RootSettings:
    """The scalars at the root; errors name the bare key."""
    try:
        return parse_settings(RootSettings, values, "root")
    except ConfigError as error:
        raise ConfigError(str(error).replace("root.", "")) from None


def _fewest_records(dataset: Part, partitioner: Part, sha256: str, seed: int) -> int:
    """Records of the client with the fewest, at least 1 (the engine refuses empty ones); from labels where features take long."""
    key = canonical_json([dataset.identity(), sha256, partitioner.identity(), seed])
    if key not in _fewest:
        load = getattr(dataset.target, "outline", dataset.target.load)
        counts = partitioner.target.partition(partitioner.settings, load(dataset.settings, seed), seed).counts
        _fewest[key] = max(int(counts.min()), 1)
    return _fewest[key]


def _part(group: str, values: Any) -> Part:
    if not isinstance(values, Mapping) or "name" not in values:
        raise ConfigError(f"{group}: choose one, as {group}=NAME; {nearest('', components(group))}")
    found = lookup(group, str(values["name"]))
    settings = {key: value for key, value in values.items() if key != "name"}
    return Part(found, parse_settings(found.settings, settings, group))


def _check_trust(parts: Mapping[str, Part], dp: DpSettings) -> None:
    """Refuses combinations of method, mechanism, trust model, unit and relation that make no sense."""
    algorithm, mechanism = parts["algorithm"], parts["mechanism"]
    if dp.trust not in algorithm.target.trusts:
        defined = ", ".join(sorted(algorithm.target.trusts))
        raise ConfigError(f"algorithm={algorithm.name} is not defined under dp.trust={dp.trust}; it is under {defined}")
    if dp.unit not in algorithm.target.units:
        own, others = algorithm.name.removesuffix("_record"), components("algorithm")
        twin = own if dp.unit == "client" else f"{own}_record"  # the same method for the other unit
        fits = twin in others and dp.unit in others[twin].target.units and dp.trust in others[twin].target.trusts
        if dp.unit == "client":
            hint = "dp.unit=record, or dp=record" + (f", or algorithm={twin} for whole clients" if fits else "")
        else:
            choices = "dp=ldp or dp=cdp, or " if dp.name == "record" else ""
            hint = (f"algorithm={twin}, or " if fits else "") + f"{choices}dp.unit=client"
        raise ConfigError(
            f"algorithm={algorithm.name} protects a {'/'.join(sorted(algorithm.target.units))}, not a {dp.unit} (dp={dp.name}); "
            f"write {hint}"
        )
    if dp.trust not in mechanism.target.trusts:
        hint = _alternatives("mechanism", lambda target: dp.trust in target.trusts)
        raise ConfigError(f"mechanism={mechanism.name} makes no sense under dp={dp.name} (trust {dp.trust}); {hint}")
    missing = gap(algorithm, mechanism, dp.trust)
    if dp.mode == "sound" and missing is not None:
        raise ConfigError(
            f"algorithm={algorithm.name} under dp.trust={dp.trust} is not proved with these settings ({missing}): dp.mode=sound "
            "refuses it, dp.mode=paper runs it"
        )
    if dp.relation not in mechanism.target.relations:
        raise ConfigError(f"mechanism={mechanism.name} has no sensitivity under dp.relation={dp.relation}")


def _check_needs(algorithm: Part, model: Part) -> None:
    """Refuses a model that lacks what the method computes with (per-record clipping, second-order solves)."""
    needs: frozenset[str] = getattr(algorithm.target, "needs", frozenset())
    size = getattr(algorithm.settings, "batch_size", None)
    asking = f"algorithm={algorithm.name}" if size is None else f"algorithm.batch_size={size}"
    if size is not None:
        needs |= {"clipped_gradient"}  # models that know single records take batches of them
    missing = sorted(needs - model.target.provides)
    if missing:
        hint = _alternatives("model", lambda target: set(missing) <= target.provides)
        what = "gradients of single records" if missing[0] == "clipped_gradient" else missing[0]
        raise ConfigError(f"{asking} needs {what}, which model={model.name} does not have; {hint}")
    penalty = getattr(model.settings, "penalty", "none")
    if penalty != "none" and not getattr(algorithm.target, "proximal", False):
        hint = _alternatives("algorithm", lambda target: getattr(target, "proximal", False))
        raise ConfigError(
            f"model.penalty={penalty}: algorithm={algorithm.name} takes no proximal steps and would ignore it; {hint}"
        )


def _check_watched(parts: Mapping[str, Part], clients: int) -> None:
    """Refuses a client to be watched that is not there."""
    for group in ("algorithm", "model"):
        watched = getattr(parts[group].settings, "watched_client", None)
        if watched is not None and watched >= clients:
            raise ConfigError(f"{group}.watched_client={watched}: there are {clients} clients, numbered from 0")


def gap(algorithm: Part, mechanism: Part, trust: str) -> str | None:
    """Why the guarantee of this method under this trust model is not proved with these settings, or None."""
    if trust == "none":
        return None
    target = algorithm.target
    stated = getattr(target, "gap", None)
    if stated is not None:
        reason: str | None = stated(algorithm.settings, trust, mechanism.target.whole_noise(mechanism.settings))
    else:
        reason = None if trust in getattr(target, "proved", ()) else "its file gives no proof for this trust model"
    return reason or mechanism.target.gap(mechanism.settings)


def _check_runtime(runtime: RuntimeSettings, dp: DpSettings) -> None:
    """Refuses a device that is not there, and a convention that nobody has."""
    if runtime.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("runtime.device=cuda: no GPU that torch can use here; write runtime.device=cpu or auto")
    if runtime.noise == "device":
        import torch

        if runtime.device == "cpu" or not torch.cuda.is_available():
            raise ConfigError("runtime.noise=device: the run is on a CPU, where the host draws; write runtime.noise=auto or host")
    if dp.convention is not None and dp.convention not in CONVENTIONS:
        raise ConfigError(f"dp.convention={dp.convention}: no such convention; {nearest(dp.convention, CONVENTIONS)}")


def _alternatives(group: str, fits: Any) -> str:
    fitting = {name for name, found in components(group).items() if fits(found.target)}
    names = sorted(option for name in fitting for option in options_of(group, name))
    return f"write {group}={' or '.join(names)}" if names else f"no {group} fits"


def options_of(group: str, name: str) -> list[str]:
    """The config options that choose a component as it is: the one of its name, else all that name it; itself for a plugin's."""
    found = []
    for path in sorted((conf_dir() / group).glob("*.yaml")):
        named = re.search(r"^ *name: *(\S+)", path.read_text(), re.MULTILINE)
        if named is not None and named.group(1) == name:
            found.append(path.stem)
    return [name] if name in found or not found else found


def with_values(config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A composed config with values at dotted keys replaced; unknown keys are refused.

    >>> with_values({"a": {"b": 1}, "seed": 0}, {"a.b": 2})
    {'a': {'b': 2}, 'seed': 0}
    """
    result: dict[str, Any] = {key: dict(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    for path, value in changes.items():
        node: Any = result
        *parents, last = path.split(".")
        for part in parents:
            node = node.get(part) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            raise ConfigError(f"{path}: unknown option; {nearest(last, node if isinstance(node, dict) else result)}")
        node[last] = value
    return result


def make_plans(configs: Sequence[Mapping[str, Any]]) -> list[Plan]:
    """Plans of several configs; the first bad one is refused before any is run."""
    return [make_plan(config) for config in configs]
