"""Published files computed from other files of the same data: the same bytes, which the catalogue's
checksums confirm.

LIBSVM's files of UCI data come from the UCI files, CIFAR-10's binary batches from lossless pictures
of them. Which column and value becomes which feature is a fact about the published files;
`derivations/*.json` states it.
"""

from __future__ import annotations

import base64
import io
import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np

from dpfl_cli.config.errors import DataError


@dataclass(frozen=True)
class Derivation:
    """A file's content as a function of other files'."""

    origins: tuple[str, ...]  # the other files' names
    content: Callable[..., bytes]  # of the contents of the other files, in this order


def adult_to_libsvm(content: bytes) -> bytes:
    """adult.data or adult.test as a9a or a9a.t.

    Raises:
      DataError: a line that is not of UCI Adult.
    """
    said = facts("adult")
    rows = (
        line.rstrip(".").split(", ")
        for line in content.decode(errors="replace").splitlines()
        if line and not line.startswith("|")
    )
    return _encoded(((row[:-1], row[-1]) for row in rows), said["columns"], said["label"])


def adult_to_a6a(content: bytes) -> bytes:
    """adult.data as a6a: some of the rows of a9a."""
    said = facts("a6a")
    bits = np.frombuffer(base64.b64decode("".join(said["rows"])), np.uint8)
    kept = np.unpackbits(bits, count=said["size"]).astype(bool)
    lines = adult_to_libsvm(content).splitlines(keepends=True)
    if len(lines) != len(kept):
        raise DataError(f"{len(lines)} rows where UCI Adult has {len(kept)}")
    return b"".join(line for line, keep in zip(lines, kept.tolist(), strict=True) if keep)


def mushroom_to_libsvm(content: bytes) -> bytes:
    """mushroom.csv as mushrooms.

    Raises:
      DataError: a line that is not of UCI Mushroom.
    """
    said = facts("mushroom")
    header, *lines = [
        line.split(",") for line in content.decode(errors="replace").splitlines()
    ] or [[]]
    wanted = [said["label_column"], *(column["column"] for column in said["columns"])]
    absent = [name for name in wanted if name not in header]
    if absent:
        raise DataError(f"no column {absent[0]}")
    label, *places = [header.index(name) for name in wanted]
    rows = ([*row, *[""] * (len(header) - len(row))] for row in lines)
    return _encoded(
        (([row[place] for place in places], row[label]) for row in rows),
        said["columns"],
        said["label"],
    )


def picture_to_cifar(picture: bytes, labels: bytes, first: int = 0) -> bytes:
    """A batch of CIFAR-10's binary version from a lossless picture: a row for each image, a pixel
    in colour for each of its 1024.

    Args:
      picture: a PNG of mode RGB, 1024 wide.
      labels: a JSON list of the labels of this and other batches.
      first: the place of the batch's first label in that list.

    Returns:
      For each image its label in one byte, then 1024 bytes of red, green and blue, each row by row.

    Raises:
      DataError: not such a picture, or not a label 0..9 for each of its rows.
    """
    from PIL import Image

    try:
        with Image.open(io.BytesIO(picture)) as opened:
            pixels = np.asarray(opened)  # [N, 1024, 3]
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise DataError(
            f"not a good picture: {'unknown format' if 'BytesIO' in str(error) else error}"
        ) from error
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (1024, 3):
        raise DataError(
            f"a picture of shape {list(pixels.shape)} where CIFAR-10 has rows of 1024 pixels in 3 "
            "colours"
        )
    try:
        own = json.loads(labels)[first : first + len(pixels)]
        column = np.array([bytes([label])[0] for label in own], np.uint8)  # refuses what is no byte
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"not a list of labels: {error}") from error
    if len(column) != len(pixels) or int(column.max(initial=0)) > 9:
        raise DataError(f"{len(pixels)} images and {len(column)} labels, or one beyond 9")
    return np.concatenate(
        [column[:, None], pixels.transpose(0, 2, 1).reshape(len(pixels), -1)], axis=1
    ).tobytes()


DERIVATIONS = {
    "a9a": Derivation(("adult.data",), adult_to_libsvm),
    "a9a.t": Derivation(("adult.test",), adult_to_libsvm),
    "a6a": Derivation(("adult.data",), adult_to_a6a),
    "mushrooms": Derivation(("mushroom.csv",), mushroom_to_libsvm),
    **{
        f"data_batch_{number + 1}.bin": Derivation(
            (f"data_batch_{number + 1}.png", "train_lables.json"),
            partial(picture_to_cifar, first=10_000 * number),
        )
        for number in range(5)
    },
    "test_batch.bin": Derivation(("test_batch.png", "test_lables.json"), picture_to_cifar),
}


def facts(name: str) -> Any:
    """What `derivations/NAME.json` says of published files."""
    return json.loads(files("dpfl_cli.data").joinpath("derivations", f"{name}.json").read_text())


def _encoded(
    rows: Iterator[tuple[Sequence[str], str]],
    columns: Sequence[Mapping[str, Any]],
    labels: Mapping[str, str],
) -> bytes:
    """Rows of (values, label) one-hot in LIBSVM's format: a feature for each value, or each
    interval between bounds.
    """
    codes = list(_codes(columns))
    lines = []
    for number, (values, label) in enumerate(rows, 1):
        try:
            indices = [code(value) for code, value in zip(codes, values, strict=True)]
            lines.append(f"{labels[label]} " + "".join(f"{index}:1 " for index in indices if index))
        except (KeyError, ValueError) as error:
            raise DataError(f"record {number} is none of the UCI data set ({error})") from error
    return "".join(f"{line}\n" for line in lines).encode()


def _codes(columns: Sequence[Mapping[str, Any]]) -> Iterator[Callable[[str], int]]:
    """For each column, the index of the feature that a value sets (0: none)."""
    first = 1
    for column in columns:
        if "bounds" in column:
            yield partial(_interval, first, column["bounds"])
            first += len(column["bounds"]) + 1
        else:
            yield {
                **{value: first + k for k, value in enumerate(column["values"])},
                "?": 0,
            }.__getitem__
            first += len(column["values"])


def _interval(first: int, bounds: Sequence[int], value: str) -> int:
    """`first` + the number k of the interval (bounds[k - 1], bounds[k]] that holds the value."""
    return first + bisect_left(bounds, int(value))
