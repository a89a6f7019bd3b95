"""Shared by the tests of the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dpfl_cli.cli.main import main


@pytest.fixture
def dpfl(capsys) -> Callable[..., tuple[int, str, str]]:
    """What a command comes to: its exit code, and what it says on both streams."""

    def called(*words: str) -> tuple[int, str, str]:
        code = main([*words])
        return code, *capsys.readouterr()

    return called


@pytest.fixture
def printed(dpfl) -> Callable[..., str]:
    """What a command prints that ends well."""

    def called(*words: str) -> str:
        code, out, err = dpfl(*words)
        assert code == 0, err
        return out

    return called


@pytest.fixture
def refused(dpfl) -> Callable[..., str]:
    """The one line that a command says where it is wrong use."""

    def called(*words: str) -> str:
        code, _, err = dpfl(*words)
        assert (code, err.count("\n")) == (2, 1), err
        return err

    return called
