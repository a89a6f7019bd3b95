"""`dpfl completion bash|zsh`: completion of commands, groups, options and keys. Install: eval
"$(dpfl completion bash)", of zsh after compinit.
"""

import argparse

from dpfl_cli.cli.list import GROUPS
from dpfl_cli.cli.main import COMMANDS, command_parser
from dpfl_cli.config.options import option_files, parameters

BASH = r"""
_dpfl() {
    local current="${COMP_WORDS[COMP_CWORD]}"
    # bash splits words at '=': put key=value together again
    if [ "$current" = "=" ]; then current="${COMP_WORDS[COMP_CWORD-1]}="
    elif [ "$COMP_CWORD" -ge 2 ] && [ "${COMP_WORDS[COMP_CWORD-1]}" = "=" ]; then
        current="${COMP_WORDS[COMP_CWORD-2]}=$current"
    fi
    local words
    # the space: a word with a dash is no option
    words=$(dpfl completion --words "${COMP_WORDS[*]:1:2}" " $current" 2>/dev/null)
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "$current" in *=*) COMPREPLY=("${COMPREPLY[@]#*=}") ;; esac
    case "${COMPREPLY[0]}" in *=) compopt -o nospace ;; esac
}
complete -o default -F _dpfl dpfl
"""
ZSH = r"""
_dpfl() {
    local -a found keys
    found=(${(f)"$(dpfl completion --words "${words[2,3]}" " ${words[CURRENT]}" 2>/dev/null)"})
    keys=(${(M)found:#*=}) found=(${found:#*=})
    compadd -S '' -a keys  # their values follow at once
    compadd -a found
    (( compstate[nmatches] )) || _files
}
compdef _dpfl dpfl
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shell", nargs="?", default="bash", choices=SCRIPTS, help="prints the script to evaluate"
    )
    parser.add_argument("--words", nargs=2, metavar=("COMMAND", "WORD"), help=argparse.SUPPRESS)


def execute(args: argparse.Namespace) -> int:
    if args.words:
        command, current = args.words
        print("\n".join(words(command, current.strip())))
    else:
        print(SCRIPTS[args.shell])
    return 0


def words(command: str, current: str) -> list[str]:
    """What the word under the cursor can become; nothing where bash's names of files are meant.

    Args:
      command: and the word after it, which may be an action with options of its own.
    """
    command, _, action = command.partition(" ")
    if command not in COMMANDS:
        return list(COMMANDS)
    if command == "reproduce" and not current.startswith("-"):
        from dpfl_cli.papers import artifacts

        papers = dict.fromkeys(name.partition("/")[0] for name in artifacts())
        scales = [f"scale={path.stem}" for path in option_files("scale")]
        return ["all", *papers, *artifacts(), *scales]
    _, parser = command_parser(command)
    for one in parser._actions:
        if isinstance(one.choices, dict) and action != current:
            parser = one.choices.get(action, parser)
    flags = [*parser._option_string_actions, "--debug"]
    if current.startswith("-"):
        return flags
    places = {one.dest: one for one in parser._actions if not one.option_strings}
    found = [str(choice) for one in places.values() for choice in one.choices or ()]
    if "overrides" not in places:
        return found
    group, equals, _ = current.partition("=")
    if equals and group in GROUPS:
        return [f"{group}={path.stem}" for path in option_files(group)]
    return [*found, *(f"{name}=" for name in GROUPS), *_keys(), *flags]


def _keys() -> list[str]:
    """Every key that an override can set, with its equals sign."""
    return sorted(
        {
            f"{key}="
            for group in ("", *GROUPS)  # first config.yaml
            for path in option_files(group)
            for key, *_ in parameters(group, path)
            if group or "hydra" not in key
        }
    )
