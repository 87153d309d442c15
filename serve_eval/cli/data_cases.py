"""Run `serve-eval data cases`: write, list and encrypt your own cases, and import old results."""

from __future__ import annotations

import os
import shutil
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serve_eval.cli._common_options import ListOptions
from serve_eval.cli._options import command
from serve_eval.cli._streams import emit, say
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.cases.questions import Questions
    from serve_eval.report.document.listing import ListEntry

LEFT = 6
"""Columns before a line that belongs to a task."""
_Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="Case files, or folders with them.")
]
_Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Set an option of a task: cases:NAME.OPTION=VALUE. Repeatable."),
]


@command()
def expand(shown: ListOptions, files: _Files, settings: _Set = None) -> None:
    """List the cases that would be asked and those that are skipped. Nothing is sent."""
    from serve_eval.cli._ending import print_list
    from serve_eval.report.document.listing import Listing
    from serve_eval.storage.json_files import pretty_json

    found = dict(_questions(files, settings))
    total = sum(len(one.asked) for one in found.values())
    skipped = sum(len(one.skipped) for one in found.values())
    print_list(
        Listing(
            f"{total} cases of {len(found)} tasks, {skipped} skipped; nothing was sent",
            [_make_entry(name, one) for name, one in found.items()],
            result=pretty_json([line for name, one in found.items() for line in _lines(name, one)]),
        ),
        shown,
    )


def _make_entry(name: str, one: Questions) -> ListEntry:
    """Return a task with its cases; -v has a line for each, and why others are skipped."""
    from serve_eval.report.document.listing import ListEntry
    from serve_eval.tasks.cases import list_skipped_lines

    scorers = ", ".join(sorted({q.scorer.name for q in one.asked}))
    times = int(one.module.common.get("iterations", 1))
    each = f" x {times} iterations" if times > 1 else ""
    groups = len({q.group or q.id for q in one.asked})
    shared = f" in {groups} groups" if any(q.group for q in one.asked) else ""
    how = f", scored by {scorers}" if scorers else ""
    skipped = f", {len(one.skipped)} skipped" if one.skipped else ""
    return ListEntry(
        name,
        f"{len(one.asked)} cases{shared}{each}{how}{skipped}",
        more=[
            *(q.name for q in one.asked),
            *(part for line in (*list_skipped_lines(one), *one.notes) for part in _break(line)),
        ],
    )


@command()
def new(
    shown: ListOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")] = Path(
        "cases.yaml"
    ),
) -> None:
    """Write an example file with comments, ready to run."""
    from serve_eval import cases
    from serve_eval.cli._ending import print_list
    from serve_eval.errors import PlanError
    from serve_eval.report.document.listing import ListEntry, Listing

    text = Path(cases.__file__).with_name("example.yaml").read_text(encoding="utf-8")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(text.replace("FILE", str(file)))
    except FileExistsError as error:
        raise PlanError(f"{file} already exists", hint="Choose another name.") from error
    except OSError as error:
        raise PlanError(f"{file}: cannot be written: {error.strerror}") from error
    next_one = f"serve-eval data cases expand {quote_path(file)}"
    entries = [ListEntry(str(file), "an example of each kind of case")]
    print_list(Listing(f"{file} written", entries, next=next_one), shown)


def schema() -> None:
    """Print the JSON schema of case files, for editors."""
    from serve_eval.cases.form import json_schema
    from serve_eval.storage.json_files import pretty_json

    emit(pretty_json(json_schema()).decode())


@command()
def encrypt(
    shown: ListOptions,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A case file.")],
    to: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write (default FILE.enc).")
    ] = None,
) -> None:
    """Encrypt a hold-out set with the key in SERVE_EVAL_HOLDOUT_KEY.

    The file must be valid, and must not refer to images, sounds or videos.
    """
    from serve_eval.cases import file as case_file
    from serve_eval.cli._ending import print_list
    from serve_eval.report.document.listing import ListEntry, Listing

    case_file.read([str(file)])
    target = to or file.with_name(file.name + case_file.ENDING)
    case_file.encrypt(file, target, os.environ.get(case_file.VARIABLE, ""))
    told = f"{target} written. Keep {file} and the key out of every repository"
    print_list(Listing(told, [ListEntry(str(target), "encrypted")]), shown)


@command()
def import_results(
    shown: ListOptions,
    results: Annotated[
        list[Path], typer.Argument(metavar="CSV...", help="Result files of BioChatter's benchmark.")
    ],
    cases: Annotated[
        list[Path], typer.Option("--cases", help="Case file of these results. Repeatable.")
    ],
    references_dir: Annotated[Path, typer.Option(help="Folder for the references.")],
    settings: _Set = None,
    reason: Annotated[
        str | None, typer.Option(help="Reason for replacing entries; stored with the old ones.")
    ] = None,
) -> None:
    """Make references from old results, matched by BioChatter's hash of each case."""
    from serve_eval.cli._ending import print_list
    from serve_eval.report.document.listing import ListEntry, Listing
    from serve_eval.report.text import clean
    from serve_eval.workflows.references import import_published

    asked = _questions(cases, settings)
    skipped = {one.md5: one for _, task in asked for one in task.skipped if one.md5}
    tasks = _tasks(cases, settings) if any(task.asked for _, task in asked) else []
    found = import_published.import_results(
        results, tasks, references_dir, skipped=skipped, reason=reason
    )
    entries = []
    for one in found.written:
        runs = f"{one.runs} runs" if one.runs > 1 else "means" if one.runs == 0 else "1 run"
        told = f"{one.model}: {one.value:.3f} over {one.cases} of {one.of} cases, {runs}"
        entries.append(ListEntry(one.task, told, keep=True))
    say(*(f"warning: {clean(warning)}" for warning in found.warnings))
    told = (
        f"{found.matched} of {found.rows} rows matched a case; {found.orphans} belong to no case"
        " that is asked"
    )
    print_list(Listing(told, entries), shown)


def _break(line: str) -> list[str]:
    """Return a line in parts of the terminal's width; a setting stays whole, to be copied."""
    told, flag, setting = line.partition("--set ")
    lines = textwrap.wrap(
        told,
        max(40, shutil.get_terminal_size().columns - LEFT),
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*lines, f"  {flag}{setting}"] if flag else lines


def _tasks(files: list[Path], settings: list[str] | None) -> Any:
    """Return the tasks of these files, with their options."""
    from serve_eval.plan.resolve import resolve

    given = {"cases": list(map(str, files)), "set": settings or [], "launcher": "simulated"}
    return resolve({}, given, {}).plan.tasks


def _questions(files: list[Path], settings: list[str] | None) -> list[tuple[str, Questions]]:
    """Return the questions of every task of the files, also if none of them is asked."""
    from serve_eval.cases import file
    from serve_eval.cases.case_scorers import spec_of
    from serve_eval.cases.questions import questions

    paths = [str(path) for path in files]
    options: dict[str, dict[str, Any]] = {}
    if settings:
        options = {spec.name: dict(spec.options) for spec in _tasks(files, settings)}
    known = file.read(paths)
    found = []
    for name in known.modules:
        own = options.get(f"cases:{name}", {})
        chosen = {key: value for key, value in own.items() if key not in ("path", "scorer")}
        found.append(
            (f"cases:{name}", questions(known, name, scorer=spec_of(own.get("scorer")), **chosen))
        )
    return found


def _lines(task: str, one: Questions) -> list[dict[str, Any]]:
    """Return a JSON object per case; for a hold-out set without questions and answers."""
    asked = []
    for q in one.asked:
        line = {
            "task": task,
            "case": q.name,
            "id": q.id,
            "scorer": q.scorer.name,
            "compat_md5": q.md5,
            **({"group": q.group} if q.group else {}),
        }
        asked.append(line if q.holdout else {**line, "messages": q.turns, "expected": q.expected})
    skipped = [
        {"task": task, "case": s.name, "skipped": s.reason, "compat_md5": s.md5}
        for s in one.skipped
    ]
    return [*asked, *skipped]
