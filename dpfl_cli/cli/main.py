"""The entry point `dpfl`: finds the command, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType

from dpfl_cli import __version__
from dpfl_cli.config.errors import ConfigError, DpflError, nearest

# name -> (module, one line). Modules are imported when their command is called, so that `dpfl --help` is quick.
COMMANDS = {
    "run": ("run", "one private federated run, or a grid of them with -m"),
    "reproduce": ("reproduce", "tables and figures of the papers, beside the papers' own numbers"),
    "runs": ("runs", "list, show, compare, export and prune finished runs"),
    "account": ("account", "price runs under every accountant that supports their ledger"),
    "calibrate": ("calibrate", "the noise that meets a target epsilon and delta"),
    "calculate": ("calculate", "what a paper's closed forms advise: local steps, iterations and rounds (scaffnew)"),
    "data": ("data", "what data there is, and fetching it"),
    "list": ("listing", "every option of every group, with its parameters"),
    "doctor": ("doctor", "what this machine has and whether dpfl works on it"),
    "completion": ("completion", 'shell completion: eval "$(dpfl completion bash)"'),
}
EXIT_BUG = 1
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code.

    0 done, 1 a bug in dpfl, 2 wrong use or config, 3 some runs failed, 130 interrupted; --debug changes what is shown only.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    _show_log(quiet="--quiet" in words)
    try:
        return _dispatch(words)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exception(error)
        line, code = _explained(error)
        print(f"dpfl: {line}", file=sys.stderr)
        return code


def _explained(error: BaseException) -> tuple[str, int]:
    """An error as one line and an exit code."""
    if isinstance(error, DpflError):
        return str(error), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return f"interrupted; {str(error) or 'the same command goes on from the last checkpoint'}", EXIT_INTERRUPTED
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}; --debug shows where", EXIT_BUG


def _show_log(quiet: bool) -> None:
    """News of the library (a kernel being compiled, a fall-back) go to standard error, one line each."""
    logger = logging.getLogger("dpfl")
    logger.handlers = [logging.StreamHandler()]
    logger.handlers[0].setFormatter(logging.Formatter("dpfl: %(message)s"))
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"dpfl {__version__}")
        return 0
    name, rest = words[0], words[1:]
    if name not in COMMANDS:
        raise ConfigError(f"{name}: no such command; {nearest(name, COMMANDS)}")
    module = command_module(name)
    if hasattr(module, "run"):  # Hydra owns this command's arguments
        return int(module.run(rest))
    parser = _Parser(prog=f"dpfl {name}", description=COMMANDS[name][1])
    module.configure(parser)
    return int(module.execute(parser.parsed(rest)))


def command_module(name: str) -> ModuleType:
    """The module of a command."""
    return importlib.import_module(f"dpfl_cli.cli.{COMMANDS[name][0]}")


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line, like all others, and whose options may stand anywhere."""

    def parsed(self, words: list[str]) -> argparse.Namespace:
        """The arguments, options mixed with others unless the command has actions with options of their own."""
        return self.parse_args(words) if self._subparsers is not None else self.parse_intermixed_args(words)

    def error(self, message: str) -> None:  # type: ignore[override]
        command = self.prog.removeprefix("dpfl ")  # every error is printed after the program's name
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        flags = [flag for flag in self._option_string_actions if flag.startswith("--")]
        if unknown.startswith("--") and message.startswith("unrecognized"):
            raise ConfigError(f"{command}: {unknown.partition('=')[0]}: no such option; {nearest(unknown, flags)}")
        raise ConfigError(f"{command}: {message}; {self.prog} --help")


def usage() -> str:
    """The text of `dpfl --help`."""
    width = max(len(name) for name in COMMANDS)
    lines = [f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items()]
    return "\n".join(
        [
            "dpfl: a laboratory for differentially private federated learning",
            "",
            "usage: dpfl COMMAND [ARGUMENTS]   (dpfl COMMAND --help)",
            "",
            *lines,
            "",
            "  dpfl run algorithm=fedexp dp=ldp            one run",
            "  dpfl run -m algorithm=fedexp,fedavg dp=ldp  a grid",
            "  dpfl reproduce fedexp/table4                a table of a paper",
            "  dpfl calculate scaffnew dataset=mushrooms dp.epsilon=3.3",
            "                                              local steps and iterations, in closed form",
            "",
            "Exit codes: 0 done, 1 a bug in dpfl, 2 wrong use or config, 3 some runs failed or diverged, 130 interrupted.",
            "--debug shows the traceback of an error.",
        ]
    )


def entry() -> None:
    """Console script."""
    code = main()
    plugins = sys.modules.get("dpfl_cli.cli.plugins")
    if plugins is None or not os.environ.get(plugins.ENVIRONMENT):  # what a plugin leaves may have an end of its own
        gc.freeze()  # what is left goes with the process: the interpreter would look through it for most of a second
    sys.exit(code)


if __name__ == "__main__":
    entry()
