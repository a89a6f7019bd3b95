"""Commands and their flags, archives, the environment, calls from Python."""

from __future__ import annotations

import io
import shlex
import tarfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import dpfl_cli as dpfl
from dpfl_cli.cli.main import main
from tests.wrong_inputs import LONG, SMALL, Input

LINES = Path(__file__).with_name("commands.txt").read_text().splitlines()
ENDLESS = ("a" * 5000, "a" * 300 + "/" * 300)


def commands(run: str) -> Iterator[Input]:
    """Those of commands.txt, and endless names."""
    for line in LINES[1:]:
        words = tuple(run if word == "ID" else word for word in shlex.split(line))
        if words[0] == "RUN":
            yield Input("overrides", ("run", *SMALL, *words[1:]))
        else:
            yield Input("commands", words)
    for word, command in product(ENDLESS, ("account", "runs show", "runs prune", "new model")):
        yield Input("commands", (*command.split(), word))


def made_archives(run: str) -> None:
    """Archives that are damaged, or that would write elsewhere."""
    main(["runs", "export", "--archive", "good.tar.xz"])
    good = bytearray(Path("good.tar.xz").read_bytes())
    Path("cut.tar.xz").write_bytes(good[: len(good) // 2])
    good[len(good) // 2] ^= 255
    Path("flipped.tar.xz").write_bytes(good)
    members = {
        "outside": tarfile.TarInfo("../../outside.txt"),
        "strange": tarfile.TarInfo("foo/bar.txt"),
        "link": tarfile.TarInfo(f"{run}/result.json"),
        "pipe": tarfile.TarInfo(f"{run}/result.json"),
    }
    members["link"].type, members["link"].linkname = tarfile.SYMTYPE, "/etc/passwd"
    members["pipe"].type = tarfile.FIFOTYPE
    for name, member in members.items():
        with tarfile.open(f"{name}.tar.xz", "w:xz") as archive:
            archive.addfile(member, io.BytesIO(b""))


NO_FOLDERS = (
    "/dev/null",
    "text.npz",
    "loop.npz",
    "x" * 5000,
    "text.npz/x",
    "~no.such.user",
    "/proc/x",
)


def environment(run: str) -> Iterator[Input]:
    """Places that are none, of data and of results."""
    for place in NO_FOLDERS:
        yield Input("environment", ("run", "dataset=mnist"), environment={"DPFL_DATA": place})
        for words in (("run", *SMALL), ("account", run), ("runs", "import", "good.tar.xz")):
            yield Input("environment", words, environment={"DPFL_OUTPUTS": place})
    for file in ("absent.py", "m_exits.py", "m_syntax.py"):
        yield Input("environment", ("run", *SMALL), environment={"DPFL_PLUGINS": file})


def calls(run: str) -> Iterator[Input]:
    """Calls from Python; what is raised has to be a DpflError (pydantic's for a wrong type)."""
    for function in (dpfl.curves, dpfl.ledger, dpfl.model, dpfl.account):
        yield _call(function, "zzz")
    for word in ("dp=null", "foo=1", "", "seed=range(0)", "seed=1,1", "--help", f"seed={LONG}"):
        yield _call(dpfl.run, word)
        yield _call(dpfl.calibrate, "dp=cdp", "dp.epsilon=3", word)
    for value in ("seed=\0", "seed=\ud800", "algorithm=fedxp"):
        yield _call(dpfl.run, value)
    for where in ("foo=1", "foo", "seed>x"):
        yield _call(dpfl.runs, where)
    for delta in (0.0, 1.0, -1.0, float("nan")):
        yield _call(dpfl.account, run, delta)


def _call(function: Callable[..., object], *values: object) -> Input:
    shown = f"{function.__name__}({', '.join(map(repr, values))})"
    return Input("calls", (shown,), call=lambda: function(*values))
