"""`dpfl run`: one run, or a grid with -m. Hydra composes; runs that share shapes are stacked.

--plugin FILE, --dry-run and --quiet (and --debug) are ours; all other arguments are Hydra's.
"""

import argparse
import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra import version
from hydra._internal.utils import _run_hydra, get_args_parser

from dpfl_cli.cli.pricing import privacy_lines
from dpfl_cli.config.compose import (
    CONFIG_ERRORS,
    VERSION_BASE,
    check_overrides,
    compose_config,
    explained,
    plain,
    register_resolvers,
)
from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.identity import content_id
from dpfl_cli.config.own_files import check_configs_below
from dpfl_cli.config.paths import COMMAND, conf_dir, outputs_dir
from dpfl_cli.simulation.plugins import add_plugin_option, load_plugins, pass_on

if TYPE_CHECKING:
    from dpfl_cli.simulation.execute import Outcome
    from dpfl_cli.simulation.run_plan import Plan
    from dpfl_cli.simulation.workers import Backend

# Hydra's arguments, its --help too, which shows the options of every group
NOT_OURS = ("experimental_rerun", "config_path", "shell_completion", "version")  # dpfl has its own
OURS = ("overrides", "plugin", "quiet", "dry_run")  # the other arguments are handed to Hydra
PRICED = 10  # the most runs of whose privacy --dry-run tells


@dataclass
class Invocation:
    """What a command line asks of us, and what came of it: Hydra hands on neither.

    Attributes:
      searched: what a sweeper that searches says of its runs.
    """

    quiet: bool = False
    dry_run: bool = False
    executed: list["Outcome"] = field(default_factory=list)
    searched: list[str] = field(default_factory=list)


current = Invocation()


def configure(parser: argparse.ArgumentParser) -> None:
    for argument in get_args_parser()._actions:
        if argument.dest not in NOT_OURS:
            parser._add_action(argument)
    add_plugin_option(parser)
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--dry-run", action="store_true")


def execute(args: argparse.Namespace) -> int:
    """Composes, runs and reports; the exit code."""
    if args.config_dir:
        check_configs_below(Path(args.config_dir))
    if (args.package or args.resolve) and not args.cfg:
        raise ConfigError("run: --package and --resolve are for what --cfg shows; add --cfg job")
    flags = {name: value for name, value in vars(args).items() if value and name not in OURS}
    code = perform(args.overrides, flags, args.plugin, args.quiet, args.dry_run)
    if not current.executed:
        return code
    from dpfl_cli.cli.outcomes import report_outcomes  # the first round does not wait for it

    code = report_outcomes(current.executed, args.quiet)
    for line in current.searched:
        print(line)
    return code


def perform(
    overrides: Sequence[str],
    flags: Mapping[str, Any],
    plugins: Sequence[str],
    quiet: bool,
    dry_run: bool = False,
) -> int:
    """Composes and runs what a command line says; `current` has what became of it.

    Args:
      flags: of Hydra, as {"multirun": True}.
      plugins: files, whose components stay.

    Returns:
      Hydra's exit code, where it showed something in place of running.
    """
    global current
    current = Invocation(quiet, dry_run)
    load_plugins(plugins)
    pass_on(plugins)
    if flags or any("hydra" in word.split("=")[0] or "${hydra:" in word for word in overrides):
        return _through_hydra(flags, overrides)
    # one run that asks nothing of Hydra, whose main function would compose it twice
    execute_configs([compose_config(overrides)])
    return 0


def _through_hydra(flags: Mapping[str, Any], overrides: Sequence[str]) -> int:
    """What Hydra's main function does with a command line; the exit code."""
    check_overrides(overrides)
    register_resolvers()
    stopped: list[BaseException] = []

    def single(config: Any) -> None:
        if stopped:  # a launcher that is not ours goes on with the next job
            return
        try:
            execute_configs([plain(config)])
        except BaseException as error:  # past Hydra, which would print lines of its own
            stopped.append(error)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors reach `explained`
    version.setbase(VERSION_BASE)
    parser = get_args_parser()
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    with tempfile.TemporaryDirectory() as scratch:
        # Hydra notes a sweep's config in a folder of its own: not in our tree
        extra = [f"hydra.sweep.dir={scratch}"] if flags.get("multirun") else []
        args = parser.parse_args([])
        vars(args).update(flags, overrides=[*overrides, *extra])
        try:
            _run_hydra(args, parser, single, str(conf_dir()), "config")
            current.searched.extend(map(_kept, Path(scratch).glob("optimization_results.yaml")))
        except CONFIG_ERRORS as error:
            found = explained(error)
            group = str(found).partition(".")[0]
            if "unknown option" in str(found) and any(
                word.startswith(f"{group}=") and "," in word for word in overrides
            ):  # it was composed with the default
                raise ConfigError(
                    f"{found}; in a grid over {group}= an option is one that all of them and the "
                    "default have: give this one in a grid of its own"
                ) from None
            raise found from None  # Hydra's own says less, in a hundred lines
        except SystemExit as stop:
            return ConfigError.exit_code if stop.code else 0
        finally:
            root.setLevel(level)  # --info has Hydra show everything that anyone logs from then on
            root.handlers[:] = handlers
    if stopped:
        raise stopped[0]
    return 0


def _kept(results: Path) -> str:
    """Keeps what a sweeper that searches, such as Optuna's, has written; a line about it."""
    from dpfl_cli.data.files import write_output

    text, command = results.read_text(), os.environ[COMMAND]
    file = outputs_dir() / "searches" / f"{content_id([command, text])}.yaml"
    write_output(file, f"# {command}\n{text}".encode())
    found = yaml.safe_load(text)
    words = [f"{key}={value}" for key, value in found.get("best_params", {}).items()]
    best = f": {' '.join(words)} gives {found['best_value']:.5g}" if words else ""
    return f"Best of the search{best}; {file}"


def execute_configs(
    configs: Sequence[dict[str, Any]], backend: "Backend | None" = None
) -> list["Outcome"]:
    """Plans and executes composed configs, on the workers of a backend if there is one; none where
    that is only forecast.
    """
    if not configs:
        raise ConfigError(
            "-m: the grid is empty; give every key at least one value, as seed=range(3)"
        )
    from dpfl_cli.simulation.execute import execute
    from dpfl_cli.simulation.plan import make_plans
    from dpfl_cli.simulation.progress import Progress
    from dpfl_cli.simulation.store import RunStore
    from dpfl_cli.simulation.workers import execute_on_workers

    for config in configs:
        runtime = config.get("runtime")
        if isinstance(runtime, dict) and runtime.get("keep_model") is None:
            runtime["keep_model"] = len(configs) == 1
    plans = make_plans(configs)
    store = RunStore(outputs_dir())
    if current.dry_run:
        from dpfl_cli.simulation.forecast import forecast

        print(*forecast(plans, store), *_privacy(plans), sep="\n")
        return []
    distinct = {plan.id: plan.last_round for plan in plans}
    title = plans[0].label if len(distinct) == 1 else f"{len(distinct)} runs"
    with Progress(title, sum(distinct.values()), current.quiet) as progress:
        if backend is None:
            outcomes = execute(plans, store, progress)
        else:
            outcomes = execute_on_workers(configs, plans, store, progress, backend)
    current.executed.extend(outcomes)
    return outcomes


def _privacy(plans: "Sequence[Plan]") -> list[str]:
    """What a dry run says of the runs' privacy, once of those that only seeds tell apart."""
    from dpfl_cli.simulation.results import privacy_report

    ledgers = [plan.ledger() for plan in plans]
    distinct = {
        content_id([{**plan.config, "seed": 0}, ledger.to_json()]): (plan, ledger)
        for plan, ledger in zip(plans, ledgers, strict=True)
    }
    if len(distinct) > PRICED:
        aims = {plan.dp.epsilon: plan for plan in plans if plan.dp.trust != "none"}
        named = [f"epsilon {one:g}" for one in sorted(filter(None, aims))]
        aim = f", for {', '.join([*named, *['the noise that is set'] * (None in aims)])}"
        return [f"privacy: of {len(distinct)} kinds of runs{aim}; `dpfl calibrate` prices one"]
    lines = [
        f"privacy: {plan.algorithm.name}, dp={plan.dp.name}: {line}"
        for plan, ledger in distinct.values()
        for line in privacy_lines(plan, privacy_report(plan, ledger))
    ]
    return list(dict.fromkeys(lines))
