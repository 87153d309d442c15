"""Run `serve-eval list`: show the names that a plan can use."""

from __future__ import annotations

from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._presets import PRESETS, list_presets


def listing(
    kind: str = typer.Argument("all", help="tasks, scorers, launchers, verdicts, presets or all."),
    name: Annotated[
        str | None, typer.Argument(help="Name of one of them, to show the meaning of each option.")
    ] = None,
    include_path: IncludePath = None,
) -> None:
    """List tasks, scorers, launchers and verdict rules, one line each, or the presets of models.

    With a name, describe that one: the type, default and meaning of each option; for a task also
    its data, its needs, its references and its protocol; for a preset the fields that each effort
    sends. Each one that is not part of serve-eval is shown with its origin.

    Exit codes: 0, or 2 if one of them cannot be used.
    """
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError
    from serve_eval.plugins import extensions, registry

    if kind == PRESETS:
        list_presets(name)
        return
    packages = {title: package for package, title in extensions.KINDS.items()}
    if kind not in (*packages, "all"):
        holding = [title for title, package in packages.items() if kind in registry.names(package)]
        raise PlanError(
            f"unknown kind {kind!r}.{registry.nearest(kind, [*packages, PRESETS, 'all'])}",
            hint="\n".join(f"serve-eval list {title} {kind}" for title in holding),
        )
    extensions.include(folders_of(include_path))
    if name is not None:
        _one(packages.get(kind), kind, name)
        return
    broken = [
        name
        for title, package in packages.items()
        if kind in (title, "all")
        for name in _list_kind(title, package)
    ]
    if kind == "all":
        emit(f"{PRESETS}:\n  of models, for --preset: serve-eval list {PRESETS}\n")
    if broken:
        raise typer.Exit(2)


def _list_kind(title: str, package: str) -> list[str]:
    """Print the names of a kind, and return those that cannot be used."""
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError
    from serve_eval.plugins import extensions, registry
    from serve_eval.protocol.shared import OPTIONS
    from serve_eval.report.text import clean

    broken = []
    emit(f"{title}:\n")
    for name in registry.names(package):
        try:
            lines = _entry(package, name)
        except PlanError as error:
            lines = [f"{name}: error: {error}. {error.hint}".rstrip(" .")]
            broken.append(name)
        emit("".join(f"  {clean(line)}\n" for line in lines))
    emit(f"  options of one: serve-eval list {title} NAME\n")
    if title == "tasks":
        for name, file in extensions.lm_eval_tasks():
            emit(f"  {clean(f'{extensions.LM_EVAL}:{name}')}\n      from {clean(str(file))}\n")
        emit(f"  options that every task has: {', '.join(sorted(OPTIONS))}\n")
    return broken


def _one(package: str | None, kind: str, name: str) -> None:
    """Print one plugin. Raises PlanError for an unknown name."""
    from serve_eval.cli._described import describe_plugin
    from serve_eval.cli._described_task import describe_task
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError
    from serve_eval.plugins import registry
    from serve_eval.protocol.shared import TASKS
    from serve_eval.report.text import clean

    if package is None:
        raise PlanError(
            f"{kind} {name}: name the kind",
            hint="For example serve-eval list launchers trtllm.",
        )
    file = name.partition(":")[0]
    if file not in (known := registry.names(package)):
        raise PlanError(
            f"unknown {registry.kind_of(package)} {name!r}.{registry.nearest(name, known)}"
        )
    lines = describe_task(file) if package == TASKS else describe_plugin(package, file)
    if package == "serve_eval.launchers":
        lines += ["", "Set them with --set launcher.OPTION=VALUE, or below launcher in a plan."]
    emit("".join(f"{clean(line)}\n" for line in lines))


def _entry(package: str, name: str) -> list[str]:
    """Return a name with its summary and origin. Raises PlanError if it is unusable."""
    from serve_eval.cli._described import wrap
    from serve_eval.plugins import extensions, registry

    function = registry.function(package, name)
    registry.options_of(function)
    member = registry.family_of(package, function)
    shown = f"{name}:{member.upper()}" if member else name
    lines = wrap(f"{shown}: {registry.summary(package, name)}", "", "    ")
    return [*lines, *(f"    from {one.place}" for one in extensions.find(package, name))]
