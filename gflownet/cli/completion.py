"""gflownet completion: scripts that complete commands, options and their values in bash, zsh and fish."""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from gflownet.cli.arguments import COMMANDS, CommandLine, print_plain_messages, program, run_command

if TYPE_CHECKING:
    from gflownet.options import Option

# The scripts call the command with the words of the command line up to the cursor; it prints one candidate per line,
# with a tab and a description, and as first line "files" where file names complete the word, too.
_QUERY = "--words"
_FILES, _NO_FILES = "files", "words"
_PATH_METAVARS = {"RUN", "FILE", "FOLDER", "LOCATION", "PATH", "OUTPUT", "FILE|KEY=VALUE"}
_MAX_DESCRIPTION = 70

_BASH = r"""# bash completion of gflownet: source <(gflownet completion bash)
_gflownet_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" words=() current kind reply prefix
    read -ra words <<<"$line"
    [[ "$line" == *[[:space:]] ]] && words+=("")
    current="${words[-1]}"
    reply="$("${words[0]}" completion --words "${words[@]:1}" 2>/dev/null)" || return
    COMPREPLY=()
    { read -r kind; while IFS=$'\t' read -r reply _; do COMPREPLY+=("$reply"); done; } <<<"$reply"
    # bash splits words at = and :, and replaces only what follows the last of them
    prefix="${current%"${current##*[=:]}"}"
    [[ -n "$prefix" ]] && COMPREPLY=("${COMPREPLY[@]#"$prefix"}")
    if [[ "$kind" == files ]]; then
        compopt -o filenames 2>/dev/null
        while IFS= read -r reply; do COMPREPLY+=("$reply"); done < <(compgen -f -- "${current##*=}")
    fi
    if [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -F _gflownet_complete gflownet
"""
_ZSH = r"""#compdef gflownet
# zsh completion of gflownet: source <(gflownet completion zsh), after compinit
_gflownet() {
    local -a lines plain open
    local line word about
    lines=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    for line in "${(@)lines[2,-1]}"; do
        word="${line%%$'\t'*}"; about="${line#*$'\t'}"
        [[ "$line" == *$'\t'* ]] || about=""
        if [[ "$word" == *= ]]; then open+=("${word//:/\\:}:$about"); else plain+=("${word//:/\\:}:$about"); fi
    done
    (( $#plain )) && _describe -t values value plain
    (( $#open )) && _describe -t values option open -S ''
    if [[ "${lines[1]}" == files ]]; then compset -P '*='; _files; fi
    (( compstate[nmatches] ))
}
compdef _gflownet gflownet
"""
_FISH = r"""# fish completion of gflownet: gflownet completion fish | source
function __gflownet_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] completion --words $words[2..-1] 2>/dev/null)
    printf '%s\n' $lines[2..-1]
    if test "$lines[1]" = files
        __fish_complete_path (commandline -ct)
    end
end
complete -c gflownet -f -a '(__gflownet_complete)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@dataclass(frozen=True)
class Candidate:
    """A completion of the last word."""

    text: str
    description: str = ""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status: 0, 2 for an error of the user."""
    arguments = list(sys.argv[1:] if argv is None else argv)

    def complete() -> None:
        if arguments[:1] == [_QUERY]:
            print(reply(arguments[1:] or [""]))
        else:
            print(SCRIPTS[command_line().parse_args(arguments).shell], end="")

    return run_command(complete)


def command_line() -> CommandLine:
    """Return the parser."""
    parser = CommandLine(
        prog=program("completion"),
        description="Print a script that completes the commands, options, config names and values of gflownet.",
        epilog="bash: source <(gflownet completion bash), in ~/.bashrc. zsh: source <(gflownet completion zsh), in "
        "~/.zshrc after compinit. fish: gflownet completion fish > ~/.config/fish/completions/gflownet.fish",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help=", ".join(SCRIPTS))
    return parser


def reply(words: Sequence[str]) -> str:
    """Return the answer for a completion script.

    Args:
        words: after gflownet, up to the cursor; the last one is completed.
    """
    candidates, with_files = candidates_of(words)
    lines = [f"{candidate.text}\t{_short(candidate.description)}".rstrip() for candidate in candidates]
    return "\n".join([_FILES if with_files else _NO_FILES, *lines])


def _short(description: str) -> str:
    return textwrap.shorten(re.split(r"[;:(]", description)[0], _MAX_DESCRIPTION, placeholder=" ...").rstrip(".")


def candidates_of(words: Sequence[str]) -> tuple[list[Candidate], bool]:
    """Return the completions of the last word, and whether files complete it, too."""
    *before, current = words
    name = before[0] if before else ""
    if not before or (name == "help" and len(before) == 1):
        candidates = [Candidate(name, command.summary) for name, command in COMMANDS.items()]
        if not before:
            candidates += [Candidate("help", "show the help of a command"), Candidate("--help"), Candidate("--version")]
        return _starting_with(current, candidates), False
    command = COMMANDS.get(name)
    if command is None:
        return [], False
    parser = command.load().command_line()
    while (subcommands := parser.subcommands()) and any(word in subcommands for word in before[1:]):
        name = next(word for word in before[1:] if word in subcommands)
        before, parser = before[before.index(name, 1) :], subcommands[name]
    return _of_parser(parser, before[1:], current, command=name)


def _of_parser(
    parser: CommandLine, before: Sequence[str], current: str, *, command: str
) -> tuple[list[Candidate], bool]:
    """Return the completions of an argument; in some commands KEY=VALUE of a config is an argument, too."""
    actions = {name: action for action in parser._actions for name in action.option_strings}
    flag, equals, _ = current.partition("=")
    option = actions.get(flag) if equals else actions.get(before[-1]) if before else None
    if option is not None and option.nargs != 0:
        prefix = f"{flag}=" if equals else ""
        candidates = [Candidate(prefix + value) for value in _values(option, command)]
        return _starting_with(current, candidates), option.metavar in _PATH_METAVARS or option.dest == "config"
    if current.startswith("-"):
        candidates = [Candidate(name, action.help or "") for name, action in actions.items() if len(name) > 2]
        return _starting_with(current, candidates), False
    candidates = [Candidate(name, sub.description or "") for name, sub in parser.subcommands().items()]
    positional = [action for action in parser._actions if not action.option_strings]
    candidates += [Candidate(str(value)) for action in positional for value in action.choices or ()]
    is_path = any(action.metavar in _PATH_METAVARS for action in positional)
    if command in _OPTIONS_OF:
        keys = _keys(_OPTIONS_OF[command](before, current), current)
        return _starting_with(current, [*candidates, *keys]), is_path or "=" in current
    return _starting_with(current, _unique(candidates)), is_path


def _unique(candidates: Sequence[Candidate]) -> list[Candidate]:
    return list({candidate.text: candidate for candidate in reversed(candidates)}.values())[::-1]


def _values(action: argparse.Action, command: str) -> list[str]:
    """Return the values of an option with choices or the name of a config."""
    if action.dest == "config":
        from gflownet import config
        from gflownet.language import config as language

        return config.config_names(language.ROOM) if command == "language" else config.config_names()
    return [str(choice) for choice in action.choices or ()]


def _options_of_run(before: Sequence[str], current: str) -> dict[str, Option]:
    """Return the options of a run, those of the chosen classes included."""
    from gflownet.config import OPTIONS
    from gflownet.options import find_options

    options = dict(OPTIONS)
    for group, schema in _schemas(before, current.partition("=")[0]).items():
        options |= {} if schema is None else {item.key: item for item in find_options(schema, f"{group}.")}
    return options


def _options_of_language(before: Sequence[str], current: str) -> dict[str, Option]:
    """Return the options of gflownet language, without those that FILE and --from set."""
    from gflownet.language.config import FLAG_KEYS, OPTIONS

    return {key: item for key, item in OPTIONS.items() if key not in FLAG_KEYS}


# Command -> (words before, current word) -> its options.
_OPTIONS_OF: dict[str, Callable[[Sequence[str], str], dict[str, Option]]] = {
    "train": _options_of_run,
    "compare": _options_of_run,
    "language": _options_of_language,
}


def _keys(options: Mapping[str, Option], current: str) -> Iterator[Candidate]:
    """Yield KEY= for options, or KEY=VALUE after the =."""
    key, equals, _ = current.partition("=")
    if not equals:
        yield from (Candidate(f"{name}=", item.help) for name, item in options.items())
    elif key in options:
        yield from (Candidate(f"{key}={value}") for value in _values_of_type(key, options[key].type_hint))


def _schemas(before: Sequence[str], key: str) -> dict[str, Any]:
    """Return the options of the classes that the words before choose, where the key is one of theirs."""
    from gflownet.config import OPTIONS, command_config

    if not key.startswith(tuple(f"{name}." for name, item in OPTIONS.items() if item.type_name == "group")):
        return {}
    from gflownet.cli.parser import parse
    from gflownet.run.extensions import choices

    try:
        command = parse(before)
        chosen = choices(command_config(command.config, command.overrides))
        points = [(point, name) for point, name in chosen if point.options_key and key.startswith(point.options_key)]
        return {point.options_key: point.load(name).Config for point, name in points}
    except ValueError:  # a wrong word before has no completions
        return {}


def _values_of_type(key: str, hint: Any) -> list[str]:
    """Return the values of an option: of an enumeration, true and false, or the names of built-in classes."""
    from gflownet.run.extensions import EXTENSION_POINTS

    for point in EXTENSION_POINTS:
        if point.key == key:
            return list(point)
    values = [value for part in (hint, *get_args(hint)) if get_origin(part) is Literal for value in get_args(part)]
    if hint is bool:
        values = [True, False]
    return [str(value).lower() if isinstance(value, bool) else str(value) for value in values]


def _starting_with(start: str, candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.text.startswith(start)]


if __name__ == "__main__":
    print_plain_messages()
    sys.exit(main())
