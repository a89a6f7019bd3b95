"""Data sets that come as a folder of many files: finding the folder, its checksum, and what was
decoded from it.

A folder is looked for by name below the folders of `DPFL_DATA` and then below the cache; it is
never fetched. No checksum of such a folder is published: the loader verifies the structure of the
files that it reads, and the sha256 of their content is part of a run's identity. Decoding thousands
of files takes minutes, so that its result is kept in the cache under that checksum.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.cache import NamedArrays, cached
from dpfl_cli.data.catalogue import FOLDERS
from dpfl_cli.data.loading import Kept
from dpfl_cli.data.sources import cache_dir, content_sha256, search_path, searched

logger = logging.getLogger("dpfl")


def find_folder(name: str) -> Path:
    """The first folder of this name, one of `FOLDERS`, below DPFL_DATA or the cache.

    Raises:
      DataError: there is none; says where it was looked for and what to put there.
    """
    for base in (*search_path(), cache_dir()):
        if (base / name).is_dir():
            return base / name
    entry = FOLDERS[name]
    raise DataError(
        f"{name}: no folder {name} in {searched()}; it is not fetched: put {entry.layout} there, "
        f"or use dataset={entry.standin}"
    )


class FolderDataset(Kept):
    """A data set in a folder of its name, which is read whole even for what is known of it. A run
    keeps what it read first, as files do not change under a run.
    """

    name: str

    @classmethod
    def content(cls, settings: Any) -> Path:
        """The folder."""
        return find_folder(cls.name)


def files_below(folder: Path, endings: tuple[str, ...]) -> dict[str, Path]:
    """The files below a folder whose names end so (in any case), by relative name and in its order;
    hidden ones are left out.
    """
    found = {
        path.relative_to(folder).as_posix(): path
        for path in folder.rglob("*")
        if path.name.lower().endswith(endings) and path.is_file()
    }
    return {name: found[name] for name in sorted(found) if "/." not in f"/{name}"}


def decoded(
    what: str, files: Mapping[str, Path], key: str, decode: Callable[[], NamedArrays]
) -> tuple[str, NamedArrays]:
    """sha256 of the content of all files, and the arrays decoded from them, which the cache keeps.

    Args:
      what: name of the data set.
      files: all files that the arrays come from.
      key: what else the arrays depend on: settings, and a number that changes with the code.
      decode: makes the arrays.
    """
    sha256 = content_sha256(files)
    address = hashlib.sha256(f"{sha256}\n{key}".encode()).hexdigest()[:32]
    path = cache_dir() / "decoded" / f"{what}-{address}.npz"

    def made() -> NamedArrays:
        logger.info("%s: decoding %d files", what, len(files))
        return decode()

    return sha256, cached(path, made)
