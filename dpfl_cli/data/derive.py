"""Published files computed from other files of the same data: the same bytes, which the catalogue's
checksums confirm, so that nothing else is checked here.

LIBSVM's files of UCI data come from the UCI files, CIFAR-10's binary batches from lossless pictures
of them. Which column and value becomes which feature is a fact about the published files;
`derivations/*.json` states it.
"""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterable
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np


def adult_to_libsvm(content: bytes) -> bytes:
    """adult.data or adult.test as a9a or a9a.t."""
    lines = content.decode().splitlines()
    rows = [line.rstrip(".").split(", ") for line in lines if line and line[0] != "|"]
    *columns, labels = zip(*rows, strict=True)
    return _one_hot(columns, labels, facts("adult"))


def adult_to_a6a(content: bytes) -> bytes:
    """adult.data as a6a: some of the rows of a9a."""
    said = facts("a6a")
    bits = np.frombuffer(base64.b64decode("".join(said["rows"])), np.uint8)
    kept = np.unpackbits(bits, count=said["size"]).astype(bool)
    lines = adult_to_libsvm(content).splitlines(keepends=True)
    return b"".join(np.array(lines, object)[kept])


def mushroom_to_libsvm(content: bytes) -> bytes:
    """mushroom.csv as mushrooms."""
    names, *rows = filter(None, csv.reader(io.StringIO(content.decode())))
    said, columns = facts("mushroom"), dict(zip(names, zip(*rows, strict=True), strict=True))
    used = [columns[one["column"]] for one in said["columns"]]
    return _one_hot(used, columns[said["label_column"]], said)


def picture_to_cifar(picture: bytes, labels: bytes, first: int = 0) -> bytes:
    """A batch of CIFAR-10's binary version from a lossless picture: a row for each image, a pixel
    in colour for each of its 1024.

    Args:
      picture: a PNG of mode RGB, 1024 wide.
      labels: a JSON list of the labels of this and other batches.
      first: the place of the batch's first label in that list.

    Returns:
      For each image its label in one byte, then 1024 bytes of red, green and blue, each row by row.
    """
    from PIL import Image

    pixels = np.asarray(Image.open(io.BytesIO(picture)))  # [N, 1024, 3]
    own = np.array(json.loads(labels)[first : first + len(pixels)], np.uint8)
    colours = pixels.transpose(0, 2, 1).reshape(len(pixels), -1)
    return np.column_stack([own, colours]).tobytes()


# name of a file -> names of the other files, and its content as a function of theirs
DERIVATIONS: dict[str, tuple[tuple[str, ...], Callable[..., bytes]]] = {
    "a9a": (("adult.data",), adult_to_libsvm),
    "a9a.t": (("adult.test",), adult_to_libsvm),
    "a6a": (("adult.data",), adult_to_a6a),
    "mushrooms": (("mushroom.csv",), mushroom_to_libsvm),
    **{
        f"data_batch_{number + 1}.bin": (
            (f"data_batch_{number + 1}.png", "train_lables.json"),
            partial(picture_to_cifar, first=10_000 * number),
        )
        for number in range(5)
    },
    "test_batch.bin": (("test_batch.png", "test_lables.json"), picture_to_cifar),
}


def facts(name: str) -> Any:
    """What `derivations/NAME.json` says of published files."""
    return json.loads(files("dpfl_cli.data").joinpath("derivations", f"{name}.json").read_text())


def _one_hot(columns: Iterable[Iterable[str]], labels: Iterable[str], said: Any) -> bytes:
    """Rows in LIBSVM's format: a feature for each value of a column, or for each interval
    (bounds[k - 1], bounds[k]]; none for another value.
    """
    first, features = 1, []
    for column, one in zip(columns, said["columns"], strict=True):
        if "bounds" in one:
            places = first + np.searchsorted(one["bounds"], list(map(int, column)))
            features.append(places.tolist())
            first += len(one["bounds"]) + 1
        else:
            known = {value: first + place for place, value in enumerate(one["values"])}
            features.append([known.get(cell, 0) for cell in column])
            first += len(known)
    rows = zip(labels, *features, strict=True)
    return "".join(
        f"{said['label'][label]} " + "".join(f"{index}:1 " for index in row if index) + "\n"
        for label, *row in rows
    ).encode()
