"""LEAF's JSON (Caldas et al. 2018, arXiv 1812.01097): users, and the records of each of them.

A file is {"users": [names], "num_samples": [numbers], "user_data": {name: {"x": [records], "y":
[targets]}}}. A folder holds either train/*.json and test/*.json, the split that LEAF's scripts
make, or all_data/*.json; .gz and .bz2 are read too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from annotated_types import MinLen
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from dpfl_cli.data.loading import DataError, Files, files_below, read_uncompressed

ENDINGS = (".json", ".json.gz", ".json.bz2")


class UserRecords(BaseModel):
    """One user's records in one file, of one length; a data set's own class says what they are."""

    x: list[Any]
    y: list[Any]

    @model_validator(mode="after")
    def _of_one_length(self) -> Self:
        if len(self.x) != len(self.y):
            raise ValueError("x and y are not of one length")
        return self


Users = TypeVar("Users", bound=UserRecords)


class LeafFile(BaseModel, Generic[Users]):
    """A file, of records of this kind."""

    model_config = ConfigDict(coerce_numbers_to_str=True)
    users: Annotated[list[str], MinLen(1)]
    num_samples: list[int]
    user_data: dict[str, Users]

    @model_validator(mode="after")
    def _of_the_same_users(self) -> Self:
        if len(self.num_samples) != len(self.users) or sorted(self.users) != sorted(self.user_data):
            raise ValueError("users, num_samples and user_data are not of the same users")
        return self


def leaf_files(folder: Path, whole: bool = True) -> Files:
    """The files of a folder, by part ("train" and "test", or "all") and name: "train/a.json"; a
    DataError where it has none, or half a split.

    Args:
      whole: whether files without a split will do.
    """
    parts = {part: files_below(folder / part, ENDINGS) for part in ("train", "test")}
    if whole and not any(parts.values()):
        parts = {"all": files_below(folder / "all_data", ENDINGS)}
    if not all(parts.values()):
        instead = ", or all_data/*.json in their place" if whole else ""
        raise DataError(
            f"{folder}: not both of train/*.json and test/*.json; put both there{instead}"
        )
    return {f"{part}/{name}": path for part, named in parts.items() for name, path in named.items()}


def read_users(
    files: Files, kind: type[LeafFile[Users]], counted: bool
) -> Iterator[tuple[str, str, Users]]:
    """The users of all files in their order: the part that the file is of, a user's name, and the
    user's records.

    Args:
      files: as `leaf_files` has them.
      counted: whether num_samples counts the records (in Reddit's splits it counts a user's records
        before the split).

    Raises:
      DataError: names the file and what is wrong with it.
    """
    for place, path in files.items():
        try:
            content = kind.model_validate_json(read_uncompressed(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = " ".join(map(str, first["loc"]))
            raise DataError(f"{path}: not LEAF's JSON: {where}: {first['msg']}") from error
        for name, number in zip(content.users, content.num_samples, strict=True):
            records = content.user_data.pop(name)  # frees them as it goes
            if counted and number != len(records.y):
                raise DataError(
                    f"{path}: a user has another number of records than num_samples says"
                )
            yield place.partition("/")[0], name, records
