"""Tests of the data room use small files that they write themselves; only those marked `data` see
the real ones.
"""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_data(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if request.node.get_closest_marker("data") is None:
        monkeypatch.delenv("DPFL_DATA", raising=False)
        monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "cache"))
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.delenv(name, raising=False)
