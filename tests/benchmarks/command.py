"""What the commands cost before any work is done: seconds from the shell to the answer, each in a
process of its own.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

COMMANDS = {
    "dpfl --help": ["--help"],
    "dpfl run rounds=1, from start to end": [
        "run",
        "rounds=1",
        "--quiet",
    ],  # an upper bound on its first round
    "dpfl run -m, 40 runs of one round": [
        *(
            "run",
            "-m",
            "algorithm=fedexp,fedavg",
            "dp=ldp",
            "seed=range(20)",
            "rounds=1",
            "--quiet",
        ),
    ],  # an upper bound on the start-up of workload G
}


def start_up(repeats: int) -> dict[str, float]:
    """Seconds by command, medians."""
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(repeats):
        for name, words in COMMANDS.items():
            with tempfile.TemporaryDirectory() as outputs:
                start = time.perf_counter()
                subprocess.run(
                    [sys.executable, "-m", "dpfl_cli.cli.main", *words],
                    env={**os.environ, "DPFL_OUTPUTS": outputs},
                    stdout=subprocess.DEVNULL,
                    check=True,
                )
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in samples.items()}
