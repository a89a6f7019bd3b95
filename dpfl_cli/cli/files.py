"""Files that commands write for a user: whole or not at all."""

from pathlib import Path

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.data.files import write_atomically


def write_output(path: Path, payload: bytes) -> None:
    """Writes a file, whole or not at all; its folder is created.

    Raises:
      ConfigError: it cannot be written.
    """
    try:
        target = path.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(payload)  # a pipe or a device must not be replaced by a file
        else:
            write_atomically(target, payload)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}); name a file that can, or set "
            "DPFL_OUTPUTS to a folder"
        ) from error
