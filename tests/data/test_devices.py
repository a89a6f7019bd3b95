"""Free memory of this machine."""

import os
from pathlib import Path

import pytest

from dpfl_cli.data.devices import free_memory


def test_free_memory_is_some_of_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Linux says what is available that is taken, elsewhere what nothing holds."""
    page = os.sysconf("SC_PAGE_SIZE")
    assert 0 < free_memory("cpu") < os.sysconf("SC_PHYS_PAGES") * page
    monkeypatch.setattr(Path, "exists", lambda path: True)
    monkeypatch.setattr(Path, "read_text", lambda path: "MemFree: 9 kB\nMemAvailable:   1000 kB\n")
    assert free_memory("cpu") == 1000 * 1024
    monkeypatch.setattr(Path, "exists", lambda path: False)
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 50, "SC_PAGE_SIZE": page}.__getitem__)
    assert free_memory("cpu") == 50 * page
