"""Fixtures of more than one file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpfl_cli.reproduction import judge as judging


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Findings are recorded in a file of the test."""
    monkeypatch.setattr(judging, "RECORDED", tmp_path / "recorded.json")
    judging.recorded.cache_clear()
    yield
    judging.recorded.cache_clear()
