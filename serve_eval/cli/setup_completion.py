"""Run `serve-eval setup completion`: print the script that completes commands in a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_eval.cli._options import command

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
    from serve_eval.errors import PlanError
    from serve_eval.plugins.registry import nearest

    if shell not in SCRIPTS:
        raise PlanError(f"there is no script for {shell!r}.{nearest(shell, SCRIPTS)}")
    emit(SCRIPTS[shell])
