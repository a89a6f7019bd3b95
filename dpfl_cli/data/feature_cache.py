"""Features on disk: blocks of records below the cache folder, each with its checksum, written whole
or not at all.

A block holds the first k of its records, so that a smaller subset costs only its own images and a
larger one adds to it:

    features/<key>/<split>-<number>.block   sha256 of the rest (32 bytes), features [k, width]
    float32, labels [k] int64
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpfl_cli.config.errors import DataError
from dpfl_cli.data.federation import Records

BLOCK = 500  # records
DIGEST = 32  # bytes

Split = Literal["train", "test"]


@dataclass(frozen=True)
class FeatureCache:
    """The blocks of one backbone on one data set; `width` values a record."""

    folder: Path
    width: int

    def path(self, split: Split, number: int) -> Path:
        return self.folder / f"{split}-{number:04d}.block"

    def read(self, split: Split, number: int) -> Records | None:
        """What a block holds, read-only; None where it is absent or damaged."""
        try:
            content = self.path(split, number).read_bytes()
        except OSError:
            return None
        rows, rest = divmod(len(content) - DIGEST, 4 * self.width + 8)
        if (
            rows < 1
            or rest
            or hashlib.sha256(memoryview(content)[DIGEST:]).digest() != content[:DIGEST]
        ):
            return None
        features = np.frombuffer(content, "<f4", rows * self.width, DIGEST).reshape(
            rows, self.width
        )
        return Records(features, np.frombuffer(content, "<i8", rows, DIGEST + features.nbytes))

    def held(self, split: Split, number: int) -> int:
        """How many records a block holds."""
        found = self.read(split, number)
        return 0 if found is None else len(found)

    def rows(self, split: Split, start: int, stop: int) -> Records:
        """Records [start, stop) from blocks that were found or made before.

        Raises:
          DataError: a block is not what it was a moment ago.
        """
        parts = []
        for number, rows in blocks_of(start, stop):
            held = self.read(split, number)
            if held is None or len(held) < rows:
                raise DataError(
                    f"{self.path(split, number)}: changed while it was read; run it again"
                )
            begin = max(start - number * BLOCK, 0)
            parts.append(Records(held.features[begin:rows], held.targets[begin:rows]))
        return Records(
            np.concatenate([one.features for one in parts]),
            np.concatenate([one.targets for one in parts]),
        )

    def write(self, split: Split, number: int, records: Records) -> None:
        """Replaces a block.

        Raises:
          DataError: the cache cannot be written.
        """
        content = (
            np.ascontiguousarray(records.features, "<f4").tobytes()
            + np.ascontiguousarray(records.targets, "<i8").tobytes()
        )
        target = self.path(split, number)
        temporary = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}-{target.name}")
        try:
            try:
                temporary.write_bytes(hashlib.sha256(content).digest() + content)
                os.replace(temporary, target)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritable(error) from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Held while a block is made, so that two processes make each block once between them."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = (self.folder / ".lock").open("w")
        except OSError as error:
            raise self._unwritable(error) from error
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield

    def _unwritable(self, error: OSError) -> DataError:
        return DataError(
            f"{self.folder}: cannot be written ({error.strerror}); set DPFL_CACHE to a folder that "
            "can be"
        )


def blocks_of(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """(number, records that it must hold) of the blocks with the records [start, stop).

    >>> list(blocks_of(600, 1100))
    [(1, 500), (2, 100)]
    """
    for number in range(start // BLOCK, -(-stop // BLOCK)):
        yield number, min(BLOCK, stop - number * BLOCK)
