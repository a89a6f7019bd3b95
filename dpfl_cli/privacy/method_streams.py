"""The random streams that methods and models draw from: all but those of a mechanism's noise."""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from dpfl_cli.config.errors import PrivacyError
from dpfl_cli.data.streams import Streams


class MethodStreams(Streams):
    """A batch's streams without the key space of noise: who draws what a mechanism adds can take it
    off again.

    A stream's key is the crc32 of its name (`data.streams.stream_generator`); a name that is
    noise's, or whose key is, is refused.

    Args:
      streams: those of the batch.
      noise: names that the mechanism draws from.
    """

    def __init__(self, streams: Streams, noise: Iterable[str]) -> None:
        self.__streams = streams
        keys = [zlib.crc32(name.encode()) for name in noise]
        self.__noise = set(keys)
        if len(self.__noise) < len(keys):
            raise PrivacyError(
                "the names of two releases have one key, and would have the same noise: give one "
                "of them another name"
            )
        # key -> the name that first asked for it, and whether for batches
        self.__taken: dict[int, tuple[str, bool]] = {}

    def generator(self, run: int, name: str, *key: int) -> np.random.Generator:
        return self.__streams.generator(run, self._own(name), *key)

    def normal(self, name: str, *where: Any, **options: Any) -> Tensor:
        return self.__streams.normal(self._own(name), *where, **options)

    def uniform(self, name: str, *where: Any, **options: Any) -> Tensor:
        return self.__streams.uniform(self._own(name), *where, **options)

    def subset(self, name: str, *where: Any, **options: Any) -> Tensor:
        return self.__streams.subset(self._own(name), *where, **options)

    def _of_batches(self, name: str) -> Streams:
        """The streams, for batches from the stream of this name."""
        self._own(name, of_batches=True)
        return self.__streams

    def _own(self, name: str, of_batches: bool = False) -> str:
        """The name, unless it is of noise or another use has its key."""
        key = zlib.crc32(name.encode())
        if name.split("/", maxsplit=1)[0] == "noise" or key in self.__noise:
            raise PrivacyError(
                f"stream '{name}' has the key of a mechanism's noise, which nobody else draws: "
                "take another name"
            )
        known, batches = self.__taken.setdefault(key, (name, of_batches))
        if known != name:
            raise PrivacyError(
                f"streams '{known}' and '{name}' have one key, and would be one: take another name"
            )
        if batches != of_batches:
            raise PrivacyError(
                f"stream '{name}' is of batches, and somebody draws from it besides, who would "
                "know their records: take another name"
            )
        return name


def of_batches(streams: Streams, name: str) -> Streams:
    """The streams that batches are drawn from; a PrivacyError where they are not the run's own."""
    if type(streams) is not MethodStreams:
        raise PrivacyError(
            "batches are drawn from the run's own streams, which nobody else knows: use Round.batch"
        )
    return streams._of_batches(name)
