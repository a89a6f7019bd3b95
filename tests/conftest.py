"""Shared by all tests: one thread each, outputs in a folder of the test, no network."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra._internal.config_repository import ConfigRepository
from hydra.core.config_store import ConfigStore
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
settings.register_profile("same", derandomize=True, deadline=None, database=None)
settings.load_profile("same")  # the same examples every time, wherever they are run
NUMBERS = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """What is imported and collected stays: nobody looks for garbage among it, then or later, and
    seldom among what many tests keep (plans, data sets), which took 7 % of all time.
    """
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    gc.set_threshold(700, 10, 100)
    return collected


@pytest.fixture(scope="session", autouse=True)
def _large_files_are_unpacked_once() -> Iterator[None]:
    """MNIST and its like, which many tests use with settings of their own: half a second each."""
    from dpfl_cli.data import mnist

    read = mnist.read_uncompressed
    kept = functools.lru_cache(maxsize=4)(read)

    def unpacked(path: Path) -> bytes:
        large = path.is_file() and path.stat().st_size > 1 << 20  # tests make small ones
        return kept(path) if large else read(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mnist, "read_uncompressed", unpacked)
        yield


@pytest.fixture(scope="session", autouse=True)
def _configs_are_parsed_once() -> Iterator[None]:
    """Hydra parses the same files for every config, a third of what it takes to compose one: here
    once, as long as a file stays as it is.
    """
    read = ConfigRepository.load_config
    kept: dict[tuple[object, ...], bytes] = {}

    def load_config(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
        source = repository._find_object_source(config_path, ObjectType.CONFIG)
        if source is None or source.scheme() == "structured":  # which plugins add to
            return read(repository, config_path)
        key: tuple[object, ...] = (source.provider, source.full_path(), config_path)
        if source.scheme() == "file":
            state = Path(source.path, source._normalize_file_name(config_path)).stat()
            key += (state.st_mtime_ns, state.st_size)
        if key not in kept:
            kept[key] = pickle.dumps(read(repository, config_path))
        return pickle.loads(kept[key])  # whoever composes it takes it apart

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigRepository, "load_config", load_config)
        yield


@pytest.fixture(scope="session", autouse=True)
def _the_store_is_not_copied() -> Iterator[None]:
    """Hydra copies all of its one store for every composition, and what it reads there besides."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConfigStore, "__deepcopy__", lambda store, memo: store, raising=False)
        yield


@pytest.fixture(autouse=True)
def _own_outputs(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "tmp_path" in request.fixturenames:
        folder: Path = request.getfixturevalue("tmp_path")
    else:  # most tests write nothing: no folder is made for them
        folder = tmp_path_factory.getbasetemp() / "others" / str(next(NUMBERS))
    monkeypatch.setenv("DPFL_OUTPUTS", str(folder / "outputs"))
    monkeypatch.delenv("DPFL_PLUGINS", raising=False)


@pytest.fixture
def small() -> list[str]:
    """Overrides of a run that takes milliseconds."""
    return ["dataset.clients=12", "dataset.dimension=5", "rounds=6"]


@pytest.fixture
def own_components(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Components that a test registers are forgotten after it, as if it had had a process of its
    own.
    """
    from hydra.core.plugins import Plugins

    from dpfl_cli.config import component
    from dpfl_cli.config.compose import options_changed
    from dpfl_cli.config.errors import plugin_modules
    from dpfl_cli.simulation.plan import load_components

    load_components()
    Plugins.instance()  # what Hydra's own plugins offer they do once in a process
    for group, known in component._registry.items():
        monkeypatch.setitem(component._registry, group, dict(known))
    offered = ConfigStore.instance()
    copied = {name: {**one} if isinstance(one, dict) else one for name, one in offered.repo.items()}
    monkeypatch.setattr(offered, "repo", copied)
    monkeypatch.setenv("DPFL_PLUGINS", "")  # a run adds its own
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in plugin_modules:
            del sys.modules[name]
    options_changed()
