"""Write the rows of pages that tell of tasks, and name the line of a mistake.

The other columns are written by hand and stay.

Generated columns are renewed. Other text stays as it is, so it may be reworded afterwards.
"""

from __future__ import annotations

import fnmatch
import importlib
import re
from pathlib import Path

from serve_eval.cli.setup import KINDS, format_schema
from serve_eval.datasets import local
from serve_eval.datasets.local import find_sources
from serve_eval.errors import DatasetError
from serve_eval.evaluation.prepare import check_ids
from serve_eval.plugins import registry
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots
from tests.root import ROOT
from tests.tasks.made_data import NAMES, spec_of
from tests.tasks.mistakes import MADE, Mistake, blame, find_line

TASKS_HEAD = "| task | value | n | API | how it is scored | data | prompt of |"
DATA_HEAD = "| task | folders | files | columns |"
_CELL = re.compile(r"(?<!\\)\|")


def list_cells(task):
    """Return the generated cells of a row of the table of tasks: value, n and API."""
    better = "" if task.metric.higher_is_better else ", lower is better"
    plain = "completions, prompt log-probabilities" if task.prompt_logprobs else "completions"
    needs = ", ".join(["chat" if task.chat else plain, *sorted(task.requires)])
    count = task.hypothesis.num_samples
    return [f"{task.metric.name}{better}", "planned" if count is None else str(count), needs]


def list_folders(task):
    """Return the generated cell of a row of the table of data sets: the folders of its sets."""
    known = find_sources()
    return [
        ", ".join(dict.fromkeys(folder for one in task.datasets for folder in known[one].folders))
    ]


def renew_row(page, head, name, cells, tasks):
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


def add_row(page, head, row):
    """Return a page with a row at the end of the table whose first line is `head`."""
    before, found, after = page.partition(f"{head}\n")
    assert found, f"no table {head}"
    table, gap, rest = after.partition("\n\n")
    return f"{before}{found}{table}\n{row}{gap}{rest}"


def is_in_table(page, head, name):
    """Say whether a table names a task in its first column, alone or as mixed_modality_* does."""
    table = page.partition(f"{head}\n")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("|")]
    named = [one.strip() for cell in cells for one in cell.split(",")]
    return any(fnmatch.fnmatchcase(name, one) for one in named)


def say_task(page, name, task):
    """Return docs/tasks.md with a row for a task, renewed, and what was wrong in the old one.

    The row of a family says no numbers of a member.
    """
    if task.name != name:
        return page, []
    if is_in_table(page, TASKS_HEAD, name):
        return renew_row(page, TASKS_HEAD, name, list_cells(task), NAMES)
    known = find_sources()
    sets = ", ".join(known[one].name for one in task.datasets) or "generated"
    source = re.split(r" \(|:", _read_prompt_source(name))[0]
    cells = (name, *list_cells(task), task.aggregation.name, sets, source)
    return add_row(page, TASKS_HEAD, f"| {' | '.join(cells)} |"), []


def say_data(page, name, task, dataset, root):
    """Return docs/tasks.md with the files that a task reads, if any, and what was wrong in its row.

    The files and columns are those of the test data.
    """
    [folders] = list_folders(task)
    if is_in_table(page, DATA_HEAD, name):
        return renew_row(page, DATA_HEAD, name, [folders], NAMES)
    if not task.datasets:
        return page, []
    read = dataset.files
    files = dict.fromkeys(_place(Path(f.path), root, folders.split(", ")) for f in read)
    columns = _columns(Path(read[0].path)) if read else ""
    cells = (name, folders, ", ".join(files), columns)
    return add_row(page, DATA_HEAD, f"| {' | '.join(cells)} |"), []


def load_checked(name, task, root):
    """Return the test data of a task, checked as a run does. Raises Mistake and ServeEvalError."""
    try:
        dataset = task.load(DataRoots(roots=(root,)), task.hypothesis.num_samples or 1)
    except DatasetError as error:
        line = find_line(ROOT / MADE, r"def write_all\b")
        raise Mistake(
            f"{MADE}:{line}: {name}: its test data is missing or differs; {error}\n"
            "Add a line to write_all, or mend it, as docs/extending.md shows."
        ) from error
    check_ids(task, dataset)
    task.answers(dataset.samples[0])
    return dataset


def _place(file, root, folders):
    """Return a file below the folder of its set, without its ending."""
    for folder in folders:
        if file.is_relative_to(root / folder):
            inner = file.relative_to(root / folder)
            return str(inner.with_name(re.sub(r"(-\d+-of-\d+)?\..*", "", inner.name)))
    return file.stem


def _columns(file):
    """Return the columns of a file of rows, or "" for another file."""
    try:
        return ", ".join(local.rows(local.read_file(file), [])[0])
    except DatasetError:
        return ""


def say_notice(notice, name):
    """Return NOTICE with the source of a task's prompt.

    Raises Mistake if the task file does not say it.
    """
    before, heading, after = notice.partition("Prompt templates\n")
    if re.search(rf"\b{_base(name)}\b", after):
        return notice
    told = _read_prompt_source(name)
    last = re.search(r"^judges, .*$", after, re.MULTILINE)
    assert last is not None
    row = f"{name:30} {' '.join(told.split())}\n"
    return f"{before}{heading}{after[: last.start()]}{row}{after[last.start() :]}"


def _read_prompt_source(name):
    """Return what a task file says of the source of its prompt. Raises Mistake if it does not."""
    told = getattr(importlib.import_module(f"serve_eval.tasks.{name}"), "PROMPT_FROM", None)
    if not isinstance(told, str) or not told.strip():
        raise Mistake(
            f"{_point(name, 'PROMPT_FROM')}: PROMPT_FROM is missing; write where the words around"
            ' data are from, with the licence: PROMPT_FROM = "Name (https://..., MIT)", or "ours"'
        )
    return told


def _point(name, word):
    """Return FILE:LINE of a word in a task file, or of its function `task`."""
    file = ROOT / f"serve_eval/tasks/{name}.py"
    line = find_line(file, rf"{word}\b") or find_line(file, r"def task\b") or 1
    return f"{file.relative_to(ROOT)}:{line}"


def _base(name):
    """Return the task of which another one is the control."""
    return name.removesuffix("_alone")


def write_pages(root):
    """Return the new text of each page, and what was wrong; `root` holds the test data."""
    pages = {
        place: (ROOT / place).read_text("utf-8")
        for place in (Path("docs/tasks.md"), Path("NOTICE"))
    }
    tasks, notice = pages
    wrong = []
    for name in registry.list_shipped("serve_eval.tasks"):
        with blame(f"serve_eval/tasks/{name}.py"):
            pages[notice] = say_notice(pages[notice], name)
            task = build_task(spec_of(name, root), checked=True) if name in NAMES else None
            if task is not None:
                _check_file(name, task, find_sources())
                dataset = load_checked(name, task, root)
                pages[tasks], in_tasks = say_task(pages[tasks], name, task)
                pages[tasks], in_data = say_data(pages[tasks], name, task, dataset, root)
                wrong += [f"{tasks}: {one}" for one in (*in_tasks, *in_data)]
    schemas = {Path(f"docs/schemas/{kind}.json"): format_schema(kind) for kind in KINDS}
    return {**pages, **schemas}, wrong


def _check_file(name, task, known):
    if unknown := [one for one in task.datasets if one not in known]:
        raise Mistake(
            f"{_point(name, ' *datasets')}: datasets names {unknown[0]!r}, which is neither the"
            " task with a SOURCE in its file nor a set of serve_eval/datasets/source.py"
        )
