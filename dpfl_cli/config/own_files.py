"""A user's own files: configs, code that is imported, files whose content is part of a run's id.

Where they lie is not. Of code that is the file and what it imports, but for what is installed.
"""

import ast
import hashlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from importlib.machinery import PathFinder
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import yaml
from pydantic import Field

from dpfl_cli.config.component import Settings, registering_from, revise
from dpfl_cli.config.errors import ConfigError, nearest, place_in_plugin, plugin_modules
from dpfl_cli.config.paths import expanded

HASH_DIGITS = 12
MOST_VALUES = 10**4  # of a config file, with what its aliases repeat
_contents: dict[str, list[bytes]] = {}  # of modules that plugins import, as they were then
# module of a plugin -> files that it opened before any run, as it was imported or its defaults made
opened_by: dict[str, set[str]] = {}
# module of a plugin -> files beside it, none of those that it imports, that it read as it was
# imported, as they were then; their content joins that of the code
_read_by: dict[str, dict[Path, bytes]] = {}
_told: list[Callable[[str], object]] = []  # of files that Python opens
imports_of: dict[str, list[str]] = {}  # module of a plugin -> those that it imports
_SYSTEM = tuple(
    one.rstrip(os.sep) + os.sep for one in (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev")
)
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
    """Refuses config files of a user's with values at which Python itself breaks, such as a number
    of thousands of digits, or whose aliases stand for more values than a memory holds.

    Files that cannot be read or are no YAML are left to Hydra, which says so of those it is to use.

    Raises:
      ConfigError: names the first such file, and what is wrong with it.
    """
    for path in chain(*(sorted(folder.glob(depth)) for depth in ("*.yaml", "*/*.yaml"))):
        try:
            text = path.read_bytes()
            if values_of(yaml.compose(text, yaml.SafeLoader)) > MOST_VALUES:
                raise ValueError(f"more than {MOST_VALUES} values, with what aliases repeat")
            str(yaml.safe_load(text))  # a number may be as long in hexadecimal digits
        except ValueError as error:
            raise ConfigError(f"{path}: {str(error).partition(';')[0]}; write another") from error
        except (OSError, RecursionError, yaml.YAMLError):
            continue


@cache  # of a node that aliases repeat too
def values_of(node: yaml.Node | None) -> int:
    """How many values a node stands for."""
    inside = chain(*node.value) if isinstance(node, yaml.MappingNode) else ()
    inside = node.value if isinstance(node, yaml.SequenceNode) else inside
    return 1 + sum(map(values_of, inside))


def content_of(path: str, option: str = "") -> str:
    """The SHA-256 of a file; of FILE.py:NAME that of the file, with the name. `option` as in
    `read_own`.
    """
    code = _CODE.fullmatch(path)
    file = code["file"] if code else path
    content = read_own(file, option)
    if code is None:
        return hashlib.sha256(content).hexdigest()
    digest = _sha256(content, imported(content, expanded(file).parent))
    read = _read_by.get(_module_name(expanded(file), digest))  # of one that was imported
    return f"{joined(digest, read) if read else digest}:{code['name']}"


def read_own(path: str, option: str) -> bytes:
    """A file's bytes; `option`, as "model.path=", begins the message of a ConfigError."""
    try:
        return expanded(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{option}{path}: cannot be read ({error.strerror}); give it a file"
        ) from error


def _sha256(code: bytes, beside: dict[str, list[Path]]) -> str:
    """Of a file of code, and of those that it imports."""
    files = sorted({file for some in beside.values() for file in some})
    return hashlib.sha256(b"".join([code, *(file.read_bytes() for file in files)])).hexdigest()


def imported(code: bytes, folder: Path) -> dict[str, list[Path]]:
    """Modules and packages that code in a folder imports, and that these import, with their files;
    not those of Python, of dpfl and of installed packages. What lies beside the code counts, for it
    may change sys.path.
    """
    found: dict[str, list[Path]] = {}
    left = [code]
    while left:
        with suppress(SyntaxError, ValueError):  # importing it will say what is wrong
            for name in _names(ast.parse(left.pop())):
                if name not in found and (files := _files(name, folder)):
                    found[name] = files
                    left += [file.read_bytes() for file in files]
    return found


def _read_again(modules: dict[str, list[Path]]) -> None:
    """Lets modules be imported anew for a plugin where any of them has changed since it was
    imported for one.
    """
    now = {name: [file.read_bytes() for file in files] for name, files in modules.items()}
    if any(_contents.get(name, content) != content for name, content in now.items()):
        for known in [one for one in sys.modules if one.partition(".")[0] in now]:
            del sys.modules[known]
    _contents.update(now)
    plugin_modules.update(now)


def _names(tree: ast.Module) -> Iterator[str]:
    """Of what is imported, without its place in a package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(name: str, folder: Path) -> list[Path]:
    """The files of a module or package; none of one that is installed, or that there is not."""
    if name in sys.stdlib_module_names or name == "dpfl_cli":
        return []
    try:
        beside = PathFinder.find_spec(name, [str(folder)])
        spec = importlib.util.find_spec(name) or beside
    except (ImportError, ValueError):
        return []
    folders = [Path(one) for one in (spec and spec.submodule_search_locations) or ()]
    places = folders or [Path((spec and spec.origin) or "")]
    # asked before any is listed: thousands of files lie in some packages
    if any({"site-packages", "dist-packages"} & {*place.parts} for place in places):
        return []
    found = [file for one in folders for file in one.rglob("*.py")] if folders else places
    return sorted(file for file in found if file.suffix == ".py" and file.is_file())


@contextmanager
def told_of_files(tell: Callable[[str], object]) -> Iterator[None]:
    """Inside, `tell` is called with the real path of every file that Python is about to open.

    Libraries that open files by themselves (HDF5's, torch's archives) are not seen.
    """
    _watch()
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def noted_for(module: str) -> AbstractContextManager[None]:
    """Inside, the files that Python opens are noted as opened by this module of a plugin."""
    return told_of_files(opened_by.setdefault(module, set()).add)


def read_by(modules: Iterable[str]) -> list[Path]:
    """What modules of plugins opened before any run, but for what is the system's, or Python's."""
    found = {path for module in modules for path in opened_by.get(module, ())}
    return [Path(path) for path in sorted(found) if not path.startswith(_SYSTEM)]


@cache
def _watch() -> None:
    def note(event: str, details: tuple[Any, ...]) -> None:
        if _told and event == "open" and isinstance(details[0], str | bytes | os.PathLike):
            path = os.path.realpath(os.fsdecode(details[0]))
            for tell in tuple(_told):
                tell(path)

    sys.addaudithook(note)


def _module_name(file: Path, digest: str) -> str:
    return f"dpfl_plugin_{file.stem}_{digest[:HASH_DIGITS]}"


def import_own(path: str, option: str) -> ModuleType:
    """Imports a Python file, once for each content; components that it registers are its own.

    Raises:
      ConfigError: it cannot be read or imported.
    """
    content = read_own(path, option)
    beside = imported(content, expanded(path).parent)
    file = expanded(path)
    name = _module_name(file, _sha256(content, beside))
    revision = name.rpartition("_")[2]
    known = _read_by.get(name, {})
    if name in sys.modules and all(_as_it_was(*one) for one in known.items()):
        return sys.modules[name]
    found = {str(path) for path in known}  # maybe by another way than an import
    for late, one in [*sys.modules.items()] if found else ():
        if str(getattr(one, "__file__", None)) in found:
            del sys.modules[late]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None:
        raise ConfigError(f"{option}{path}: not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    _read_again(beside)
    imports_of[name] = [*beside]
    plugin_modules.add(name)
    opened, began = set[str](), time.time_ns()
    try:
        told = noted_for(name), told_of_files(opened.add)
        with registering_from(str(Path(path)), revision), told[0], told[1]:
            # never bytecode that Python kept, maybe of another file of the same size and second
            exec(compile(content, str(file), "exec"), vars(module))
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, ConfigError | KeyboardInterrupt):
            raise
        text = f"{type(error).__name__}: {error}{place_in_plugin(error)}"
        lacking = error.name if isinstance(error, ModuleNotFoundError) else None
        if lacking and any(file.parent.glob(f"{lacking}*")):
            text += f"; to import what lies beside it write PYTHONPATH={file.parent} before dpfl"
        raise ConfigError(f"{option}{path}: {text}") from error
    own = {file, *chain(*beside.values())}
    read = _read_by[name] = _read_beside(opened, file.parent, own, began)
    if read:
        revise(revision, joined(revision, read)[:HASH_DIGITS])
    return module


def revision_of(module: ModuleType) -> str:
    """The content hash of what a file that was imported has registered."""
    name = module.__name__
    own, read = name.rpartition("_")[2], _read_by.get(name)
    return joined(own, read)[:HASH_DIGITS] if read else own


def joined(digest: str, read: Mapping[Path, bytes]) -> str:
    """The hash of code, and of files that it read."""
    return hashlib.sha256(b"".join([digest.encode(), *read.values()])).hexdigest()


def _read_beside(
    opened: Iterable[str], folder: Path, own: Iterable[Path], began: int
) -> dict[Path, bytes]:
    """Those of the files that were opened that lie in a folder, and what is in them; none that were
    written since then [ns], are hidden, or belong to what is installed.
    """
    home, found = folder.resolve(), dict[Path, bytes]()
    known = {path.resolve() for path in own}
    for name in sorted(opened):
        try:
            path = Path(importlib.util.source_from_cache(name))
        except ValueError:  # it is nothing that Python keeps of a source, unless not yet
            path = Path(name)
        if path in known or not path.is_relative_to(home) or not path.is_file():
            continue
        within = path.relative_to(home).parts
        installed = {"site-packages", "dist-packages", "__pycache__"} & {*within}
        hidden = any(part.startswith(".") for part in within)
        if not installed and not hidden and path.stat().st_mtime_ns < began:
            found[path] = path.read_bytes()
    return found


def _as_it_was(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def own_object(given: str | None, option: str, example: str) -> Any:
    """What FILE.py:NAME names; a ConfigError of the option says what is wrong with it."""
    code = _CODE.fullmatch(given or "")
    if code is None:
        what = f"{option}: missing;" if given is None else f"{option}={given}:"
        raise ConfigError(f"{what} write FILE.py:NAME, as {option}={example}")
    module = import_own(code["file"], f"{option}=")
    if not hasattr(module, code["name"]):
        known = [name for name in vars(module) if not name.startswith("_")]
        hint = nearest(code["name"], known)
        raise ConfigError(f"{option}={given}: no {code['name']} there; {hint}")
    return getattr(module, code["name"])


def is_code(given: str) -> bool:
    """Whether a path has the form FILE.py:NAME."""
    return _CODE.fullmatch(given) is not None
