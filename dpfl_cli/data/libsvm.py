"""LIBSVM's text format: a record a line, `label index:value index:value ...`, indices from 1 and
ascending, the rest zero (Chang, Lin 2011, LIBSVM, README, "Data Format"), as scikit-learn reads it.
"""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpfl_cli.config.errors import DataError

LARGEST_DENSE = 1 << 32  # bytes of dense features


@dataclass(frozen=True)
class SparseRecords:
    """The N records of a file.

    Attributes:
      name: the file, for messages.
      labels: [N] float64, as written.
      features: [N, largest index] float64, a scipy.sparse.csr_matrix.
      text: the file, uncompressed.
    """

    name: str
    labels: np.ndarray
    features: Any
    text: bytes

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def dimension(self) -> int:
        """The largest index of the file, counted from 1; 0 where no record has a feature."""
        return int(self.features.indices.max(initial=-1)) + 1

    def error(self, row: int, says: str) -> DataError:
        """What is wrong with a record; lines that are empty or a comment hold none."""
        lines = enumerate(self.text.split(b"\n"), 1)
        numbers = [number for number, line in lines if line.partition(b"#")[0].strip()]
        return DataError(f"{self.name}: line {numbers[row]}: {says}")

    def dense(self, rows: np.ndarray, dimension: int) -> np.ndarray:
        """Features [len(rows), dimension] float64 of the given records, in the given order; a
        DataError where they take more than LARGEST_DENSE bytes.
        """
        size = 8 * len(rows) * dimension
        if size > LARGEST_DENSE:
            raise DataError(
                f"{self.name}: {len(rows)} records x {dimension} features take {1e-9 * size:.1f} "
                "GB as dense float64, too much; lower dataset.records"
            )
        chosen = self.features[rows]
        chosen.resize(len(rows), dimension)
        return np.asarray(chosen.toarray())


def parse_libsvm(data: bytes, name: str) -> SparseRecords:
    """Parses the uncompressed content of a file, which messages call `name`.

    Raises:
      DataError: no records, or the first line that is not of the format, by its number and with
        what is wrong.
    """
    try:
        features, labels = _parsed(data)
    except (ValueError, OverflowError):
        for number, line in enumerate(data.split(b"\n"), 1):  # slow, to name the line
            try:
                _parsed(line)
            except (ValueError, OverflowError) as error:  # whose text has the record's values
                raise DataError(
                    f"{name}: line {number}: not `label index:value ...` with ascending indices "
                    "from 1 and finite numbers"
                ) from error
        raise
    if not len(labels):
        raise DataError(f"{name}: no records in this file of {len(data)} bytes")
    return SparseRecords(name, labels, features, data)


def _parsed(data: bytes) -> tuple[Any, np.ndarray]:
    from sklearn.datasets import load_svmlight_file

    features, labels = load_svmlight_file(io.BytesIO(data), zero_based=False)
    if not (np.isfinite(labels).all() and np.isfinite(features.data).all()):
        raise ValueError("a number that is not finite")
    return features, labels
