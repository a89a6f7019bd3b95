"""The entry point `dpfl`: finds the command, and turns errors into one line and an exit code."""

import argparse
import contextlib
import gc
import importlib
import io
import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

from dpfl_cli import __version__
from dpfl_cli.cli.columns import aligned
from dpfl_cli.config.errors import ConfigError, DpflError, nearest, place_in_plugin, shortened
from dpfl_cli.config.paths import note_command, own_process

# name -> one line. Modules (of the same name) are imported when their command is called, so that
# `dpfl --help` is quick.
COMMANDS = {
    "run": "one private federated run, or a grid of them with -m",
    "reproduce": "tables and figures of the papers, beside the papers' own numbers",
    "report": "a site, which opens from disk, of what reproduces: every table, figure and claim",
    "runs": "list, show, compare, export and prune finished runs",
    "account": "the epsilon of finished runs, under every accountant that supports their ledger",
    "calibrate": "the noise that meets a target epsilon, or the epsilon of the noise that is set",
    "audit": "a lower bound on a run's epsilon, from canaries, beside what it claims",
    "calculate": "what a paper's closed forms advise: local steps, iterations, rounds (scaffnew)",
    "data": "the data sets, and how to fetch them",
    "check": "attacks on your own method or model, to see whether its guarantee holds",
    "new": "a commented file to begin your own algorithm, mechanism, model, data set, partitioner "
    "or artifact, and its test",
    "list": "every option of every group, with its parameters",
    "doctor": "what this machine has, and whether dpfl works on it",
    "completion": 'shell completion: eval "$(dpfl completion bash)"',
}
EXIT_BUG = 1
EXIT_INTERRUPTED = 130
USAGE = """\
dpfl: a laboratory for differentially private federated learning

usage: dpfl COMMAND [ARGUMENTS]   (dpfl COMMAND --help)

{commands}

  dpfl run algorithm=fedexp dp=ldp            one run
  dpfl run -m algorithm=fedexp,fedavg dp=ldp  a grid
  dpfl reproduce fedexp/table4                a table of a paper
  dpfl report                                 what reproduces, as a site
  dpfl calculate scaffnew dataset=mushrooms dp.epsilon=3.3
                                              local steps and iterations, in closed form

Exit codes: 0 done, 1 a bug in dpfl, 2 wrong use or config, 3 some runs failed or diverged,
130 interrupted. --debug shows the traceback of an error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code.

    0 done, 1 a bug in dpfl, 2 wrong use or config, 3 some runs failed, 130 interrupted; --debug
    changes what is shown only.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by who started dpfl: what is said there is for nobody
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+"))
        elif name != "stdin" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a terminal without our signs
    show_log(quiet="--quiet" in words)
    code = 0
    try:
        note_command(words)
        os.getcwd()
        code = _dispatch(words)
        sys.stdout.flush()  # while an error can still be told of
    except BrokenPipeError:
        pass
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        line, code = _explained(error)
        with contextlib.suppress(OSError):  # nobody reads it
            print(f"dpfl: {line}", file=sys.stderr)
    _end_output()
    return code


def _end_output() -> None:
    """Writes what is left of standard output; drops it where that fails, for the interpreter would
    try it again, and say of its own what went wrong.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explained(error: BaseException) -> tuple[str, int]:
    """An error as one line and an exit code."""
    if isinstance(error, DpflError):
        return str(error) + place_in_plugin(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        advice = str(error) or "the same command goes on from the last checkpoint"
        return f"interrupted; {advice}", EXIT_INTERRUPTED
    if isinstance(error, OSError):
        nameless = "the working folder" if isinstance(error, FileNotFoundError) else "the output"
        place = error.filename or nameless
        return f"{shortened(str(place))}: {error.strerror or error}", ConfigError.exit_code
    text = " ".join(str(error).split()) or "no message"
    if isinstance(error, MemoryError):
        return f"not enough memory ({text}); make the run smaller", ConfigError.exit_code
    shown = f"{type(error).__name__}: {text}"
    if place := place_in_plugin(error):
        return shown + place, ConfigError.exit_code
    return f"{shown}; --debug shows where", EXIT_BUG


def show_log(quiet: bool) -> None:
    """News of the library (a kernel being compiled, a fall-back) go to standard error, one line
    each.
    """
    logger = logging.getLogger("dpfl")
    logger.handlers = [logging.StreamHandler()]
    logger.handlers[0].setFormatter(logging.Formatter("dpfl: %(message)s"))
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(USAGE.format(commands="\n".join(aligned(COMMANDS.items(), "  "))))
        return 0 if words else 2
    if words[0] == "--version":
        print(f"dpfl {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        raise ConfigError(f"{name}: no such command; {nearest(name, COMMANDS)}")
    module, parser = command_parser(name)
    try:
        mixed = parser._subparsers is None  # options may stand anywhere, but for those of actions
        args = parser.parse_intermixed_args(rest) if mixed else parser.parse_args(rest)
    except SystemExit:  # of --help; errors are lines of ours
        return 0
    try:
        return int(module.execute(args))
    except SystemExit as stop:  # of a user's own code: no command of ours has one
        if isinstance(stop.__context__, BrokenPipeError):  # but for what prints tables
            raise stop.__context__ from None
        place = place_in_plugin(stop)
        raise ConfigError(f"SystemExit: {stop}; leave it out of your code{place}") from stop


def command_parser(name: str) -> "tuple[ModuleType, _Parser]":
    """A command's module, and what takes its arguments."""
    module = importlib.import_module(f"dpfl_cli.cli.{name}")
    parser = _Parser(
        prog=f"dpfl {name}",
        description=getattr(module, "DESCRIPTION", COMMANDS[name]),
        conflict_handler="resolve",
    )
    if hasattr(module, "EPILOG"):  # laid out in lines
        parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, module.EPILOG
    if hasattr(module, "configure"):  # it takes arguments
        module.configure(parser)
    return module, parser


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, like all others."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """An action of a command refuses what it does not know itself, with the options it has."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self.prog.count(" ") > 1:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        command = self.prog.removeprefix("dpfl ")  # errors are printed after the program's name
        if unknown := re.match(r"unrecognized arguments: (--[^ =]*)", message):
            flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
            hint = nearest(unknown[1], [*flags, "--debug"])
            raise ConfigError(f"{command}: {unknown[1]}: no such option; {hint}")
        if wrong := re.match(
            r"argument (.*): invalid choice: '(.*)' \(choose from (.*)\)", message
        ):
            hint = nearest(wrong[2], re.findall(r"[^', ]+", wrong[3]))
            raise ConfigError(f"{command}: {wrong[1]} {wrong[2]}: {hint}")
        raise ConfigError(f"{command}: {message}; {self.prog} --help")


def entry() -> None:
    """Console script."""
    gc.set_threshold(50_000)  # looking through what is imported, which stays, took a fifth of it
    own_process()
    code = main()
    gc.freeze()  # it goes with the process: looking through it takes half a second
    sys.exit(code)


if __name__ == "__main__":
    entry()
