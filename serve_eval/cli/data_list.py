"""Run `serve-eval data list`: show the names that a plan can use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._common_options import ListOptions
from serve_eval.cli._options import command
from serve_eval.cli._run_folder import IncludePath, folders_of
from serve_eval.errors import PlanError
from serve_eval.plugins import extensions, registry

if TYPE_CHECKING:
    from serve_eval.protocol.presets import Effort, PresetRow
    from serve_eval.report.document.listing import ListEntry, Listing


DATA_SETS = "datasets"


@command()
def data_list(
    shown: ListOptions,
    kind: Annotated[
        str, typer.Argument(help="tasks, scorers, launchers, verdicts, presets, datasets or all.")
    ] = "all",
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
    from serve_eval.cli._ending import print_list

    packages = {title: package for package, title in extensions.KINDS.items()}
    if kind == DATA_SETS:
        from serve_eval.cli.data import list_sets

        print_list(list_sets(), shown)
        return
    known = [*packages, PRESETS, DATA_SETS, "all"]
    if kind not in known:
        holding = [title for title, package in packages.items() if kind in registry.names(package)]
        raise PlanError(
            f"unknown kind {kind!r}.{registry.nearest(kind, known)}",
            hint="\n".join(f"serve-eval data list {title} {kind}" for title in holding),
        )
    extensions.include(folders_of(include_path))
    if name is not None:
        lines = describe_preset(name) if kind == PRESETS else _one(packages.get(kind), kind, name)
        _print_one(name, lines, as_json=shown.as_json)
        return
    kinds = {
        title: _list_kind(title, package)
        for title, package in packages.items()
        if kind in (title, "all")
    }
    if kind in (PRESETS, "all"):
        kinds[PRESETS] = list_presets()
    whole = kind != "all" or (shown.verbose and not shown.as_json)
    for found in kinds.values() if whole else [_list_all(kinds)]:
        print_list(found, shown)
    if any(one.wrong for found in kinds.values() for one in found.entries):
        raise typer.Exit(2)


def _print_one(name: str, lines: list[str], *, as_json: bool) -> None:
    """Print everything about one name."""
    from serve_eval.cli._streams import emit
    from serve_eval.report.document.listing import ListEntry, Listing, write_listing
    from serve_eval.report.text import clean

    if as_json:
        emit(write_listing(Listing(name, [ListEntry(name, more=lines)])))
    else:
        emit("".join(f"{clean(line)}\n" for line in lines))


def _list_all(kinds: dict[str, Listing]) -> Listing:
    """Return the kinds with their names, and the names that cannot be used."""
    from serve_eval.report.document.listing import ListEntry, Listing

    entries = []
    for title, found in kinds.items():
        entries.append(ListEntry(title, ", ".join(one.name for one in found.entries)))
        entries += [one for one in found.entries if one.wrong or one.keep]
    counts = ", ".join(f"{len(found.entries)} {title}" for title, found in kinds.items())
    return Listing(
        f"Names for plans: {counts}",
        entries,
        next="those of one kind: serve-eval data list launchers",
    )


def _list_kind(title: str, package: str) -> Listing:
    """Return the names of a kind."""
    from serve_eval.cli._described import wrap
    from serve_eval.protocol.shared import OPTIONS
    from serve_eval.report.document.listing import ListEntry, Listing

    entries = [_make_entry(package, name) for name in registry.names(package)]
    notes: list[str] = []
    if title == "tasks":
        entries += [
            ListEntry(f"{extensions.LM_EVAL}:{name}", more=[f"from {file}"], keep=True)
            for name, file in extensions.lm_eval_tasks()
        ]
        notes = wrap(f"options that every task has: {', '.join(sorted(OPTIONS))}")
    return Listing(
        f"{len(entries)} {title}",
        entries,
        notes=notes,
        next=f"options of one: serve-eval data list {title} NAME",
    )


def _one(package: str | None, kind: str, name: str) -> list[str]:
    """Return the lines about one plugin. Raises PlanError for an unknown name."""
    from serve_eval.cli._described import describe_plugin, describe_task
    from serve_eval.protocol.shared import TASKS

    if package is None:
        raise PlanError(
            f"{kind} {name}: name the kind",
            hint="For example serve-eval data list launchers trtllm.",
        )
    file = name.partition(":")[0]
    if file not in (known := registry.names(package)):
        raise PlanError(
            f"unknown {registry.kind_of(package)} {name!r}.{registry.nearest(name, known)}"
        )
    lines = describe_task(file) if package == TASKS else describe_plugin(package, file)
    if package == "serve_eval.launchers":
        lines += ["", "Set them with --set launcher.OPTION=VALUE, or below launcher in a plan."]
    return lines


def _make_entry(package: str, name: str) -> ListEntry:
    """Return a name with its summary and origin, or with the reason why it cannot be used."""
    from serve_eval.report.document.listing import ListEntry

    try:
        function = registry.function(package, name)
        registry.options_of(function)
        member = registry.family_of(package, function)
        shown = f"{name}:{member.upper()}" if member else name
        text = registry.summary(package, name)
    except PlanError as error:
        return ListEntry(name, f"error: {error}. {error.hint}".rstrip(" ."), wrong=True)
    places = [f"from {one.place}" for one in extensions.find(package, name)]
    return ListEntry(shown, text, more=places, keep=bool(places))


PRESETS = "presets"


def list_presets() -> Listing:
    """Return all presets: names, values, efforts and sources."""
    from serve_eval.protocol.presets import EFFORTS, describe_options, read_presets
    from serve_eval.report.document.listing import ListEntry, Listing

    table = read_presets()
    entries = []
    for row in table.presets:
        values = describe_options(row.options) or "no sampling stated"
        efforts = ", ".join(one for one in EFFORTS if one in row.effort)
        more = f"; effort {efforts}" if efforts else ""
        entries.append(ListEntry(row.name, f"{values}{more}", more=[row.source]))
    return Listing(
        f"{len(entries)} {PRESETS} of models, for --preset; table of {table.version}",
        entries,
        next=f"one with the fields of its efforts: serve-eval data list {PRESETS} NAME",
    )


def describe_preset(name: str) -> list[str]:
    """Return all that the table says of a preset. Raises PlanError for an unknown name."""
    from serve_eval.protocol.presets import read_presets

    return list(_describe(read_presets().find(name)))


def _describe(row: PresetRow) -> Iterator[str]:
    from serve_eval.cli._described import wrap
    from serve_eval.protocol.presets import EFFORTS, describe_options

    yield f"{row.name}: a preset of {row.family}"
    if row.models:
        yield from wrap(f"auto takes it for: {', '.join(row.models)}", "", "    ")
    yield from wrap(f"sets: {describe_options(row.options) or 'nothing'}", "", "    ")
    known = dict(row.effort)
    for effort in EFFORTS:
        if effort in row.effort:
            told = f"effort {effort}: {_describe_effort(known[effort])}"  # type: ignore[index]
            yield from wrap(told, "", "    ")
    yield f"source: {row.source}"
    if row.switch_source:
        yield f"source of the switch: {row.switch_source}"
    yield f"read: {row.read}"


def _describe_effort(effort: Effort) -> str:
    from serve_eval.protocol.presets import describe_options

    named = {"thinking": effort.thinking, "system_prompt": effort.system_prompt}
    sent = {name: value for name, value in named.items() if value is not None}
    told = describe_options({**sent, **effort.body}) or "nothing is sent"
    return told if effort.row is None else f"{told}; sampling of {effort.row}"
