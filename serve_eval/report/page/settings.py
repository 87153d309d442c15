"""List nested settings as names with values, of one run or of two side by side. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, Facts


def list_settings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting with its name, such as limits.concurrency; unset ones are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from list_settings(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for number, inner in enumerate(value):
            yield from list_settings(inner, f"{name}[{number}]")
    elif value not in (None, "", []):
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def show_settings(title: str, value: object) -> Facts:
    """Return the settings of a run, folded."""
    rows = [Fact(label=name, text=text) for name, text in _flatten(value).items()]
    return Facts(title=title, rows=rows, closed=True)


def contrast_settings(title: str, a: object, b: object) -> DataTable:
    """Return the settings of two runs: those that differ first, and marked."""
    left, right = _flatten(a), _flatten(b)
    names = list(dict.fromkeys((*left, *right)))
    differ = [name for name in names if left.get(name) != right.get(name)]
    rows = [
        [
            DataCell(text=name, state="warn" if name in differ else "none"),
            DataCell(text="differs" if name in differ else "same"),
            *(DataCell(text=side.get(name, "-")) for side in (left, right)),
        ]
        for name in (*differ, *(name for name in names if name not in differ))
    ]
    return DataTable(
        title=title,
        columns=[DataColumn(name=name) for name in ("setting", "compared", "A", "B")],
        rows=rows,
        caption=f"{len(differ)} of {len(names)} settings differ",
        closed=not differ,
    )


def _flatten(value: object) -> dict[str, str]:
    return dict(list_settings(msgspec.to_builtins(value)))
