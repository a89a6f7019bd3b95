"""A million clients, a thousand of whom are drawn for a round: what a round takes, and the memory.

    python -m tests.million [--rounds N]

Prints a line for each number of clients; every run has a process of its own. A round follows the
cohort; what follows the clients is their records, which are made once.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = (10_000, 100_000, 1_000_000)
COHORT = 1000
DIMENSION = 10
METHODS = ("fedavg", "scaffold")  # which keeps no state at clients, and which does


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=50)
    rounds = parser.parse_args().rounds
    print(f"cohorts of {COHORT}, {DIMENSION} features, one record a client, {rounds} rounds")
    for method in METHODS:
        for clients in SIZES:
            words = [f"algorithm={method}", "dp=cdp", "participation=poisson", "dataset=synthetic"]
            words += [f"participation.cohort={COHORT}", f"dataset.clients={clients}"]
            words += [f"dataset.dimension={DIMENSION}", f"rounds={rounds}", "dp.delta=1e-8"]
            words += [f"evaluation.every={rounds}", "--quiet"]
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "dpfl_cli.cli.main", "run", *words]
                environment = {**os.environ, "DPFL_OUTPUTS": folder}
                subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
                (path,) = Path(folder).glob("runs/*/result.json")
                timing = json.loads(path.read_text())["timing"]
            print(
                f"{method:<9} {clients:>9,} clients: {1e3 * timing['seconds_per_round']:7.1f} ms a "
                f"round, {timing['peak_bytes'] / 2**20:6.0f} MiB at most",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
