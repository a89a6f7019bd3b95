"""`dpfl completion bash`: completion of commands, groups, options and keys. Install: eval "$(dpfl completion bash)"."""

from __future__ import annotations

import argparse

SCRIPT = r"""
_dpfl() {
    local current="${COMP_WORDS[COMP_CWORD]}"
    # bash splits words at '=': put key=value together again
    if [ "$current" = "=" ]; then current="${COMP_WORDS[COMP_CWORD-1]}="
    elif [ "$COMP_CWORD" -ge 2 ] && [ "${COMP_WORDS[COMP_CWORD-1]}" = "=" ]; then
        current="${COMP_WORDS[COMP_CWORD-2]}=$current"
    fi
    local words
    words=$(dpfl completion --words "${COMP_WORDS[1]}" " $current" 2>/dev/null) # the space: a word with a dash is no option
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "$current" in *=*) COMPREPLY=("${COMPREPLY[@]#*=}") ;; esac
    case "${COMPREPLY[0]}" in *=) compopt -o nospace ;; esac
}
complete -F _dpfl dpfl
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", nargs="?", choices=("bash",), help="prints the script to evaluate")
    parser.add_argument("--words", nargs=2, metavar=("COMMAND", "WORD"), help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    if args.words:
        command, current = args.words
        print("\n".join(words(command, current.strip())))
    else:
        print(SCRIPT)
    return 0


def words(command: str, current: str) -> list[str]:
    """What the word under the cursor can become."""
    from dpfl_cli.cli.calculate import CALCULATORS, FLAGS
    from dpfl_cli.cli.listing import GROUPS, documented, option_files
    from dpfl_cli.cli.main import COMMANDS
    from dpfl_cli.config.paths import conf_dir

    if command not in COMMANDS:
        return list(COMMANDS)
    if command == "reproduce":
        root = conf_dir() / "artifact"
        papers = sorted(path.name for path in root.iterdir() if path.is_dir())
        artifacts = sorted(f"{path.parent.name}/{path.stem}" for path in root.glob("*/*.yaml"))
        return ["all", *papers, *artifacts, *(f"scale={path.stem}" for path in option_files("scale"))]
    if command == "list":
        return list(GROUPS)
    if command == "runs":
        return ["list", "show", "compare", "export", "prune"]
    if command == "calculate" and current.startswith("-"):
        return [*FLAGS, "--plugin", "--help"]
    if command not in ("run", "calibrate", "calculate"):
        return []
    group, equals, _ = current.partition("=")
    if equals and group in GROUPS:
        return [f"{group}={path.stem}" for path in option_files(group)]
    keys = [f"{key}=" for key, _, _ in documented(conf_dir() / "config.yaml") if not key.startswith("hydra")]
    for name in GROUPS:
        for path in option_files(name):
            rows = documented(path)
            prefix = "" if "@package _global_" in path.read_text() else f"{name.replace('/', '.')}."
            keys += [f"{prefix}{key}=" for key, _, _ in rows if not key.endswith(("name", "_target_"))]
    overrides = [*(f"{name}=" for name in GROUPS), *sorted(set(keys))]
    if command == "calculate":
        return [*CALCULATORS, *FLAGS, *overrides, "--plugin", "--help"]
    return [*overrides, "-m", "--help", "--cfg", "--plugin", "--quiet", "--debug"]
