"""Shared by all tests: one thread each, outputs in a folder of the test, no network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _own_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPFL_OUTPUTS", str(tmp_path / "outputs"))
    monkeypatch.delenv("DPFL_QUIET", raising=False)
    monkeypatch.delenv("DPFL_PLUGINS", raising=False)


@pytest.fixture
def small() -> list[str]:
    """Overrides of a run that takes milliseconds."""
    return ["dataset.clients=12", "dataset.dimension=5", "rounds=6"]
