"""A user's own components: from installed packages (entry points `dpfl.plugins`) and from files
(`--plugin FILE`).

Importing them registers their components; each becomes an option of its group, with the defaults of
its settings. Their revision carries the hash of their source: the file, or the entry point's module
(all modules of it where it is a package).
"""

import argparse
import hashlib
import importlib.util
import os
import shlex
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from dpfl_cli.config.component import GROUPS, components, registering_from
from dpfl_cli.config.errors import ConfigError, place_in_plugin, plugin_modules
from dpfl_cli.config.own_files import HASH_DIGITS, import_own, noted_for, revision_of

ENVIRONMENT = "DPFL_PLUGINS"  # files, separated as in PATH; how worker processes get them


def add_plugin_option(parser: argparse.ArgumentParser) -> None:
    """--plugin FILE, repeatable."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="a Python file with your own components",
    )


def listed_plugins() -> list[str]:
    """The files whose components this process and its workers have."""
    return [name for name in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if name]


def pass_on(files: Sequence[str]) -> None:
    """Lists files beside those that are, for workers and for commands that pages show."""
    paths = (str(Path(name).resolve()) for name in files)
    os.environ[ENVIRONMENT] = os.pathsep.join(dict.fromkeys([*listed_plugins(), *paths]))


def plugin_words() -> str:
    """What is listed, as words of a command line."""
    return "".join(f" --plugin {shlex.quote(name)}" for name in listed_plugins())


def load_plugins(files: Sequence[str], may_be_empty: bool = False) -> None:
    """Imports plugins and makes their components options of Hydra's groups.

    Raises:
      ConfigError: a file is absent, cannot be imported, or (unless it `may_be_empty`) registers no
        component.
    """
    chosen = list(dict.fromkeys([*listed_plugins(), *files]))
    entries = entry_points(group="dpfl.plugins")
    if not chosen and not entries:
        return
    from dpfl_cli.simulation.plan import load_components

    load_components()  # first: what a plugin imports from dpfl is dpfl's, not the plugin's
    for name in chosen:
        module = import_own(name, "--plugin ")
        revision = "+" + revision_of(module)
        known = (str(one.revision) for group in GROUPS for one in components(group).values())
        if not (may_be_empty or any(one.endswith(revision) for one in known)):
            raise ConfigError(
                f"--plugin {name}: registers nothing; put @component over a class, as what `dpfl "
                f"new` writes does (a network needs none: model=torch model.path={name}:NAME)"
            )
    for entry in entries:
        _load_entry(entry)
    _offer()


def _load_entry(entry: EntryPoint) -> None:
    plugin_modules.add(entry.module.partition(".")[0])
    try:
        package = entry.module.partition(".")[0]
        with registering_from(entry.name, _hash_of(entry.module)), noted_for(package):
            entry.load()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"plugin {entry.name} ({entry.value}): {error}{place_in_plugin(error)}; reinstall or "
            "remove its package"
        ) from error


def _hash_of(module: str) -> str:
    """The hash of the source of a module, or of the whole package that it is in, whose other files
    it may import; found without importing it, for importing registers.
    """
    name = module.partition(".")[0]
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"no module {name}")
    folders = spec.submodule_search_locations or ()
    files = sorted(path for folder in folders for path in Path(folder).rglob("*.py"))
    if not files and spec.origin is not None:
        files = [Path(spec.origin)]
    return hashlib.sha256(
        b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)
    ).hexdigest()[:HASH_DIGITS]


def _offer() -> None:
    """Registers plugin components that have no config file with Hydra, with their settings'
    defaults.
    """
    from hydra.core.config_store import ConfigStore

    from dpfl_cli.config.compose import options_changed

    options_changed()
    for group in GROUPS:
        for name, found in components(group).items():
            if found.origin == "dpfl":
                continue
            with noted_for(found.target.__module__):  # a default may be made by a function
                values = {"name": name} | {
                    key: "???" if of.is_required() else of.get_default(call_default_factory=True)
                    for key, of in found.settings.model_fields.items()
                }
            ConfigStore.instance().store(group=group, name=name, node=values, provider=found.origin)
