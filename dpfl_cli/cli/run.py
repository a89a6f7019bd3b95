"""`dpfl run`: one run, or a grid with -m. Hydra composes; the launcher batches.

Flags of ours are taken out first (--plugin FILE, --quiet, --debug); everything else is Hydra's: overrides, -m, --help, --cfg job.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfl_cli.cli.plugins import ENVIRONMENT, load_plugins, split_plugins
from dpfl_cli.cli.start import importing
from dpfl_cli.config.compose import CONFIG_ERRORS, VERSION_BASE, compose_config, explained, plain, register_resolvers
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import conf_dir

if TYPE_CHECKING:
    from dpfl_cli.simulation.workers import Backend, Report, Share

QUIET = "DPFL_QUIET"
SWITCHES = (
    "--help",
    "-h",
    "--hydra-help",
    "--version",
    "--resolve",
    "--run",
    "-r",
    "--multirun",
    "-m",
    "--shell-completion",
    "-sc",
)
SHOWN = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
FLAGS_WITH_VALUE: dict[str, tuple[str, ...]] = {  # Hydra's own, with the values that it knows (none: any)
    **dict.fromkeys(("--cfg", "-c"), ("job", "hydra", "all")),
    **dict.fromkeys(("--info", "-i"), SHOWN),
    **dict.fromkeys(("--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"), ()),
    "--experimental-rerun": (),
}
exit_codes: list[int] = []  # of what Hydra ran in this call; neither its launchers nor its main function hand one on
OWN_FLAGS = ("--plugin", "--quiet", "--debug")  # the last is taken out by the entry point


def run(words: Sequence[str]) -> int:
    """Runs the command line and returns the exit code."""
    import hydra

    exit_codes.clear()
    files, rest = split_plugins(words)
    if "--quiet" in rest:
        os.environ[QUIET] = "1"
        rest = [word for word in rest if word != "--quiet"]
    words = flags_first(rest)
    load_plugins(files)
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys([*_plugin_files(), *(str(Path(name).resolve()) for name in files)]))
    if not any(word.startswith("-") or "hydra" in word.split("=")[0] or "${hydra:" in word for word in words):
        # one run that asks nothing of Hydra, whose main function would compose it twice
        return execute_configs([compose_config(words)])
    register_resolvers()
    stopped: list[BaseException] = []

    @hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name="config")
    def single(config: Any) -> None:
        if stopped:  # a launcher that is not ours goes on with the next job
            return
        try:
            exit_codes.append(execute_configs([plain(config)]))
        except BaseException as error:  # past Hydra, which would print lines of its own
            stopped.append(error)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # so that errors reach `explained`
    overrides = [word for word in rest if not word.startswith("-")]
    with tempfile.TemporaryDirectory() as scratch:  # Hydra notes a sweep's config in a folder of its own: not in our tree
        multirun = any(word in ("-m", "--multirun") for word in rest)
        extra = [f"hydra.sweep.dir={scratch}"] if multirun else []
        saved = sys.argv
        sys.argv = ["dpfl run", *words, *extra]
        try:
            single()
        except CONFIG_ERRORS as error:
            raise explained(error, overrides) from error
        except SystemExit as stop:
            return int(stop.code or 0)
        finally:
            sys.argv = saved
    if stopped:
        raise stopped[0]
    return max(exit_codes, default=0)


def flags_first(words: Sequence[str]) -> list[str]:
    """The words with flags before overrides: Hydra's parser does not take them mixed, and says much about a wrong one.

    >>> flags_first(["a=1", "-m", "b=2", "--cfg", "job"])
    ['-m', '--cfg', 'job', 'a=1', 'b=2']

    Raises:
      ConfigError: a flag that does not exist, or has no value or a wrong one.
    """
    flags: list[str] = []
    overrides: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flag, equals, value = word.partition("=")
        if flag in SWITCHES and not equals:
            flags.append(flag)
        elif flag in FLAGS_WITH_VALUE:
            known = FLAGS_WITH_VALUE[flag]
            if not equals and known == SHOWN and (not queue or queue[0] not in SHOWN):
                value = "all"  # it may stand alone
            elif not equals:
                if not queue:
                    raise ConfigError(f"{flag}: give it a value{', ' + ' | '.join(known) if known else ''}")
                value = queue.pop(0)
            if known and value not in known:
                raise ConfigError(f"{flag} {value}: {nearest(value, known)}")
            flags += [flag, value]
        else:
            everything = (*SWITCHES, *FLAGS_WITH_VALUE, *OWN_FLAGS)
            raise ConfigError(f"{word}: no such flag; {nearest(flag, [one for one in everything if one.startswith('--')])}")
    return [*flags, *overrides]


def execute_configs(configs: Sequence[dict[str, Any]], backend: Backend | None = None) -> int:
    """Plans, executes and reports composed configs, on the workers of a backend if there is one; the exit code."""
    if not configs:
        raise ConfigError("-m: the grid is empty; give every key at least one value, as seed=range(3)")
    with importing():
        from dpfl_cli.config.paths import outputs_dir
        from dpfl_cli.simulation.execute import execute
        from dpfl_cli.simulation.plan import load_components, make_plans
        from dpfl_cli.simulation.progress import Progress
        from dpfl_cli.simulation.store import RunStore
        from dpfl_cli.simulation.workers import execute_on_workers

        load_components()
    quiet = bool(os.environ.get(QUIET))
    plans = make_plans(configs)
    store = RunStore(outputs_dir())
    distinct = {plan.id: plan.rounds for plan in plans}
    title = plans[0].label if len(distinct) == 1 else f"{len(distinct)} runs"
    with Progress(title, sum(distinct.values()), quiet=quiet) as progress:
        if backend is None:
            outcomes = execute(plans, store, progress)
        else:
            outcomes = execute_on_workers(configs, plans, store, progress, backend, run_share, _plugin_files())
    from dpfl_cli.cli.report import report_outcomes  # the first round does not wait for what tables need

    return report_outcomes(outcomes, quiet)


def run_share(share: Share) -> Report:
    """What a worker process does: takes its cores, loads the plugins that its parent had, executes its runs."""
    from dpfl_cli.simulation.workers import prepare_process, work

    prepare_process(share)
    load_plugins(share.plugins)
    return work(share)


def _plugin_files() -> list[str]:
    """The files whose components this process and its workers have."""
    return [name for name in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if name]
