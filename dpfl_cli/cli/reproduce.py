"""`dpfl reproduce`: tables and figures of the papers, beside the papers' own numbers.

dpfl reproduce fedexp/table4 [fedexp/fig1 ...] | fedexp | all  [scale=smoke|quick|paper]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import outputs_dir

EXIT_INCOMPLETE = 3
EXIT_MISMATCH = 3
PUBLISHED = "published"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="*",
        metavar="ARTIFACT | scale=SCALE",
        help="<paper>/<id>, a paper, all, or a yaml file of your own; scale=smoke|quick|paper (default: quick)",
    )
    parser.add_argument("--list", action="store_true", help="what there is, with minutes at each scale")
    parser.add_argument("--quiet", action="store_true", help="no progress; only the folders and the index at the end")
    parser.add_argument("--force", action="store_true", help="run again what is finished")
    parser.add_argument(
        "--check-published",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="compare published verdicts with what is expected (default: the outputs folder's published/)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.list:
        return _list()
    if args.check_published is not None:
        return _check(Path(args.check_published) if args.check_published else outputs_dir() / PUBLISHED)
    names, scale = _split(args.words)
    from dpfl_cli.reproduction.declaration import select_artifacts
    from dpfl_cli.reproduction.reproduce import check_scale, reproduce

    check_scale(scale)
    outputs = outputs_dir()

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    made = reproduce(select_artifacts(names), scale, outputs, say, quiet=args.quiet, force=args.force)
    incomplete = [one for one in made if not one.complete]
    for one in incomplete:
        for gap in one.gaps:
            print(f"dpfl: {one.job.artifact.name}: {gap}", file=sys.stderr)
    for one in made:
        print(one.folder)
    print(outputs / "artifacts" / "index.html")
    return EXIT_INCOMPLETE if incomplete else 0


def _split(words: list[str]) -> tuple[list[str], str]:
    """Artifact names and the scale."""
    scale, names = "quick", []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key == "scale":
            scale = value
        else:
            raise ConfigError(f"{word}: reproduce takes artifacts and scale=…, not {key}; {nearest(key, ['scale'])}")
    if not names:
        raise ConfigError(
            "reproduce what? Give an artifact, a paper or all, as dpfl reproduce fedexp/fig1 (dpfl reproduce --list)"
        )
    return names, scale


def _list() -> int:
    from dpfl_cli.reproduction.declaration import SCALES, artifact_names, load_artifact

    names = artifact_names()
    width = max(len(name) for name in names)
    print(
        f"{'artifact':<{width}}  {'  '.join(f'{scale:>6}' for scale in SCALES)}  minutes on two cores where nothing is done yet"
    )
    for name in names:
        artifact = load_artifact(name)
        minutes = [f"{artifact.scale(scale).minutes:g}" if artifact.trains else "0" for scale in SCALES]
        print(f"{name:<{width}}  {'  '.join(f'{one:>6}' for one in minutes)}  {artifact.declaration.title}")
    return 0


def _check(folder: Path) -> int:
    from dpfl_cli.reproduction.claims import check_published

    compared, lines = check_published(folder)
    for line in lines:
        print(f"dpfl: {line}", file=sys.stderr)
    print(f"{compared} published verdicts checked, {len(lines)} disagreements")
    return EXIT_MISMATCH if lines else 0
