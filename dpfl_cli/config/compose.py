"""Composing configs with Hydra, and turning what Hydra says about a bad one into one line."""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cache, lru_cache
from itertools import islice
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, OverrideType, RangeSweep
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError

from dpfl_cli.config.component import GROUPS
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import conf_dir

VERSION_BASE = "1.3"
CONFIG_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, RecursionError, UnicodeError)
MOST_RUNS = 10**5  # of a grid
MOST_KEPT = 512  # configs and words that are kept for the next ones like them
PARTS = ("evaluation", "runtime", "launcher")  # of a config, beside its groups
# of Hydra's own folders, which are off: there is one tree of outputs
HYDRA_FOLDERS = re.compile(r"hydra(\.job(\.chdir)?|\.(run|sweep|output_subdir)(\..+)?)?")
OF_HYDRA = {  # what it says -> what a user can do
    r"To append to your default list use \+(\S+)": "{0}: no option is chosen there yet; write +{0}",
    r"An item is already at '([^']+)'": "+{0}: it is there already; write {0}=VALUE without +",
    r"Multiple values for ([^\s.]+)\. ": "{0}: chosen twice; write {0}=NAME once, without +",
    r"(\S+) appears more than once": "{0}: chosen twice; write it once, without + if dpfl has one",
    r"delete from config\. '([^']+)' does not exist": "~{0}: there is no such option to drop",
    r"The value of '([^']+)' is .+ and not": "~{0}: it has another value; set it by {0}=VALUE",
    r"delete '([^']+)'\. No match": "~{0}: there is no such choice to drop",
    r"(?s)(?:argument|parameters) '([^']*)'.*--multirun": (
        "{0}: several values make a grid; add -m to dpfl run, elsewhere give one"
    ),
    r"Missing mandatory value: \S+\s+full_key: (\S+)": "{0}: it has no default; write {0}=VALUE, "
    "or give it one in the class of its settings",
}

RESOLVERS: dict[str, Callable[..., Any]] = {
    # a default noise level, or null where a target epsilon will determine it
    "default_noise": lambda target, noise: noise if target is None else None,
    # the default, or null where the other option is given, from which this one follows
    "unless": lambda other, default: default if other is None else None,
    # a default where the run's trust model is `which`, another one elsewhere
    "under": lambda trust, which, there, elsewhere: there if trust == which else elsewhere,
}


def register_resolvers() -> None:
    """Makes RESOLVERS known to OmegaConf."""
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(name, resolver, replace=True)


def check_overrides(words: Sequence[str]) -> None:
    """Refuses overrides that Hydra takes in silence, or at which it breaks.

    Raises:
      ConfigError: an empty value or sweep step, no option of a group, a group's name changed
        without its options, a value listed twice, too large a grid, a folder of Hydra's.
    """
    runs = 1
    for word in words:
        if word.startswith("-"):  # from Python; the command line knows its flags
            raise ConfigError(f"{word}: not an override; write key=value")
        try:
            override = _parsed(word)
            key, value = override.key_or_group, override.value()
            values = [value]
            if isinstance(value, ChoiceSweep | RangeSweep):
                values = list(islice(override.sweep_string_iterator(), MOST_RUNS + 1))
        except OverrideParseException:
            continue  # refused where it is composed
        except (ValueError, RecursionError) as error:
            reason = str(error).partition(";")[0].splitlines()
            raise ConfigError(f"{word}: {reason[0] if reason else 'too deep'}") from error
        if not key or (key == "experiment" and value is None):
            raise ConfigError(f"{word}: not an override; write key=value")
        group, _, option = key.partition(".")
        if HYDRA_FOLDERS.fullmatch(key):
            raise ConfigError(f"{word}: results go to one tree; set DPFL_OUTPUTS to its folder")
        if option == "name" and group in GROUPS:
            raise ConfigError(f"{word}: choose an option with its settings, as {group}=NAME")
        if "" in values:
            raise ConfigError(f"{word}: empty; give it a value, or null")
        is_option = all(
            isinstance(one, str) and re.fullmatch(r"(?!null$)[\w-]+", one) for one in values
        )
        if override.is_delete() and key in (*GROUPS, *PARTS):
            other = f"choose another, as {key}=NAME" if key in GROUPS else "set what is in it"
            raise ConfigError(f"{word}: every run has one; {other}")
        if key in (*GROUPS, "scale") and not is_option:
            raise ConfigError(f"{word}: not an option; `dpfl list {key}` shows them")
        if len(values) > len(set(map(_number, values))):
            raise ConfigError(f"{word}: a value is listed twice")
        runs *= len(values)
        if runs > MOST_RUNS:
            raise ConfigError(f"{word}: makes a grid of more than {MOST_RUNS} runs; split it")


def _number(value: Any) -> float | str:
    """A value of a sweep: 1 and 1.0 are the same, true and 1 are not."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return str(value)


def compose_config(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of `dpfl run OVERRIDES`, as plain values.

    Raises:
      ConfigError: an override does not fit, in one line with the nearest right name.
    """
    check_overrides(overrides)
    try:
        return _resolved(_with_values(overrides, _merged))
    except CONFIG_ERRORS as error:
        raise explained(error) from error


@lru_cache(maxsize=MOST_KEPT)
def _merged(*words: str) -> DictConfig:
    """The config of `dpfl run WORDS` as Hydra composes it."""
    register_resolvers()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf_dir()), version_base=VERSION_BASE, job_name="dpfl"):
        return _own(compose("config", list(words)))


@lru_cache(maxsize=MOST_KEPT)
def composed(*words: str) -> dict[str, Any]:
    """The config of some overrides, kept, and not to be changed."""
    return compose_config(words)


def options_changed() -> None:
    """Options of groups are no longer what they were: configs are composed of them anew."""
    _merged.cache_clear()
    composed.cache_clear()


def compose_jobs(
    loader: ConfigLoader, sweep: DictConfig, jobs: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    """The resolved configs of a sweep's jobs, as plain values: what `loader.load_sweep_config`
    makes of each.

    Args:
      sweep: the config of the command.
      jobs: the overrides of every job.

    Raises:
      HydraException, OmegaConfBaseException, ConfigError: of the first job that cannot be composed,
        as Hydra says it.
    """

    @lru_cache(maxsize=MOST_KEPT)
    def merged(*words: str) -> DictConfig:
        return _own(loader.load_sweep_config(sweep, list(words)))

    return [_resolved(_with_values(words, merged)) for words in jobs]


def _with_values(words: Sequence[str], merged: Callable[..., DictConfig]) -> DictConfig:
    """What Hydra makes of some overrides.

    It takes Hydra a tenth of a second to merge the options that they choose. Those with the same
    choices share that; the other values are set afterwards, which is when Hydra sets them too.

    Args:
      merged: Hydra's own config of overrides, kept for the next ones with the same choices.
    """
    values = [_parsed(word) for word in words if not _chooses(word)]
    if not all(map(_is_plain, values)):
        return merged(*words)
    config = deepcopy(merged(*filter(_chooses, words)))
    for override in values:
        OmegaConf.update(config, override.key_or_group, override.value())
    return config


@lru_cache(maxsize=MOST_KEPT)
def _parsed(word: str) -> Override:
    return OverridesParser.create().parse_overrides([word])[0]


def _chooses(word: str) -> bool:
    """Whether it chooses an option of a group, or a preset."""
    return _is_group(_parsed(word).key_or_group)


@cache
def _is_group(key: str) -> bool:
    return (conf_dir() / key).is_dir()


def _is_plain(override: Override) -> bool:
    """Whether it sets one value, in whatever order it comes: adds and deletes nothing, and merges
    nothing.
    """
    return (
        override.type == OverrideType.CHANGE
        and override.package is None
        and not override.is_sweep_override()
        and not override.is_hydra_override()
        and not isinstance(override.value(), dict)
    )


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
        raise explained(error) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def explained(error: Exception) -> ConfigError:
    """A Hydra or OmegaConf error as one line with the nearest right name."""
    return ConfigError(_said(error))


def _said(error: Exception) -> str:
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        if error.options:
            hint = nearest(option, error.options)
            if group in GROUPS:
                hint += " (one of your own needs --plugin FILE, in Python plugins=[FILE])"
            if (group, option) == ("hydra/sweeper", "optuna"):
                hint = "Optuna's sweeper is not installed; pip install '.[optuna]' in dpfl's folder"
            return f"{group}={option}: {hint}"
        shows = "dpfl run --help" if group.startswith("experiment") else "dpfl list"
        return f"{error.missing_cfg_file}: no such config; `{shows}` shows what there is"
    if isinstance(error, OverrideParseException):
        words = str(error.override)
        if words.endswith(".py"):
            return f"{words}: not an override; write --plugin {words} for what it has"
        if re.fullmatch("[0-9a-f]{12}", words):
            return f"{words}: a run, not an override; `dpfl runs show {words}` has its command"
        key, equals, value = words.partition("=")
        if value.startswith(("range(", "interval(", "choice(", "glob(")):
            return f"{words}: no sweep of Hydra's; write {key}=range(3) or {key}=1,2, say"
        if key and equals and "'" not in value:
            return f"{words}: its value needs quotes (for its signs); write \"{key}='{value}'\""
        return f"{words}: not an override; write key=value (quote what the shell would change)"
    if isinstance(error, RecursionError):
        return "a config file holds itself (an anchor in its own value) or is too deep"
    if isinstance(error, UnicodeError):
        return f"a config file is no text in UTF-8 ({error})"
    missing = error.__cause__ if isinstance(error, ConfigCompositionException) else error
    if isinstance(missing, ConfigKeyError | ConfigAttributeError):
        names = [str(name) for name in missing.parent_node if name not in ("hydra", "hints")]
        group = str(missing.full_key).rpartition(".")[0]
        hint = nearest(str(missing.key), names, group) if names else "nothing is below a value"
        if missing.full_key == missing.key != "name":  # an option that was given without its group
            nodes = ((name, missing.parent_node._get_node(name)) for name in names)
            below = [
                f"{name}.{missing.key}"
                for name, one in nodes
                if isinstance(one, DictConfig) and missing.key in one
            ]
            hint = f"did you mean {' or '.join(below)}?" if below else hint
        return f"{missing.full_key}: unknown option; {hint}"
    message = " ".join(str(error).split()) if isinstance(error, YAMLError) else str(error).strip()
    first = (message.splitlines() or [type(error).__name__])[0]
    for pattern, meaning in OF_HYDRA.items():
        if said := re.search(pattern, message):
            return meaning.format(said[1])
    if "does not support sweep type" in message:
        return "-m: interval() is for a search; add hydra/sweeper=optuna, or list values, as 1,2,3"
    return f"{first}; `dpfl run --cfg job` shows the config"
