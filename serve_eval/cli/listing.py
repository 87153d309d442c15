"""`serve-eval list`: what can be named in a plan."""

from __future__ import annotations

import typer

NOT_BUILT = ("voxpopuli", "videomme", "mixed_modality_*")
"""Tasks of the original that ask by sound or by video."""


def listing(
    kind: str = typer.Argument("all", help="tasks, scorers, launchers, verdicts or all."),
) -> None:
    """List tasks, scorers of cases, launchers and verdict rules with their options."""
    from serve_eval import folders
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError
    from serve_eval.protocol import OPTIONS

    packages = {
        "tasks": "serve_eval.tasks",
        "scorers": folders.SCORERS,
        "launchers": "launchers",
        "verdicts": "serve_eval.verdicts",
    }
    if kind not in (*packages, "all"):
        raise PlanError(f"unknown kind {kind!r}.{folders.nearest(kind, [*packages, 'all'])}")
    for title, package in packages.items():
        if kind in (title, "all"):
            emit(f"{title}:\n")
            for name in folders.names(package):
                function = folders.function(package, name)
                member = folders.family_of(package, function)
                shown = f"{name}:{member.upper()}" if member else name
                emit(f"  {shown}: {folders.summary(package, name)}\n")
                options = folders.options_of(function)
                for option, parameter in options.items():
                    required = parameter.default is parameter.empty
                    emit(f"      {option}: {'required' if required else repr(parameter.default)}\n")
            if title == "tasks":
                emit(f"  and for every task: {', '.join(sorted(OPTIONS))}\n")
                emit(f"  not built, though their references import: {', '.join(NOT_BUILT)}\n")
