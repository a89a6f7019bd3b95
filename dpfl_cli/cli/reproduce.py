"""`dpfl reproduce`: tables and figures of the papers, beside the papers' own numbers.

dpfl reproduce fedexp/table4 [fedexp/fig1 ...] | fedexp | all | mine.py  [scale=smoke|quick|paper]
[seeds=12|5-16]
--list and --check-published are of all where nothing is named.
"""

import argparse
import contextlib
import math
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dpfl_cli.config.errors import AbsentData, AbsentGpu, ConfigError
from dpfl_cli.config.paths import COMMAND, outputs_dir
from dpfl_cli.simulation.plugins import add_plugin_option, load_plugins, pass_on
from dpfl_cli.simulation.signals import handled

if TYPE_CHECKING:
    from dpfl_cli.reproduction.artifact import Artifact

AGAIN = 0.05  # seconds until the time is looked at again
# what Ctrl-C comes to where nobody sees to it; jobs in the background ignore it
UNHANDLED = (signal.default_int_handler, signal.SIG_DFL, signal.SIG_IGN, None)
EXIT_FAILED = 3  # an artifact is incomplete, or a published one not as declared


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ARTIFACT | scale=SCALE | seeds=SEEDS",
        help="<paper>/<id>, a paper, all, or a Python file of your own; "
        "scale=smoke|quick|paper (default: quick); seeds=12 (0 to 11) or seeds=5-16 in place of "
        "the declared ones, into a folder of their own",
    )
    add_plugin_option(parser)
    flags = {
        "--list": "list all artifacts, with minutes at each scale",
        "--commands": "print the dpfl run lines that the artifacts amount to; runs nothing",
        "--dry-run": "print what would be run and what it costs; runs nothing",
        "--quiet": "no progress; only the folders and the report at the end",
        "--force": "make finished runs again",
        "--publish": "copy finished artifacts to published/ in the outputs folder, with an index",
    }
    for flag, what in flags.items():
        parser.add_argument(flag, action="store_true", help=what)
    parser.add_argument(
        "--at-most",
        type=float,
        metavar="MINUTES",
        help="stop after so many minutes and keep what is done; the same command then goes on. "
        "Artifacts come shortest first, and last those whose times are measured",
    )
    parser.add_argument(
        "--check-published",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="compare what is published with its declarations and with the recorded findings "
        "(default: published/ in the outputs folder)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.check_published and not Path(args.check_published).is_dir():  # names an artifact
        args.words, args.check_published = [*args.words, args.check_published], ""
    scales, seeds = (
        [word for word in args.words if word.startswith(start)] for start in ("scale=", "seeds=")
    )
    names = [word for word in args.words if word not in (*scales, *seeds)]
    for word in names:
        if "=" in word:
            raise ConfigError(f"{word}: reproduce takes artifacts, scale=… and seeds=…")
    showing = args.list or args.check_published is not None
    if showing and (given := scales + seeds):
        raise ConfigError(f"{given[0]}: --list and --check-published are of every scale; drop it")
    if not (names or showing) or len(scales) > 1 or len(seeds) > 1:
        raise ConfigError(
            "reproduce what? Give an artifact, a paper or all, and at most one scale, as dpfl "
            "reproduce fedexp/fig1 scale=quick (dpfl reproduce --list)"
        )
    if seeds and args.publish:
        raise ConfigError(f"{seeds[0]}: what is published has the declared seeds; drop it")
    from dpfl_cli.papers import artifacts as papers
    from dpfl_cli.papers import select

    load_plugins(args.plugin)
    pass_on(args.plugin)
    chosen = select(names or ["all"])
    if args.list:
        return _list(chosen)
    if args.check_published is not None:
        return _check(args.check_published, chosen, args.quiet)

    from dpfl_cli.reproduction.grid import commands, with_seeds
    from dpfl_cli.reproduction.published import publish_artifact
    from dpfl_cli.reproduction.report import write_report
    from dpfl_cli.reproduction.reproduce import dry_run, reproduce

    scale = scales[0].removeprefix("scale=") if scales else "quick"
    which = _seeds(seeds[0]) if seeds else None
    artifacts = [with_seeds(one.at(scale), which) for one in chosen]
    if args.at_most is not None:
        if not 0 < args.at_most < math.inf:
            raise ConfigError(f"--at-most {args.at_most:g}: a number of minutes above 0")

        def order(artifact: "Artifact") -> tuple[bool, float]:
            """The shortest first; last what is run anew every time, for its times."""
            exclusive = any(run.exclusive for run in artifact.declared)
            return exclusive, artifact.size.minutes

        artifacts = sorted(artifacts, key=order)
    own = [artifact.path for artifact in artifacts if artifact.paper is None]
    if args.publish and own:
        raise ConfigError(f"{own[0]}: --publish is for artifacts of a paper that comes with dpfl")
    if args.commands:
        for artifact in artifacts:
            print(f"# {artifact.name}: {artifact.title}")
            print(*commands(artifact), sep="\n")
        return 0
    outputs = outputs_dir()
    gaps: list[str] = []

    without = partial(left_out, names, gaps)
    if args.dry_run:
        print(*dry_run(artifacts, outputs, args.quiet, args.force, without), sep="\n")
        return 0

    with _interrupted_after(args.at_most) if args.at_most else contextlib.nullcontext():
        for one in reproduce(artifacts, outputs, args.quiet, args.force, without):
            print(one.folder, flush=True)
            if args.publish and not one.gaps:
                print(publish_artifact(outputs, one.job.artifact), flush=True)
            gaps += [f"{one.job.artifact.name}: {gap}" for gap in one.gaps]
    for gap in gaps:
        print(f"dpfl: {gap}", file=sys.stderr)
    known = papers() | {one.name: one for one in artifacts}
    if not seeds:  # the report is of what is declared
        print(write_report(outputs, known, os.environ[COMMAND], [one.name for one in artifacts]))
    return EXIT_FAILED if gaps else 0


def _seeds(word: str) -> range:
    """Those of seeds=12 or seeds=5-16; none of what is neither."""
    found = re.fullmatch(r"seeds=(?:(\d{1,9})-)?(\d{1,9})", word)
    if found is None:
        return range(0)
    first, last = found.groups()
    return range(int(last)) if first is None else range(int(first), int(last) + 1)


def left_out(
    names: Sequence[str], gaps: list[str], artifact: "Artifact", error: AbsentData
) -> bool:
    """Whether the rest is made without it: not where it was called by its own name. Where data are
    not here it is a gap.
    """
    named = artifact.name in names or artifact.paper is None
    if not named:
        line = f"left out: {error}"
        gaps += [line] * (not isinstance(error, AbsentGpu))
        print(f"dpfl: {line}", file=sys.stderr, flush=True)
    return not named


@contextlib.contextmanager
def _interrupted_after(minutes: float) -> Iterator[None]:
    """As if Ctrl-C were pressed after so many minutes, as soon as rounds are run that see to it; an
    exception anywhere else might be lost.
    """

    def interrupt(number: int, frame: object) -> None:
        if signal.getsignal(signal.SIGINT) not in UNHANDLED:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(f"--at-most {minutes:g}: the time is over", file=sys.stderr)
            signal.raise_signal(signal.SIGINT)

    with handled(interrupt, signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, 60 * minutes, AGAIN)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _list(chosen: "Sequence[Artifact]") -> int:
    from dpfl_cli.reproduction.artifact import SCALES

    width = max(len(one.name) for one in chosen)
    scales = "  ".join(f"{scale:>6}" for scale in SCALES)
    print(f"{'artifact':<{width}}  {scales}  minutes on two cores")
    for artifact in chosen:
        minutes = [
            "–" if artifact.runs_of else f"{artifact.at(scale).size.minutes:g}" for scale in SCALES
        ]
        start = f"{artifact.name:<{width}}  {'  '.join(f'{one:>6}' for one in minutes)}  "
        of = f" (runs of {artifact.runs_of})" if artifact.runs_of else ""
        left = [scale for scale in SCALES if artifact.at(scale).size.gpu]
        alone = f" (scale={left[0]} without a GPU by its own name alone)" if left else ""
        print(start + artifact.title + of + alone)
    return 0


def _check(folder: str, chosen: "Sequence[Artifact]", quiet: bool) -> int:
    """Of the outputs tree where no folder is named."""
    from dpfl_cli.papers import artifacts
    from dpfl_cli.reproduction.published import PUBLISHED, check_published

    root = Path(folder) if folder else outputs_dir() / PUBLISHED
    named = {one.name: one for one in chosen}
    compared, lines, absent = check_published(root, named, artifacts().keys() - named, quiet)
    for line in lines:
        print(f"dpfl: {line}", file=sys.stderr)
    print(f"{compared} published verdicts checked, {len(lines)} disagreements")
    if absent:
        print(f"not published yet: {', '.join(absent)}")
    return EXIT_FAILED if lines else 0
