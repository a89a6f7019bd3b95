"""`dpfl reproduce`: tables and figures of the papers, beside the papers' own numbers.

dpfl reproduce fedexp/table4 [fedexp/fig1 ...] | fedexp | all  [scale=smoke|quick|paper] [--publish]
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from dpfl_cli.cli.start import importing
from dpfl_cli.config.errors import ConfigError, nearest
from dpfl_cli.config.paths import outputs_dir

EXIT_INCOMPLETE = 3
EXIT_MISMATCH = 3
WIDTH = 100  # of the list


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
        "--publish", action="store_true", help="copy what was finished to the outputs folder's published/, with an index of it"
    )
    parser.add_argument(
        "--check-published",
        nargs="?",
        const="",
        metavar="FOLDER",
        help="hold what is published against its declarations and expectations (default: the outputs folder's published/)",
    )


def execute(args: argparse.Namespace) -> int:
    if args.list:
        return _list()
    if args.check_published is not None:
        return _check(Path(args.check_published) if args.check_published else None)
    names, scale = _split(args.words)
    with importing():
        from dpfl_cli.reproduction.declaration import select_artifacts
        from dpfl_cli.reproduction.published import publish_artifacts, published_root
        from dpfl_cli.reproduction.reproduce import check_scale, reproduce

    check_scale(scale)
    artifacts = select_artifacts(names)
    own = [artifact.path for artifact in artifacts if artifact.paper == "local"]
    if args.publish and own:
        raise ConfigError(f"{own[0]}: --publish is for artifacts that come with dpfl; put it into conf/artifact/<paper>/ first")
    outputs = outputs_dir()

    def say(line: str) -> None:
        if not args.quiet:
            print(line, file=sys.stderr, flush=True)

    made = reproduce(artifacts, scale, outputs, say, quiet=args.quiet, force=args.force)
    incomplete = [one for one in made if not one.complete]
    for one in incomplete:
        for gap in one.gaps:
            print(f"dpfl: {one.job.artifact.name}: {gap}", file=sys.stderr)
    for one in made:
        print(one.folder)
    print(outputs / "artifacts" / "index.html")
    if args.publish:
        whole = [one.job.artifact.name for one in made if one.complete]
        for folder in publish_artifacts(outputs, whole, scale):
            print(folder)
        print(published_root(outputs) / "index.html")
    return EXIT_INCOMPLETE if incomplete else 0


def _split(words: list[str]) -> tuple[list[str], str]:
    """Artifact names and the scale."""
    scale, names = "", []
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            names.append(word)
        elif key == "scale":
            if scale:
                raise ConfigError(f"{word}: scale={scale} was given already; one pass has one scale")
            scale = value
        else:
            raise ConfigError(f"{word}: reproduce takes artifacts and scale=…, not {key}; {nearest(key, ['scale'])}")
    if not names:
        raise ConfigError(
            "reproduce what? Give an artifact, a paper or all, as dpfl reproduce fedexp/fig1 (dpfl reproduce --list)"
        )
    return names, scale or "quick"


def _list() -> int:
    from dpfl_cli.reproduction.declaration import SCALES, artifact_names, load_artifact

    names = artifact_names()
    width = max(len(name) for name in names)
    print(f"{'artifact':<{width}}  {'  '.join(f'{scale:>6}' for scale in SCALES)}  minutes on two cores for what is not done yet")
    for name in names:
        artifact = load_artifact(name)
        borrows = artifact.used is not None and not artifact.declaration.runs
        minutes = ["–" if borrows else f"{artifact.scale(scale).minutes:g}" if artifact.trains else "0" for scale in SCALES]
        start = f"{name:<{width}}  {'  '.join(f'{one:>6}' for one in minutes)}  "
        of = f" (runs of {artifact.used.name})" if borrows and artifact.used is not None else ""
        print(start + textwrap.shorten(artifact.declaration.title, WIDTH - len(start) - len(of), placeholder=" …") + of)
    return 0


def _check(folder: Path | None) -> int:
    from dpfl_cli.reproduction.published import check_published, published_root

    compared, lines = check_published(folder or published_root(outputs_dir()))
    for line in lines:
        print(f"dpfl: {line}", file=sys.stderr)
    print(f"{compared} published verdicts checked, {len(lines)} disagreements")
    return EXIT_MISMATCH if lines else 0
