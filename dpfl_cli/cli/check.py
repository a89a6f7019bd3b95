"""`dpfl check FILE.py` or `dpfl check METHOD`: does a method, model or mechanism keep what its
guarantee says? Attacks on it as it runs, under every trust model that it is defined for.
"""

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpfl_cli.cli.pricing import noise_of
from dpfl_cli.cli.tables import print_table
from dpfl_cli.config.component import Component, components, lookup
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.options import component_names
from dpfl_cli.simulation.checked import (
    CHECKED,
    NOT_REACHED,
    UNMEASURED,
    USERS,
    batch_options,
    note_check,
    passed,
)
from dpfl_cli.simulation.plugins import load_plugins

if TYPE_CHECKING:
    from dpfl_cli.simulation.conformance import Kit
    from dpfl_cli.simulation.run_plan import Plan

CheckRows = list[dict[str, str]]  # of the table
Notes = list[tuple["Plan", str, CheckRows]]  # what became of a plugin's component of a group

EXIT_REFUSED, EXIT_FAILED = 2, 3
LOG = logging.getLogger("dpfl")
# how a run is protected, by trust model; records under local trust by dp=record
CHOICES = {"local": "ldp", "central": "cdp", "secure_aggregation": "secure_aggregation"}
CLIENTS, RECORDS, ROUNDS = 6, 24, 3
SMALL = [  # a method is tried on so much, where no data are named
    f"rounds={ROUNDS}",
    "dataset=synthetic",
    f"dataset.clients={RECORDS}",
    "dataset.dimension=5",
    "partitioner=iid",
    f"partitioner.clients={CLIENTS}",
]
# a method that tries a mechanism with two releases in a round, whose noise must not be one
TWICE = {"scaffold": ["algorithm.release=double"]}
LONGER = 60  # rounds of two runs of an own method, side by side and alone
DEGENERATE = {  # `dataset.clients` are records here
    "one client": {"dataset.clients": 4, "partitioner.clients": 1},
    "one record a client": {"dataset.clients": 6, "partitioner.clients": 6},
}
EPILOG = """\
What is checked:
  marks        values computed from clients' data keep their mark
  influence    one client's data (or one record) changed and the releases held fixed, nothing else
               changes, bit by bit
  sensitivity  no release moves further than declared, with random, sign-flipped, huge, tiny, zero
               and duplicate data, and by gradient ascent
  ledger       every release is charged, as planned
  noise        its variance is the one that is priced

A plugin that passed is remembered by the content of its file and by the settings it was tried with,
but for their numbers. Runs of other files or settings say "not checked".
Exit codes: 0 passed, 2 refused, 3 failed.

examples: dpfl check my_method.py
          dpfl check my_method.py algorithm.local_steps=1
          dpfl check fedavg dp=cdp model=torch model.path=net.py:Net dataset=arrays \
dataset.path=my.npz"""


class Case(NamedTuple):
    """One way in which a component is run.

    Attributes:
      words: overrides.
    """

    component: Component
    label: str
    words: tuple[str, ...]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="FILE.py|METHOD")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as of `dpfl run`")
    parser.add_argument("--quiet", action="store_true", help="no line for each step")


def execute(args: argparse.Namespace) -> int:
    """Checks, shows the table and records what became of a plugin."""
    rows = checked(args.target, args.overrides)
    results = {row["result"] for row in rows}
    if rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    unmeasured = list(dict.fromkeys(row["check"] for row in rows if row["result"] == UNMEASURED))
    if "FAIL" in results:
        print(f"{args.target}: FAILED")
        return EXIT_FAILED
    if "pass" not in results:
        print(f"{args.target}: refused, and so not checked")
        return EXIT_REFUSED
    but = f", but {' and '.join(unmeasured)} not measured (see `dpfl audit`)" if unmeasured else ""
    print(f"{args.target}: passed{but}")
    return 0


def checked(target: str, overrides: Sequence[str]) -> list[dict[str, str]]:
    """The rows of the table for all that a file registers, or for a method, model or mechanism by
    its name; those of a plugin's components are noted.
    """
    found = [case for component in _components(target) for case in cases(component, overrides)]
    notes: Notes = []
    rows = [row for case in found for row in check(case, notes)]
    for note in sorted(notes, key=lambda note: not passed(note[2])):  # a failure stays
        note_check(*note)
    return rows


def cases(component: Component, overrides: Sequence[str] = ()) -> Iterator[Case]:
    """The ways in which a component is run: under every trust model that it is defined for, or as
    overrides say.
    """
    group, target, name = component.group, component.target, component.name
    given = [word for word in overrides if word.startswith("dp=")]
    own = [f"{group}={name}"]
    chosen = [word for word in overrides if word.startswith("algorithm=")]
    if group != "mechanism":
        overrides = [word for word in overrides if word not in chosen]
    if group == "algorithm":
        trusts = {(name, trust, target.unit) for trust in target.trusts - {"none"}}
        own = []
    elif group == "model" and chosen:
        option = chosen[-1].partition("=")[2]
        used = lookup("algorithm", component_names("algorithm").get(option, option)).target
        proved = used.proved or used.trusts  # faults where it is not are its own
        trusts = {(option, trust, used.unit) for trust in proved - {"none"}}
    elif group == "mechanism":
        known = sorted(target.trusts - {"none"})[: 1 if given else None]
        named = any(word.startswith("algorithm") for word in overrides)
        methods = ["fedavg"] if named else ["fedavg", *TWICE]
        trusts = {(method, trust, "client") for method in methods for trust in known}
        own += _level(component, overrides)
    else:
        trusts = {one for one, need in USERS.items() if need in {None, *target.provides}}
    for method, trust, unit in sorted(trusts)[: 1 if given and group != "mechanism" else None]:
        of_records = unit == "record"
        protected = [
            f"dp={'record' if of_records and trust == 'local' else CHOICES[trust]}",
            *["dp.unit=record"] * of_records,
        ]
        label = f"{name} ({method})" if own else name
        label += f" {(given or protected)[0]}"
        made = TWICE.get(method, []) if group == "mechanism" else []
        words = (f"algorithm={method}", *made, *([] if given else protected), *own, *overrides)
        yield Case(component, label, words)
        batches = tuple(f"algorithm.{option}=" for option in batch_options(method))
        sized = any(word.startswith(batches) for word in overrides)
        if group == "model" and batches and not sized:
            again = tuple(f"{option}2" for option in batches)
            yield Case(component, f"{label} {' '.join(again)}", (*words, *again))


def _level(component: Component, overrides: Sequence[str]) -> list[str]:
    """A noise level for a mechanism that has none by default, and would be refused without."""
    key = f"mechanism.{component.target.noise_field}"
    known = component.settings.model_fields.get(component.target.noise_field)
    given = any(word.lstrip("+").startswith((f"{key}=", "dp.epsilon=")) for word in overrides)
    return [f"{key}=1"] if known is not None and known.default is None and not given else []


def check(case: Case, notes: Notes) -> CheckRows:
    """The rows of the table for one case; those of a plugin's component join the notes."""
    from dpfl_cli.simulation.conformance import CHECKS

    kits: list[Kit] = []
    try:
        for data, kit in _kits(case):
            kit.examine()
            kits.append(kit)
            bad = ", ".join(name for name in CHECKS if kit.faults[name])
            result = f"{bad} FAIL" if bad else "passed"
            LOG.info("%s, %s: %s", case.label, data, result)
    except ConfigError as error:
        return [{"of": case.label, "check": "all", "result": "refused", "why": str(error)}]
    rows = [_row(case, kits, name) for name in CHECKS]
    plan = kits[0].plans[0]
    small = plan.rounds < ROUNDS or plan.clients < 2
    if small and passed(rows) and any(getattr(plan, group).plugin for group in CHECKED):
        LOG.warning(
            "%s: passed, and is not remembered: in fewer than %d rounds, or by one client, noise "
            "that is used again and clients that meet do not show",
            case.label,
            ROUNDS,
        )
        return rows
    of_method = plan.algorithm.plugin  # whose faults, or idleness, are not the model's
    for group in {case.component.group} | (set() if of_method else {"model"}):
        if getattr(plan, group).plugin:
            notes.append((plan, group, rows))
    return rows


def _row(case: Case, kits: Sequence["Kit"], check: str) -> dict[str, str]:
    faults = list(dict.fromkeys(fault for kit in kits for fault in kit.faults[check]))
    reached, noise, plan = max(kit.reached for kit in kits), kits[0], kits[0].plans[0]
    notes = {
        "marks": f"{plan.last_round} rounds on {len(kits)} kinds of data",
        "influence": "equal bit by bit beside neighbours",
        "sensitivity": f"neighbours differ by at most {reached:.3f} of what is declared",
        "ledger": f"{plan.ledger().releases} releases, as planned",
        "noise": f"{noise.variance:.3f} times the variance that is priced, {noise.draws} numbers"
        if noise.draws
        else "only Gaussian noise is measured, and none was drawn",
    }
    seen = {"noise": bool(noise.draws), "sensitivity": reached > 0}
    result, why = "pass", notes[check]
    if faults:
        result, why = "FAIL", "; ".join(faults[:2])
        why += f" (and {len(faults) - 2} more)" if len(faults) > 2 else ""
    elif any(kit.cut_short for kit in kits):
        result, why = NOT_REACHED, "an error above ended the trial before all was looked at"
    elif not seen.get(check, True):
        result = UNMEASURED
    if plan.dp.mode == "paper":
        why += " (dp.mode=paper: its guarantee is not proved)"
    return {"of": case.label, "check": check, "result": result, "why": why}


def _kits(case: Case) -> Iterator[tuple[str, "Kit"]]:
    """The data that a case is tried on, with their checks."""
    import numpy as np

    from dpfl_cli.config.compose import compose_config
    from dpfl_cli.data.streams import Streams
    from dpfl_cli.privacy.draws import drawn_cohort, members_of
    from dpfl_cli.simulation.checks import proof_gap
    from dpfl_cli.simulation.conformance import SEEDS, Kit
    from dpfl_cli.simulation.neighbours import CLIENT, with_constant_features
    from dpfl_cli.simulation.plan import make_plan, make_plans, with_values
    from dpfl_cli.simulation.run_plan import federation_of

    own = any(word.startswith(("dataset", "partitioner")) for word in case.words)
    small = SMALL[:1] if own else SMALL
    if not own and {"participation=poisson", "participation=fixed"} & set(case.words):
        small = [*small, "participation.cohort=3"]
    config = compose_config([*small, *case.words])
    changes: dict[str, object] = {"dp.noise": "seeded"}  # runs are compared draw by draw
    if not own and (batch := config["algorithm"].get("batch_size")):
        changes["dataset.clients"] = max(RECORDS, CLIENTS * 2 * batch)
    config = with_values(config, changes)
    claim = with_values(config, {"dp.mode": "paper"})
    plan = make_plan(claim)
    if plan.sampling is not None:
        numbers = np.arange(1, plan.last_round + 1)
        cohorts = drawn_cohort(Streams([plan.seed] * len(numbers)), plan.sampling, numbers)
        if not (members_of(cohorts) == CLIENT).any():
            raise ConfigError(
                f"participation.cohort={plan.sampling.size:g}: client {CLIENT}, whose data are "
                f"changed, takes part in none of {len(numbers)} rounds; write a larger cohort, or "
                "more rounds"
            )
    if proof_gap(plan) is not None:
        config = claim
    runs: list[dict[str, float]] = [{"seed": seed} for seed in range(SEEDS)]
    ((key, noise),) = noise_of(plan).items() or [("", None)]
    if plan.mechanism.plugin and isinstance(noise, float):  # runs of a stack may differ in it
        runs = [run | {key: noise * (1 + run["seed"] % 3)} for run in runs]
    plans = make_plans([with_values(config, run) for run in runs])
    # runs of an own method may mix in later rounds, after a warm-up, say
    more = [with_values(config, {"seed": seed, "rounds": LONGER}) for seed in (0, 1)]
    longer = make_plans(more) if plan.algorithm.plugin else []
    federation = federation_of(plans[0])
    continuous = np.issubdtype(federation.dataset.train.features.dtype, np.floating)
    if plan.dp.unit == "record" and plan.dp.relation != "replace_one" and not continuous:
        raise ConfigError(
            f"dp.relation={plan.dp.relation}: a record of whole numbers is never absent in a "
            "check; write dp.relation=replace_one"
        )
    yield "ordinary data", Kit(plans, federation, longer)
    yield "constant features", Kit(plans[:1], with_constant_features(federation))
    sampling = plan.sampling
    for data, sizes in {} if own else DEGENERATE.items():
        if sampling is not None:
            most = min(sampling.size, sizes["partitioner.clients"])
            config = with_values(config, {"participation.cohort": most})
        try:
            plan = make_plan(with_values(config, sizes))
            federation = federation_of(plan)
        except ConfigError as error:
            LOG.info("%s, %s: left out (%s)", case.label, data, error)
            continue
        yield data, Kit([plan], federation)


def _components(target: str) -> list[Component]:
    """What is to be checked: the components of a file, or one by its name."""
    from dpfl_cli.simulation.plan import load_components

    own = target.endswith(".py")
    load_plugins([target] if own else [], may_be_empty=True)
    load_components()
    known = [one for group in CHECKED for one in components(group).values()]
    found = [one for one in known if own and one.origin == str(Path(target))]
    found = found or [one for one in known if one.name == target][:1]
    if not found and own:
        raise ConfigError(
            f"check {target}: registers no algorithm, model or mechanism; for a network write "
            f"dpfl check fedavg model=torch model.path={target}:NAME and its dataset=..."
        )
    if not found:
        raise ConfigError(f"check {target}: {nearest(target, [one.name for one in known])}")
    return found
