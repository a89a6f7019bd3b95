"""What Hydra does again for every config that it composes, done once: half of its time."""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy

from hydra._internal import defaults_list as lists
from hydra._internal.config_repository import ConfigRepository
from hydra.core.default_element import InputDefault
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig

kept: dict[tuple[str, ...], ConfigResult] = {}  # the config files that were read
_read, _choices = ConfigRepository.load_config, lists._create_interpolation_map


def _load_config(self: ConfigRepository, config_path: str) -> ConfigResult | None:
    """A config file, read and parsed once."""
    key = config_path, *(source.full_path() for source in self.sources)
    if key not in kept:
        found = _read(self, config_path)
        if found is None:
            return None
        kept[key] = found
    return deepcopy(kept[key])  # whoever composes it takes it apart


def _interpolation_map(
    overrides: lists.Overrides, defaults_list: list[InputDefault], self_added: bool
) -> DictConfig:
    """What defaults of a file that are named by others (`${...}`) are looked up in, where there are
    such.
    """
    if any(one.is_interpolation() for one in defaults_list):
        return _choices(overrides, defaults_list, self_added)
    return DictConfig({})


@contextmanager
def files_read_once() -> Iterator[None]:
    """While dpfl composes its configs; Hydra itself stays as it is for whoever else uses it."""
    ConfigRepository.load_config = _load_config  # type: ignore[method-assign]
    lists._create_interpolation_map = _interpolation_map
    try:
        yield
    finally:
        ConfigRepository.load_config = _read  # type: ignore[method-assign]
        lists._create_interpolation_map = _choices
