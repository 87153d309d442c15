"""Compare the columns of pages that follow from the tasks, and renew them.

The other columns are written by hand and stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from serve_eval.datasets.local import find_sources
from serve_eval.schema import Task

TASKS_HEAD = "| task | value | n | API | how it is scored | data |"
DATA_HEAD = "| task | folders | files | columns |"
_CELL = re.compile(r"(?<!\\)\|")


def list_cells(task: Task) -> list[str]:
    """Return the generated cells of a row of docs/tasks.md: value, n and API."""
    better = "" if task.metric.higher_is_better else ", lower is better"
    plain = "completions, prompt log-probabilities" if task.prompt_logprobs else "completions"
    needs = ", ".join(["chat" if task.chat else plain, *sorted(task.requires)])
    count = task.hypothesis.num_samples
    return [f"{task.metric.name}{better}", "planned" if count is None else str(count), needs]


def list_folders(task: Task) -> list[str]:
    """Return the generated cell of a row of docs/datasets.md: the folders of its sets."""
    known = find_sources()
    return [
        ", ".join(dict.fromkeys(folder for one in task.datasets for folder in known[one].folders))
    ]


def renew_row(
    page: str, head: str, name: str, cells: Sequence[str], tasks: Sequence[str]
) -> tuple[str, list[str]]:
    """Return a page whose row of a task has these cells behind its name, and what they were.

    A row of which a name is none of `tasks`, such as a pattern, is written by hand.
    """
    before, found, after = page.partition(f"{head}\n")
    table, gap, rest = after.partition("\n\n")
    rows, changes = table.splitlines(), []
    columns = [one.strip() for one in _CELL.split(head)[2:-1]]
    for i, row in enumerate(rows):
        parts = [one.strip() for one in _CELL.split(row)[1:-1]]
        named = [one.strip() for one in parts[0].split(",")] if parts else []
        if name not in named or not set(named) <= set(tasks):
            continue
        if len(parts) != len(columns) + 1:
            changes.append(f"{name}: its row has {len(parts)} cells, not {len(columns) + 1}")
            continue
        old = parts[1 : 1 + len(cells)]
        changes += [
            f"{name}: {column} was {was or 'empty'!r}, is {now or 'empty'!r}"
            for column, was, now in zip(columns, old, cells, strict=False)
            if was != now
        ]
        if old != list(cells):
            parts[1 : 1 + len(cells)] = cells
            rows[i] = "".join(f"| {one} " if one else "| " for one in parts) + "|"
    return before + found + "\n".join(rows) + gap + rest, changes
