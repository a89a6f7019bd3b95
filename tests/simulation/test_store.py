"""The run store: what is there was finished; what was interrupted is not read as done."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import lzma
import math
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpfl_cli.config.errors import StoreError
from dpfl_cli.config.identity import content_id
from dpfl_cli.data import files as files_module
from dpfl_cli.simulation import archive as archive_module
from dpfl_cli.simulation.archive import packed, take
from dpfl_cli.simulation.store import (
    RunRecord,
    RunStore,
    json_text,
    metrics_csv,
    sealed,
    yaml_text,
)

CONFIG = {"seed": 0, "algorithm": {"name": "fedavg", "local_lr": 1e-05}}
ID = content_id(CONFIG)


def files(status: str = "done", distance: float = 0.1, seed: int = 0) -> dict[str, bytes]:
    config = {**CONFIG, "seed": seed}
    result = {"id": content_id(config), "status": status, "seed": seed, "config": config}
    rows = [{"round": 0, "distance": 1.0}, {"round": 1, "distance": distance, "extra": 3.0}]
    plain = {
        "config.yaml": yaml_text(config),
        "metrics.csv": metrics_csv(rows),
        "ledger.json": "[]",
        "partition.npz": b"clients",
    }
    return sealed(plain, {**result, "metrics": {}, "privacy": {}, "data": {}})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    store = RunStore(tmp_path)
    store.prepare()
    return store


def test_a_published_run_is_read_back(store: RunStore) -> None:
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
    store: RunStore, moment: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every system call of publishing may be the last one: the run is then absent, or complete."""
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

    monkeypatch.setattr(files_module, "_write", counted(files_module._write))
    monkeypatch.setattr(files_module, "_sync", counted(files_module._sync))
    monkeypatch.setattr(Path, "rename", counted(Path.rename))
    try:
        store.publish(ID, files())
    except Crash:
        monkeypatch.undo()
        found, folder = store.find(ID), store.runs / ID
        assert not folder.exists() or {one.name for one in folder.iterdir()} == set(files())
        if found is None:
            assert store.checkpoint_file(ID).read_bytes() == b"state"
        else:
            found.check()
            assert found.rows
    monkeypatch.undo()
    assert store.publish(ID, files()).status == "done"


def test_a_full_disk_is_one_line_and_loses_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write_checkpoint(ID, b"old")

    def full(path: Path, payload: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files_module, "_write", full)
    with pytest.raises(StoreError, match=r"No space left.*DPFL_OUTPUTS"):
        store.write_checkpoint(ID, b"new")
    with pytest.raises(StoreError, match=r"No space left.*DPFL_OUTPUTS"):
        store.publish(ID, files())
    assert store.find(ID) is None
    assert store.checkpoint_file(ID).read_bytes() == b"old"


def test_an_unwritable_folder_is_one_line(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StoreError, match=r"cannot be written.*DPFL_OUTPUTS"):
        RunStore(blocker).prepare()


@pytest.mark.parametrize("name", files())
@given(st.data())
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_damage_is_named_and_never_read(
    name: str, store: RunStore, data: st.DataObject
) -> None:
    """One flipped bit, a cut, an absent file: `check` refuses it, and so does whoever reads it."""
    record = store.publish(ID, files())
    whole = (record.folder / name).read_bytes()
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    (record.folder / name).write_bytes(data.draw(st.sampled_from([damaged, whole[: bit // 8]])))
    same = name == "result.json" and _loads(record.folder / name) == json.loads(whole)
    with contextlib.nullcontext() if same else pytest.raises(StoreError, match=f"{ID}/{name}: "):
        RunRecord(ID, record.folder).check()
    assert (store.whole(ID) is None) != same
    readers = {"metrics.csv": "rows", "ledger.json": "ledger", "result.json": "config"}
    if name in readers and not same:
        with pytest.raises(StoreError):
            getattr(RunRecord(ID, record.folder), readers[name])


def _loads(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None


def test_an_old_or_foreign_result_is_refused_in_one_line(store: RunStore) -> None:
    folder = store.publish(ID, files()).folder
    for text, message in (
        ('{"schema_version": 1}', r"schema version 1; this dpfl reads 2; .* makes it again"),
        ("[" * 100_000, "damaged"),
        ("[]", "damaged"),
        (files(seed=1)["result.json"].decode(), f"its config does not hash to {ID}"),
    ):
        (folder / "result.json").write_text(text)
        with pytest.raises(StoreError, match=message):
            RunRecord(ID, folder).check()
    (folder / "result.json").unlink()
    with pytest.raises(StoreError, match=r"result\.json: cannot be read"):
        RunRecord(ID, folder).check()


@pytest.mark.parametrize("moment", range(10))
def test_a_kill_while_a_result_is_replaced_loses_nothing(
    moment: int, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forced rerun: afterwards there is the old result or the new one, in every listing."""
    store.publish(ID, files())
    calls = 0

    def counted(path: Path, target: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > moment:
            raise KeyboardInterrupt
        os.rename(path, target)

    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", counted)
        store.publish(ID, files(distance=0.2))
    (found,) = store.all()
    found.check()
    assert found.series("distance")[1] == (0.1 if moment == 0 else 0.2)


# --- archives -------------------------------------------------------------------------------------


def test_an_archive_carries_runs_to_another_store(tmp_path: Path) -> None:
    here, there = RunStore(tmp_path / "here"), RunStore(tmp_path / "there")
    for store in (here, there):
        store.prepare()
    for seed in (0, 1):
        one = files(seed=seed)
        here.publish(json.loads(one["result.json"])["id"], one)
    archive = tmp_path / "runs.tar.xz"
    archive.write_bytes(packed(here.all()))
    assert archive.read_bytes() == packed(reversed(here.all()))
    there.publish(ID, files("failed", distance=7.0))  # not finished: it makes room
    assert [became for _, became in take(archive, there)] == ["taken"] * 2
    assert packed(there.all()) == archive.read_bytes()
    assert [became for _, became in take(archive, there)] == ["here already"] * 2
    there.publish(ID, files(distance=0.3))
    assert dict(take(archive, there))[ID] == "differs"
    assert there.match(ID).series("distance")[1] == 0.3
    assert not list(there.partial.iterdir())


def test_what_is_exported_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RunStore(tmp_path / "here")
    here.publish(ID, files())
    archive, refused, limits = tmp_path / "runs.tar.xz", 0, range(2048, 65536, 1024)
    for limit in limits:
        monkeypatch.setattr(archive_module, "MOST_BYTES", limit)
        try:
            archive.write_bytes(packed(here.all()))
        except StoreError:
            refused += 1
        else:
            take(archive, RunStore(tmp_path / str(limit)))
    assert 0 < refused < len(limits)


def tarred(members: Mapping[str, bytes], kind: bytes = tarfile.REGTYPE) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size, info.type, info.linkname = len(content), kind, "/etc/passwd"
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        f"../{ID}/result.json",
        f"/{ID}/result.json",
        f"{ID}/../x",
        f"{ID}/x",
        f"{ID}",
        "x" * 300,
    ],
)
def test_an_archive_may_not_name_other_files(name: str, tmp_path: Path) -> None:
    archive = tmp_path / "runs.tar.xz"
    whole = {f"{ID}/{one}": content for one, content in files().items()}
    archive.write_bytes(tarred({**whole, name: b"x"}))
    with pytest.raises(StoreError, match="which is no file of a run"):
        take(archive, RunStore(tmp_path / "there"))
    assert not (tmp_path / "there").exists()


def test_an_archive_may_hold_neither_links_nor_bombs_nor_other_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MOST_BYTES", 1 << 20)
    whole = {f"{ID}/{name}": content for name, content in files().items()}
    torn = {name: content for name, content in whole.items() if "partition" not in name}
    failed = {f"{ID}/{name}": content for name, content in files("failed").items()}
    archive, there = tmp_path / "runs.tar.xz", RunStore(tmp_path / "there")
    for content, message in (
        (tarred({f"{ID}/config.yaml": b""}, tarfile.SYMTYPE), "no file of a run"),
        (tarred({f"{ID}/config.yaml": b""}, tarfile.LNKTYPE), "no file of a run"),
        (tarred({f"{ID}/config.yaml": bytes(2 << 20)}), "more than 1 MiB"),
        (lzma.compress(bytes(2 << 20)), "more than 1 MiB"),
        (tarred(torn), "cannot be read"),
        (tarred({**whole, f"{ID}/ledger.json": b"[ ]"}), "was changed"),
        (tarred({name.replace(ID, "0" * 12): one for name, one in whole.items()}), "does not hash"),
        (tarred(failed), "no whole finished run"),
        (tarred(whole)[:-40], "damaged"),
        (b"", "damaged"),
        (b"no archive", "not an archive"),
    ):
        archive.write_bytes(content)
        with pytest.raises(StoreError, match=message):
            take(archive, there)
        assert there.all() == []


@given(st.integers(0), st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_a_damaged_archive_changes_no_store(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    content = bytearray(tarred({f"{ID}/{name}": one for name, one in files().items()}))
    content[place % len(content)] ^= 1 << bit
    folder = tmp_path_factory.mktemp("damaged")
    (folder / "runs").write_bytes(content)
    store = RunStore(folder / "store")
    with contextlib.suppress(StoreError):
        take(folder / "runs", store)
    for record in store.all():
        record.check()


# --- locks and names ------------------------------------------------------------------------------


def test_a_lock_keeps_a_second_process_out(store: RunStore) -> None:
    with store.lock(ID) as first, store.lock(ID) as second:
        assert first
        assert not second
    with store.lock(ID) as again:
        assert again


def test_what_another_process_is_at_is_not_taken_for_left_over(store: RunStore) -> None:
    left = store.partial / ID / "publish"
    left.mkdir(parents=True)
    with store.lock(ID):
        store.forget_unfinished(ID)
        assert left.exists()
    store.forget_unfinished(ID)
    assert not left.parent.exists()


def test_a_removal_that_was_killed_stops_no_later_one(store: RunStore) -> None:
    grave = store.partial / f"{ID}.removed"
    grave.mkdir()
    (grave / "metrics.csv").write_text("")
    store.publish(ID, files())
    store.remove(ID)
    assert not grave.exists()
    assert store.find(ID) is None


def test_a_file_system_without_locks_is_one_line(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr("fcntl.flock", refuse)
    with pytest.raises(StoreError, match=r"cannot be locked .* set DPFL_OUTPUTS"), store.lock(ID):
        pass


def test_a_run_that_is_deleted_while_others_look_is_left_out(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = store.publish(ID, files())
    found = [kept.folder, store.runs / "0123456789ab"]
    monkeypatch.setattr(Path, "iterdir", lambda _: iter(found))
    assert store.all() == [kept]


def test_names_that_are_not_ids_are_not_runs(store: RunStore) -> None:
    (store.runs / "notes").mkdir()
    assert store.all() == []
    with pytest.raises(StoreError, match="no run"):
        store.match("0123")


finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["a", "b", "c"]), finite, min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_metrics_come_back_bit_by_bit(rows: list[dict[str, float]]) -> None:
    import csv

    text = metrics_csv([{"round": number, **row} for number, row in enumerate(rows)])
    back = [
        {k: float(v) for k, v in row.items() if v != "" and k != "round"}
        for row in csv.DictReader(io.StringIO(text))
    ]
    assert back == rows


@given(st.dictionaries(st.text(), finite | st.just(math.inf) | st.just(math.nan) | st.text()))
def test_json_never_holds_what_json_does_not_have(values: dict) -> None:
    back = json.loads(json_text(values), parse_constant=pytest.fail)
    assert set(back) == set(values)
