"""Prepared data: kept, verified by content, made anew where damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from dpfl_cli.data.loading import cached


@pytest.mark.parametrize("place", [0, 40, -1])
def test_what_is_kept_is_not_made_twice_but_where_a_bit_is_flipped(
    place: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("dpfl")
    monkeypatch.setattr(logger, "propagate", True)
    monkeypatch.setattr(logger, "handlers", [])  # whatever ran before, a line is caught once
    made: list[int] = []

    def make() -> dict[str, np.ndarray]:
        made.append(1)
        return {"a": np.arange(5.0), "b": np.array(["x"])}

    path = tmp_path / "folder" / "kept.npz"
    for _ in range(2):
        found = cached(path, make)
        assert found["a"].tolist() == [0, 1, 2, 3, 4]
        assert found["b"].tolist() == ["x"]
    assert (len(made), caplog.text) == (1, "")
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))
    assert cached(path, make)["a"].tolist() == [0, 1, 2, 3, 4]
    assert cached(path, make)["b"].tolist() == ["x"]
    assert len(made) == 2
    assert caplog.text.count(f"{path}: damaged") == 1
