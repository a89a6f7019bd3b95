"""`dpfl report`: what reproduces, as a site in outputs/report/ that opens from disk.

Shown is what `dpfl reproduce` made here and what outputs/published/ holds, each artifact at every
size; where both have one, the one made here. dpfl report mine.py adds titles, commands and cost of
a file of one's own.
"""

import argparse
import os
from pathlib import Path

from dpfl_cli.config.errors import ConfigError
from dpfl_cli.config.paths import COMMAND, outputs_dir


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE.py", help="Python files of your own with artifacts"
    )


def execute(args: argparse.Namespace) -> int:
    wrong = [name for name in args.files if not name.endswith(".py")]
    if wrong:
        raise ConfigError(
            f"{wrong[0]}: report shows all that is there and takes only Python files of your own; "
            "dpfl reproduce makes an artifact"
        )
    from dpfl_cli.papers import artifacts, own
    from dpfl_cli.reproduction.report import write_report

    mine = {one.name: one for name in args.files for one in own(Path(name))}
    outputs = outputs_dir()
    known = {**artifacts(), **mine}
    print(write_report(outputs, known, os.environ.get(COMMAND, "dpfl report")))
    return 0
