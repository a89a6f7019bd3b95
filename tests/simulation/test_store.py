"""The run store: what is there was finished; what was interrupted is not read as done."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.identity import content_id
from dpfl_cli.simulation import store as store_module
from dpfl_cli.simulation.store import RunRecord, RunStore, json_text, metrics_csv, write_atomically, yaml_text

CONFIG = {"seed": 0, "algorithm": {"name": "fedavg", "local_lr": 1e-05}}
ID = content_id(CONFIG)


def files(status: str = "done") -> dict[str, str | bytes]:
    result = {"schema_version": 1, "id": ID, "status": status, "seed": 0}
    return {
        "config.yaml": yaml_text(CONFIG),
        "metrics.csv": metrics_csv([{"round": 0, "distance": 1.0}, {"round": 1, "distance": 0.1, "extra": 3.0}]),
        "ledger.json": "[]",
        "result.json": json_text(result),
    }


def test_a_published_run_is_read_back(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    store.write_checkpoint(ID, b"state")
    record = store.publish(ID, files())
    record.check()
    assert store.find(ID) == record
    assert record.config == CONFIG
    assert record.series("distance") == {0: 1.0, 1: 0.1}
    assert record.series("extra") == {1: 3.0}
    assert not store.checkpoint_file(ID).exists()
    assert store.match(ID[:4]).id == ID
    assert store.match(str(record.folder)).id == ID


@pytest.mark.parametrize("moment", range(12))
def test_a_crash_while_publishing_leaves_nothing_half_written(
    tmp_path: Path, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every system call of publishing may be the last one: the run is then absent, or complete."""
    store = RunStore(tmp_path)
    store.prepare()
    store.write_checkpoint(ID, b"state")
    calls = 0

    class Crash(BaseException):
        pass

    def counted(function: object) -> object:
        def wrapper(*args: object, **kwargs: object) -> object:
            nonlocal calls
            calls += 1
            if calls > moment:
                raise Crash
            return function(*args, **kwargs)  # type: ignore[operator]

        return wrapper

    monkeypatch.setattr(store_module, "_write", counted(store_module._write))
    monkeypatch.setattr(store_module, "_sync", counted(store_module._sync))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    try:
        store.publish(ID, files())
    except Crash:
        monkeypatch.undo()
        found = store.find(ID)
        if found is None:
            assert store.checkpoint_file(ID).read_bytes() == b"state"
        else:
            found.check()
            assert found.rows
    monkeypatch.undo()
    assert store.publish(ID, files()).status == "done"


def test_a_full_disk_is_one_line_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    store.write_checkpoint(ID, b"old")

    def full(path: Path, payload: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module, "_write", full)
    with pytest.raises(StoreError, match="No space left"):
        store.write_checkpoint(ID, b"new")
    with pytest.raises(StoreError, match="No space left"):
        store.publish(ID, files())
    assert store.find(ID) is None
    assert store.checkpoint_file(ID).read_bytes() == b"old"


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StoreError, match=r"cannot be written.*DPFL_OUTPUTS"):
        RunStore(blocker).prepare()


def test_a_changed_config_is_not_taken_for_the_run(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    record = store.publish(ID, files())
    (record.folder / "config.yaml").write_text(yaml_text({**CONFIG, "seed": 1}))
    with pytest.raises(StoreError, match="does not hash"):
        RunRecord(ID, record.folder).check()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    record = store.publish(ID, files())
    (record.folder / "result.json").write_text('{"status": "do')
    with pytest.raises(StoreError, match=r"result\.json: damaged"):
        RunRecord(ID, record.folder).check()


def test_a_rerun_replaces_a_result_whole(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    store.publish(ID, files("failed"))
    assert store.publish(ID, files("done")).status == "done"


def test_a_lock_keeps_a_second_process_out(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    with store.lock(ID) as first, store.lock(ID) as second:
        assert first
        assert not second
    with store.lock(ID) as again:
        assert again


def test_names_that_are_not_ids_are_not_runs(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    store.prepare()
    (store.runs / "notes").mkdir()
    (store.runs / "0123456789ab").mkdir()  # no result: not finished
    assert store.all() == []
    with pytest.raises(StoreError, match="no run"):
        store.match("0123")


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), finite, min_size=1), min_size=1, max_size=5))
def test_metrics_come_back_bit_by_bit(rows: list[dict[str, float]]) -> None:
    import csv
    import io

    text = metrics_csv([{"round": number, **row} for number, row in enumerate(rows)])
    back = [{k: float(v) for k, v in row.items() if v != "" and k != "round"} for row in csv.DictReader(io.StringIO(text))]
    assert back == rows


@given(st.dictionaries(st.text(), finite | st.just(math.inf) | st.just(math.nan) | st.text()))
def test_json_never_holds_what_json_does_not_have(values: dict) -> None:
    import json

    back = json.loads(json_text(values), parse_constant=pytest.fail)
    assert set(back) == set(values)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_file_is_replaced_whole(tmp_path_factory: pytest.TempPathFactory, old: bytes, new: bytes) -> None:
    path = tmp_path_factory.mktemp("atomic") / "file"
    write_atomically(path, old)
    write_atomically(path, new)
    assert path.read_bytes() == new
    assert [item.name for item in path.parent.iterdir()] == ["file"]
