"""kill -9 at random moments: `python -m tests.kills [NUMBER]`.

A grid is killed again and again, between its first line and its last result. After every kill the
store is listed and verified; at the end the same command finishes the grid, and its runs have to
have the bytes of a grid that nobody disturbed. Printed are counts; the exit code is 1 if anything
was otherwise.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dpfl_cli.cli import outcomes, runs
from dpfl_cli.cli.main import main
from dpfl_cli.simulation import execute, plan

IMPORTED = (outcomes, runs, execute)  # once, by the process that the killed ones come of
GRID = ["run", "-m", "algorithm=fedexp,fedavg,scaffold", "dp=cdp", "seed=0,1", "rounds=300"]
GRID += ["dataset.clients=200", "dataset.dimension=20", "evaluation.every=5", "--quiet"]
GRID += ["runtime.checkpoint_every=0.05"]
SAME = ("config.yaml", "metrics.csv", "ledger.json", "partition.npz")  # result.json has times
KILLS = (3, 9)  # of one grid, at least and at most


def started(words: Sequence[str]) -> int:
    """The process of a command, whose output is in the file `said`."""
    process = os.fork()
    if process:
        return process
    with open("said", "w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
        code = main(words)
    os._exit(code)


def code_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def finished(outputs: str) -> dict[str, bytes]:
    """The files of a store's finished runs that are functions of their configs."""
    files = Path(outputs, "runs").glob("[0-9a-f]*/*")
    return {"/".join(file.parts[-2:]): file.read_bytes() for file in files if file.name in SAME}


def trial(number: int) -> int:
    os.environ["DPFL_OUTPUTS"] = "undisturbed"
    plan.load_components()
    start = time.monotonic()
    assert code_of(started(GRID)) == 0, Path("said").read_text()
    whole, wanted = time.monotonic() - start, finished("undisturbed")
    chance, kills, wrong, grids = random.Random(0), 0, 0, 0
    there = Counter[int]()  # runs that were finished at a kill
    os.environ["DPFL_OUTPUTS"] = "killed"
    while kills < number:
        grids += 1
        for _ in range(chance.randint(*KILLS)):
            process = started(GRID)
            time.sleep(chance.uniform(0.02, whole))
            os.kill(process, signal.SIGKILL)
            if code_of(process) != -signal.SIGKILL:
                break  # it was done before
            kills += 1
            there[len(finished("killed")) // len(SAME)] += 1
            for words in (["runs", "list"], ["runs", "verify"]):
                code, said = code_of(started(words)), Path("said").read_text()
                if code or "Traceback" in said:
                    wrong += 1
                    print(f"kill {kills}: {words}: exit {code}: {said[-300:]!r}")
        code = code_of(started(GRID))
        left = [file.name for file in Path("killed/runs/.partial").glob("*") if file.is_dir()]
        if code or left or finished("killed") != wanted:
            wrong += 1
            print(
                f"grid {grids}: exit {code}, left over: {left}: {Path('said').read_text()[-300:]}"
            )
        shutil.rmtree("killed")
        print(f"{kills} kills of {grids} grids: {wrong} not as they should be", flush=True)
    print(f"finished runs at a kill: {dict(sorted(there.items()))}")
    return 1 if wrong else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        result = trial(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
        os.chdir("/")
    sys.exit(result)
