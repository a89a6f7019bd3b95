"""Files that are written whole or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.data.files import write_atomically


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_file_is_replaced_whole(
    tmp_path_factory: pytest.TempPathFactory, old: bytes, new: bytes
) -> None:
    path = tmp_path_factory.mktemp("atomic") / "file"
    write_atomically(path, old)
    write_atomically(path, new)
    assert path.read_bytes() == new
    assert [item.name for item in path.parent.iterdir()] == ["file"]
