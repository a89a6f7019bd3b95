"""A user's own files: configs, code that is imported, files whose content is part of a run's id.

Where they lie is not. Of code that is the one file: what it imports is not looked at.
"""

import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import yaml
from pydantic import Field

from dpfl_cli.config.component import Settings, registering_from
from dpfl_cli.config.errors import ConfigError, nearest, place_in_plugin, plugin_modules
from dpfl_cli.config.paths import expanded

HASH_DIGITS = 12
# Of a config file: values with what its aliases repeat, their depth, digits of a number.
MOST_VALUES, DEEPEST, MOST_DIGITS = 10**4, 50, 300
_CODE = re.compile(r"(?P<file>.+\.py):(?P<name>\w+)")


OwnPath = Annotated[str | None, Field(exclude=True)]  # its content is part of the identity


class OwnFile(Settings):
    """Settings with a file of the user's, whose content is hashed in place of its path."""

    path: OwnPath = None

    def identity(self) -> dict[str, Any]:
        """As of all settings, and `content`: the file's SHA-256, with the name of an object in
        it.
        """
        return {**super().identity(), "content": content_of(str(self.path))}


def check_configs_below(folder: Path) -> None:
    """Refuses config files of a user's that are YAML and no config: a few lines of aliases can
    stand for a billion values.

    Files that cannot be read or are no YAML are left to Hydra, which says so of those it is to use.

    Raises:
      ConfigError: names the first such file, and what is wrong with it.
    """
    for path in chain(*(sorted(folder.glob(depth)) for depth in ("*.yaml", "*/*.yaml"))):
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        try:
            wrong = _no_config(yaml.parse(path.read_bytes(), Loader=loader))
        except (OSError, yaml.YAMLError):
            continue
        if wrong:
            raise ConfigError(f"{path}: {wrong}; write its values out")


def _no_config(events: Iterable[yaml.Event]) -> str | None:
    """What is wrong with a YAML file, if anything."""
    sizes: dict[str | None, int] = {}  # anchor -> number of values of what it names
    unfinished: list[tuple[str | None, int]] = [(None, 0)]
    for event in events:
        anchor, size = getattr(event, "anchor", None), 1
        if isinstance(event, yaml.CollectionStartEvent):
            unfinished.append((anchor, 0))
            if len(unfinished) > DEEPEST:
                return f"deeper than {DEEPEST} levels"
            continue
        if isinstance(event, yaml.AliasEvent):
            if anchor not in sizes:
                return f"*{anchor} holds itself, or names nothing before it"
            size = sizes[anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = unfinished.pop()
        elif not isinstance(event, yaml.ScalarEvent):
            continue
        elif re.match("[-+.0-9]", event.value) and len(event.value) > MOST_DIGITS:
            return f"a number of {len(event.value)} digits"
        sizes[anchor] = size
        around, values = unfinished[-1]
        unfinished[-1] = (around, values + size)
        if values + size > MOST_VALUES:
            return f"more than {MOST_VALUES} values, with what aliases repeat"
    return None


def content_of(path: str) -> str:
    """The SHA-256 of a file; of FILE.py:NAME that of the file, with the name."""
    code = _CODE.fullmatch(path)
    sha256 = hashlib.sha256(read_own(code["file"] if code else path, "")).hexdigest()
    return f"{sha256}:{code['name']}" if code else sha256


def read_own(path: str, option: str) -> bytes:
    """A file's bytes; `option`, as "model.path=", begins the message of a ConfigError."""
    try:
        return expanded(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{option}{path}: cannot be read ({error.strerror}); give it a file"
        ) from error


def import_own(path: str, option: str) -> ModuleType:
    """Imports a Python file, once for each content; components that it registers are its own.

    Raises:
      ConfigError: it cannot be read or imported.
    """
    content = read_own(path, option)
    revision = hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
    file = expanded(path)
    name = f"dpfl_plugin_{file.stem}_{revision}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise ConfigError(f"{option}{path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    plugin_modules.add(name)
    try:
        with registering_from(str(Path(path)), revision):
            # never bytecode that Python kept, maybe of another file of the same size and second
            exec(compile(content, str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ConfigError | KeyboardInterrupt):
            raise
        text = f"{type(error).__name__}: {error}{place_in_plugin(error)}"
        raise ConfigError(f"{option}{path}: {text}") from error
    return module


def own_object(given: str | None, option: str, example: str) -> Any:
    """What FILE.py:NAME names; a ConfigError of the option says what is wrong with it."""
    if given is None:
        raise ConfigError(f"{option}: missing; write FILE.py:NAME, as {option}={example}")
    code = _CODE.fullmatch(given)
    if code is None:
        raise ConfigError(f"{option}={given}: write FILE.py:NAME, as {option}={example}")
    module = import_own(code["file"], f"{option}=")
    if not hasattr(module, code["name"]):
        own = [name for name, one in vars(module).items() if not _imported(module, name, one)]
        hint = nearest(code["name"], own) if own else "the file defines nothing that has a name"
        raise ConfigError(f"{option}={given}: no {code['name']} there; {hint}")
    return getattr(module, code["name"])


def _imported(module: ModuleType, name: str, one: Any) -> bool:
    """Whether a value of a module is from elsewhere, or Python's own."""
    elsewhere = hasattr(one, "__name__") and getattr(one, "__module__", "") != module.__name__
    return name.startswith("_") or isinstance(one, ModuleType) or elsewhere


def is_code(given: str) -> bool:
    """Whether a path has the form FILE.py:NAME."""
    return _CODE.fullmatch(given) is not None
