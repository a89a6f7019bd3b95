"""Gives every wrong input, and counts what became of them."""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import dpfl_cli as dpfl
from dpfl_cli.cli.main import main
from tests.wrong_inputs import SMALL, Input
from tests.wrong_inputs.commands import calls, commands, environment, made_archives
from tests.wrong_inputs.files import files, made_files
from tests.wrong_inputs.overrides import overrides

SLOW = 10.0  # seconds of computing that no wrong input is worth
LONGEST = 2500  # characters of a line, which may list all there is to choose from
NEWS = "dpfl: compiling"  # on standard error, and no error


def outcome(given: Input) -> tuple[object, str]:
    """The exit code, or what was raised, and what was said on standard error."""
    said = io.StringIO()
    with (
        patch.dict(os.environ, given.environment),
        redirect_stderr(said),
        redirect_stdout(io.StringIO()),
    ):
        try:
            code: object = main(given.words) if given.call is None else (given.call(), 0)[1]
        except dpfl.DpflError as error:
            code = error.exit_code
            print(error, file=said)
        except BaseException as error:
            code = type(error).__name__
            traceback.print_exc(file=said)
    return code, said.getvalue()


def wrong_with(given: Input, code: object, said: str, seconds: float) -> list[str]:
    """What is not as it should be."""
    lines = [line for line in said.strip().splitlines() if not line.startswith(NEWS)]
    found = [f"exit {code}"] if code != given.code else []
    found += [f"{len(lines)} lines"] if len(lines) != 1 else []
    found += [f"{len(said)} characters"] if len(said) > LONGEST else []
    found += ["a traceback"] if "Traceback" in said else []
    return found + ([f"{seconds:.0f} s"] if seconds > SLOW else [])


def kept() -> dict[Path, bytes]:
    """The finished runs that were there before."""
    return {path: path.read_bytes() for path in sorted(Path("outputs/runs").glob("[0-9a-f]*/*"))}


def trial(kinds: list[str]) -> int:
    """Gives all inputs, or those of some kinds, in a folder of its own."""
    quiet = io.StringIO()
    with redirect_stdout(quiet), redirect_stderr(quiet):
        assert main(["run", "-m", *SMALL, "dp=cdp", "seed=0,1"]) == 0, quiet.getvalue()
        run = min(path.name for path in Path("outputs/runs").glob("[0-9a-f]*"))
        made_files()
        made_archives(run)
    before = kept()
    given = [*overrides(), *files(), *commands(run), *environment(run), *calls(run)]
    total, failed = Counter[str](), Counter[str]()
    for one in given:
        if kinds and one.kind not in kinds:
            continue
        start = time.process_time()
        code, said = outcome(one)
        found = wrong_with(one, code, said, time.process_time() - start)
        if kept() != before:
            found.append("runs are not what they were")
            before = kept()
        total[one.kind] += 1
        if found:
            failed[one.kind] += 1
            shown = " ".join((*one.words, *one.environment.values()))
            print(f"{one.kind}: {shown[:120]!r}: {', '.join(found)}: {said.strip()[-200:]!r}")
    for kind, number in total.items():
        print(f"{kind}: {number} wrong inputs, {failed[kind]} not refused as they should be")
    print(f"all: {total.total()} wrong inputs, {failed.total()} not refused as they should be")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    os.environ.pop("DPFL_OUTPUTS", None)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        result = trial(sys.argv[1:])
        os.chdir("/")
    sys.exit(result)
