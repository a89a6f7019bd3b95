"""`dpfl report`: what reproduces, as a site in outputs/report/ that opens from disk.

Shown is what `dpfl reproduce` made here and what outputs/published/ holds, each artifact at every
size; where both have one, the one made here.
"""

import argparse
import os

from dpfl_cli.config.paths import COMMAND, outputs_dir


def execute(args: argparse.Namespace) -> int:
    from dpfl_cli.papers import artifacts
    from dpfl_cli.reproduction.report import write_report

    print(write_report(outputs_dir(), artifacts(), os.environ[COMMAND]))
    return 0
