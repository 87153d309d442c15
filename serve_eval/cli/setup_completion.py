"""Complete command lines in a shell, and print the script that asks for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._options import command
from serve_eval.errors import PlanError, ServeEvalError

if TYPE_CHECKING:
    from serve_eval.plugins.setting import Declared


EXAMPLES = (
    ("Complete commands in this bash:", "serve-eval setup completion bash"),
    (
        "Keep the script for new shells of fish:",
        "serve-eval setup completion fish > serve-eval.fish",
    ),
)
_BASH = """\
_serve_eval() {
    local IFS=$'\\n'
    COMPREPLY=( $(_SERVE_EVAL_COMPLETE=1 "$1" -- "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null) )
    [[ ${#COMPREPLY[@]} -ne 1 || ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o default -o bashdefault -F _serve_eval serve-eval
"""
_ZSH = """\
(( $+functions[compdef] )) || { autoload -U compinit && compinit; }
_serve_eval() {
    local -a found
    local given=( "${(@)words[2,CURRENT]}" )
    found=( ${(f)"$(_SERVE_EVAL_COMPLETE=1 "${words[1]}" -- "${(@)given}" 2>/dev/null)"} )
    (( $#found )) || { _files; return; }
    compadd -S '' -- ${(M)found:#*=}
    compadd -- ${found:#*=}
}
compdef _serve_eval serve-eval
"""
_FISH = """\
function _serve_eval
    set -l words (commandline -opc) (commandline -ct)
    _SERVE_EVAL_COMPLETE=1 $words[1] -- $words[2..-1] 2>/dev/null
end
complete -c serve-eval -a '(_serve_eval)'
"""
SCRIPTS = {
    "bash": _BASH,
    "zsh": _ZSH,
    "fish": _FISH,
}


@command(examples=EXAMPLES)
def setup_completion(
    shell: Annotated[str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
) -> None:
    """Print the script that completes commands, options, tasks and runs in a shell.

    In bash: eval "$(serve-eval setup completion bash)", also as a line of ~/.bashrc; likewise zsh.
    In fish: serve-eval setup completion fish | source.
    """
    from serve_eval.cli._streams import emit
    from serve_eval.plugins.registry import nearest

    if shell not in SCRIPTS:
        raise PlanError(f"there is no script for {shell!r}.{nearest(shell, SCRIPTS)}")
    emit(SCRIPTS[shell])


OUTPUTS = Path("outputs")
MOST_SAMPLES = 2000
"""Most ids of samples that are offered."""
TASKS, LAUNCHERS = "serve_eval.tasks", "serve_eval.launchers"
LATEST = "latest"
_RUNS = ("run", "runs", "a", "b", "resume")
"""Parameters that take a run folder."""


def print_completions() -> None:
    """Print what the last argument of this process can become, a line each.

    The scripts of `serve-eval setup completion` set _SERVE_EVAL_COMPLETE for it. Nothing is printed
    where the shell completes file names.
    """
    words = sys.argv[1:]
    words = words[1:] if words[:1] == ["--"] else words
    for one in complete(words[:-1], words[-1] if words else ""):
        sys.stdout.write(f"{one}\n")


def complete(before: Sequence[str], incomplete: str) -> list[str]:
    """Return what the last word can become, after the words before it."""
    command, rest = _find_command(before)
    if command is None:
        return []
    if not isinstance(command, Mapping):
        return _complete_parameter(command, rest, incomplete)
    return _begin(("--help", "--version", *command) if not before else command, incomplete)


def _find_command(words: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the command that words lead to and its own words; a mapping stands for a group."""
    from serve_eval.cli._commands import COMMANDS, CommandEntry, Family, find_entry
    from serve_eval.cli.app import make_command

    if not words:
        return COMMANDS, ()
    known: Mapping[str, CommandEntry | Family] = COMMANDS
    for count in range(1, len(words) + 1):
        entry = find_entry(words[:count])
        if not isinstance(entry, Family):
            made = None if entry is None else make_command(*words[:count])
            return made, words[count:]
        known = entry.commands
    return known, ()


def _complete_parameter(command: Any, words: Sequence[str], incomplete: str) -> list[str]:
    """Return the values of the option before the last word, or options, or an argument's values."""
    options = {
        flag: one
        for one in command.params
        if one.param_type_name == "option" and not one.hidden
        for flag in (*one.opts, *one.secondary_opts)
    }
    last = options.get(words[-1]) if words else None
    if last is not None and not last.is_flag:
        if "--set" in last.opts:
            return _begin(_list_keys(words, options, command.own), incomplete)
        return _list_values(last.name, incomplete)
    if incomplete.startswith("-"):
        return _begin((*(flag for flag in options if flag.startswith("--")), "--help"), incomplete)
    arguments = [one.name for one in command.params if one.param_type_name == "argument"]
    given = list(_list_given(words, options))
    if not arguments:
        return []
    name = arguments[min(len(given), len(arguments) - 1)]
    if name == "ids":
        return _begin(_list_samples(given[0] if given else LATEST), incomplete)
    return _list_values(name, incomplete)


def _list_given(words: Sequence[str], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the arguments among words: neither options nor their values."""
    skip = False
    for word in words:
        option = options.get(word)
        if not skip and option is None and not word.startswith("-"):
            yield word
        skip = option is not None and not option.is_flag


def _list_values(name: str, incomplete: str) -> list[str]:
    """Return the values of a parameter; nothing if it takes a file, a number or a text."""
    if name in _RUNS:
        return _begin(_list_runs(), incomplete)
    list_names = _NAMES.get(name)
    if list_names is None:
        return []
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{one}" for one in _begin(list_names(), last)]


def _list_keys(
    words: Sequence[str], options: Mapping[str, Any], own: Sequence[Declared]
) -> Iterator[str]:
    """Yield what --set takes: options of the command, keys of a plan, and options of what is given.

    These are those of the tasks and of the launcher on the line.
    """
    from serve_eval.plan.settings import list_plan_keys
    from serve_eval.plugins import registry

    yield from (f"{one.place}=" for one in own)
    yield from (f"{key}=" for key in list_plan_keys())
    for flag, value in pairwise(words):
        name = options[flag].name if flag in options else ""
        if name in ("tasks", "launcher"):
            for one in value.split(","):
                folder = TASKS if name == "tasks" else LAUNCHERS
                if one in registry.names(folder):
                    named = registry.options_of(registry.function(folder, one))
                    yield from (f"{one if name == 'tasks' else name}.{key}=" for key in named)


def _list_samples(run: str) -> list[str]:
    """Return the ids of the samples of a run, at most MOST_SAMPLES."""
    from serve_eval.cli._run_folder import find_run
    from serve_eval.workflows.show.folders import find_runs

    try:
        folder = find_run(Path(run))
        sources = [one for of in find_runs(folder or Path()) for one in of.sources(None)]
        ids = (source.base(name) for source in sources for name in source.scores())
        return list(islice(dict.fromkeys(ids), MOST_SAMPLES))
    except (ServeEvalError, OSError):
        return []


def _list_references() -> Iterable[str]:
    from serve_eval.verdicts import references

    return sorted({file.stem for file in references.find_shipped_dir().glob("*.yaml")})


def _list_data_sets() -> Iterable[str]:
    from serve_eval.datasets.local import find_sources

    return find_sources()


def _list_runs() -> list[str]:
    """Return the folders in outputs/, the last one first, and the word for the last one."""
    found = sorted((str(one) for one in OUTPUTS.glob("*/") if not one.is_symlink()), reverse=True)
    return [*([LATEST] if found else []), *found]


def _list_alternatives(folder: str) -> Callable[[], Iterable[str]]:
    def list_names() -> Iterable[str]:
        from serve_eval.plugins import registry

        return registry.names(folder)

    return list_names


_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "tasks": _list_alternatives(TASKS),
    "task": _list_alternatives(TASKS),
    "launcher": _list_alternatives(LAUNCHERS),
    "verdict": _list_alternatives("serve_eval.verdicts.rules"),
    "reference": _list_references,
    "data_set": _list_data_sets,
    "data_sets": _list_data_sets,
    "kind": lambda: ("tasks", "scorers", "launchers", "verdicts", "presets", "datasets", "all"),
    "shell": lambda: ("bash", "zsh", "fish"),
    "order": lambda: ("random", "natural", "prefix", "longest"),
}
"""The values to offer for each parameter, by its name."""


def _begin(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
