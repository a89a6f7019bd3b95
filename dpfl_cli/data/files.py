"""Files and folders that are written whole or not at all: a reader sees what was there before, or
what is new.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.threads import in_threads

DIGEST = 32  # bytes of a SHA-256


def write_atomically(path: Path, payload: bytes) -> None:
    """Writes a file so that a reader, or a restart after a crash, sees the old content or the new,
    never a part; its folder is created.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(temporary, payload)
        _sync(temporary)
        temporary.replace(path)
        _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_output(path: Path, payload: bytes) -> None:
    """Writes a file for a user as `write_atomically` does; to a pipe or a device as it is.

    Raises:
      ConfigError: it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(payload)  # which must not be replaced by a file
        else:
            write_atomically(target, payload)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); name a file that can, or set "
            "DPFL_OUTPUTS to a folder"
        ) from error


def replace_folder(target: Path, files: Mapping[str, bytes], new: Path, old: Path) -> None:
    """Puts a folder of these files, written as `new` until it is on the disk, in the place of
    `target` by one rename; what was there becomes `old`.
    """
    shutil.rmtree(new, ignore_errors=True)
    written = {new / name: content for name, content in files.items()}
    folders = {new, *(path.parent for path in written)}
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    for path, content in written.items():
        _write(path, content)
    # a disk that gets all at once writes them in one go
    in_threads(_sync, zip((*written, *folders)), 8)
    if os.path.lexists(target):
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    new.rename(target)
    _sync(target.parent)


def with_digest(content: bytes) -> bytes:
    """A content behind its SHA-256, by which `without_digest` sees what has become of it."""
    return hashlib.sha256(content).digest() + content


def without_digest(payload: bytes) -> bytes:
    """The content; a ValueError where it is not what was written."""
    content = payload[DIGEST:]
    if hashlib.sha256(content).digest() != payload[:DIGEST]:
        raise ValueError("not what was written")
    return content


def encoded(files: Mapping[str, str | bytes]) -> dict[str, bytes]:
    """Files by name, those that are text in UTF-8."""
    return {k: v.encode() if isinstance(v, str) else v for k, v in files.items()}


def _write(path: Path, payload: bytes) -> None:
    path.write_bytes(payload)


def _sync(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
