"""List the presets of models, each with its values and its source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from serve_eval.protocol.presets import Effort, PresetRow
    from serve_eval.report.document.listing import Listing

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
        entries.append(ListEntry(name=row.name, text=f"{values}{more}", more=[row.source]))
    return Listing(
        title=f"{len(entries)} {PRESETS} of models, for --preset; table of {table.version}",
        entries=entries,
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
