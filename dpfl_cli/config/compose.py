"""Composing configs with Hydra, and turning what Hydra says about a bad one into one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from itertools import compress
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dpfl_cli.config.errors import ConfigError, DpflError, nearest
from dpfl_cli.config.paths import conf_dir

VERSION_BASE = "1.3"
CONFIG_ERRORS = (HydraException, OmegaConfBaseException)


def register_resolvers() -> None:
    """`default_noise`: a default noise level, or null where a target epsilon will determine it.

    `under`: (trust model of the run, another one, default where it is that one, default elsewhere).
    `unless`: (another option, default): the default, or null where the other option is given, from which this one follows.
    """
    if not OmegaConf.has_resolver("default_noise"):
        OmegaConf.register_new_resolver("default_noise", lambda target, noise: None if target is not None else noise)
    if not OmegaConf.has_resolver("unless"):
        OmegaConf.register_new_resolver("unless", lambda other, default: None if other is not None else default)
    if not OmegaConf.has_resolver("under"):
        OmegaConf.register_new_resolver("under", lambda trust, which, there, elsewhere: there if trust == which else elsewhere)


def compose_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of `dpfl run OVERRIDES`, as plain values.

    Raises:
      ConfigError: an override does not fit, in one line with the nearest right name.
    """
    register_resolvers()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
            return plain(compose("config", list(overrides)))
    except CONFIG_ERRORS as error:
        raise explained(error, overrides) from error


def compose_jobs(loader: ConfigLoader, sweep: DictConfig, jobs: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The resolved configs of a sweep's jobs, as plain values: what `loader.load_sweep_config` makes of each.

    It takes Hydra a tenth of a second to merge the options that a job chooses. Jobs with the same choices share that; the other
    values are set afterwards, which is when Hydra sets them too.

    Args:
      sweep: the config of the command.
      jobs: the overrides of every job.

    Raises:
      HydraException, OmegaConfBaseException, ConfigError: of the first job that cannot be composed, as Hydra says it.
    """
    parser = OverridesParser.create(config_loader=loader)
    parse = cache(lambda word: parser.parse_overrides([word])[0])
    is_group = cache(lambda key: bool(loader.get_group_options(key)))
    merged = cache(lambda *words: _own(loader.load_sweep_config(sweep, list(words))))

    def composed(words: Sequence[str]) -> DictConfig:
        overrides = [parse(word) for word in words]
        if not all(_is_plain(override) for override in overrides):
            return _own(loader.load_sweep_config(sweep, list(words)))
        chosen = [is_group(override.key_or_group) for override in overrides]
        config = deepcopy(merged(*compress(words, chosen)))
        for override in (override for override, group in zip(overrides, chosen, strict=True) if not group):
            OmegaConf.update(config, override.key_or_group, override.value(), merge=True)
        return config

    configs = []
    for words in jobs:
        try:
            config = composed(words)
        except OmegaConfBaseException:
            config = _own(loader.load_sweep_config(sweep, list(words)))  # Hydra has words for what is wrong
        configs.append(_resolved(config))
    return configs


def _is_plain(override: Override) -> bool:
    """Whether it chooses an option or sets a value, in whatever order it comes: adds and deletes nothing, and merges nothing."""
    change = override.type == OverrideType.CHANGE and override.package is None
    return change and not override.is_hydra_override() and not isinstance(override.value(), dict)


def plain(config: DictConfig) -> dict[str, Any]:
    """A composed config as resolved plain values, without Hydra's own node."""
    return _resolved(_own(config))


def _own(config: DictConfig) -> DictConfig:
    own = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    OmegaConf.set_struct(own, True)  # as Hydra has it: what is not there cannot be set
    return own


def _resolved(config: DictConfig) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise explained(error, ()) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def explained(error: Exception, overrides: Sequence[str]) -> DpflError:
    """A Hydra or OmegaConf error as one line with the nearest right name."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        if error.options:
            return ConfigError(f"{group}={option}: {nearest(option, error.options)}")
        return ConfigError(f"{error.missing_cfg_file}: no such config; `dpfl list` shows what there is")
    message = str(error)
    if isinstance(error, OverrideParseException):
        return ConfigError(f"{error.override}: not an override; write key=value (quote what the shell would change)")
    group_match = re.search(r"(?:In '.*?': )?Could not (?:override|find match for|delete)\w*[^']*'([^']+)'", message)
    if isinstance(error, ConfigCompositionException) and group_match:
        return ConfigError(_unknown_key(group_match.group(1).split("@")[0].split("=")[0], overrides))
    if "--multirun" in message:  # "range(3) requires --multirun", or "Ambiguous value for argument 'seed=1,2'", which it is for
        word = re.search(r"argument '([^']*)'", message)
        found = word.group(1) if word else message.strip().splitlines()[0].split(" requires")[0]
        return ConfigError(f"{found}: several values make a grid; add -m")
    first = message.strip().splitlines()[0] if message.strip() else type(error).__name__
    return ConfigError(f"{first}; `dpfl run --cfg job` shows the config")


def _unknown_key(key: str, overrides: Sequence[str]) -> str:
    """The line for an override of a key that does not exist."""
    plain_words = [word.split(",")[0] for word in overrides if "=" in word and "(" not in word]  # of a grid, the first point
    choices = [word for word in plain_words if "." not in word.split("=")[0] and not word.startswith(("+", "~"))]
    known: Any = {}
    for attempt in (choices, []):
        try:
            GlobalHydra.instance().clear()
            with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
                known = OmegaConf.to_container(compose("config", attempt, return_hydra_config=True), resolve=False)
                break
        except CONFIG_ERRORS:
            continue
    where: list[str] = []
    for part in key.split("."):
        if not isinstance(known, dict):
            return f"{key}: {'.'.join(where)} is a value, not a group of options"
        if part not in known:
            here = ".".join([*where, part])
            return f"{here}: unknown option; {nearest(part, [str(k) for k in known if k not in ('hydra', 'hints')])}"
        known = known[part]
        where.append(part)
    return f"{key}: cannot be overridden so; write {key}=value"
