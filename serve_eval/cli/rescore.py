"""Run `serve-eval rescore`: score the answers of a run again and show the changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import LATEST, name_run

if TYPE_CHECKING:
    from rich.console import Console

    from serve_eval.evaluation.rescore import Changed, Rescored, RescoreSummary
    from serve_eval.report.ci import CiResult

SHOWN = 5
"""Changed samples shown per task."""
TARGET_CHARACTERS = 40
_OUTCOMES = ("NOT SCORED", "CHANGED", "UNCHANGED")
"""Outcomes of a task, the worst first."""


def rescore(
    run: Annotated[Path, name_run("A run folder, finished or not (default latest).")] = LATEST,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a scoring option: gsm8k.filter=strict-match. Repeatable.",
        ),
    ] = None,
    output_dir: Annotated[
        Path | None,
        typer.Option(
            "--output-dir", "-o", help="New run folder for the same answers with the new scores."
        ),
    ] = None,
    references_dir: Annotated[
        Path | None,
        typer.Option(
            "--references-dir", metavar="DIR", help="References that judge the new run folder."
        ),
    ] = None,
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution", help="Allow programs that the run itself did not run."
        ),
    ] = False,
    include_path: IncludePath = None,
    notify_text: Annotated[
        Path | None,
        typer.Option(
            "--notify-text",
            metavar="FILE",
            help="Write the result as one line of text for chat (- : standard output).",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every changed sample.")
    ] = False,
) -> None:
    """Score the answers in a run folder again and show what changed.

    Nothing is sent, and the folder stays as it is.

    Exit codes: 0 even if something changed, 2 usage, folder or data, 5 no answer to score.
    """
    from serve_eval.cli._ci_files import check_asked, save_ci_files, tell_ending
    from serve_eval.cli._streams import draw, emit, say
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.rescore import rescore as again
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS

    with tell_ending(f"rescore {run}", {"notify_text": notify_text}):
        check_asked(None, notify_text, as_json=as_json)
        if references_dir is not None and output_dir is None:
            raise PlanError(
                "--references-dir: only a new run folder is judged",
                hint="Give -o NEW too, or use serve-eval verdict RUN --references-dir DIR.",
            )
        found = again(
            run,
            settings or (),
            to=output_dir,
            allow_code_execution=allow_code_execution,
            include_path=folders_of(include_path),
            references_dir=references_dir,
        )
    if as_json:
        emit(pretty_json({"schema_version": 1, "run": str(run), "tasks": found}).decode())
    else:
        draw(lambda console: _draw(found, console))
    if output_dir is not None:
        say(f"run folder with these scores: {output_dir}")
    code = save_ci_files(
        lambda: _describe_result(found),
        PASS if any(one.answered for one in found) else NOTHING_SCORED,
        notify_text=notify_text,
        about=output_dir or run,
    )
    raise typer.Exit(code)


def _describe_result(found: Sequence[Rescored]) -> CiResult:
    """Return what changed as the result of a command; nothing of it is a failure."""
    from serve_eval.report.ci import CiCase, CiResult, CiState, CiSuite, CiTable
    from serve_eval.report.one_line import OneLine, lead

    outcomes = [_name_outcome(one)[0] for one in found]
    lines = [
        OneLine(
            outcome=outcome,
            about=f"rescore {one.task}",
            figures=f"{_number(one.after)} against {_number(one.before)}",
            counts=f"{one.answered} of {one.planned} scored, {one.moved} changed outcome",
            cause=", ".join(f"{name} {old} -> {new}" for name, (old, new) in one.options.items()),
            sure=True,
        )
        for one, outcome in zip(found, outcomes, strict=True)
    ]
    ranks = [_OUTCOMES.index(outcome) for outcome in outcomes]
    led = lead(lines, ranks, "tasks")
    cases = [
        CiCase(
            group="rescore",
            name=one.task,
            state=CiState.PASSED if one.answered else CiState.ERROR,
            line=line,
        )
        for one, line in zip(found, led, strict=True)
    ]
    worst = min(range(len(led)), key=lambda place: ranks[place], default=None)
    return CiResult(
        title="serve-eval rescore",
        outcome="NOTHING SCORED" if worst is None else outcomes[worst],
        suites=[CiSuite(name="serve-eval rescore", cases=cases)],
        table=CiTable(columns=(), rows=()),
        line=None if worst is None else led[worst],
    )


def _draw(found: Sequence[Rescored], console: Console) -> None:
    """Print what changed of each task: the value first, then the outcomes and samples."""
    from serve_eval.report.summary.headline import badge
    from serve_eval.report.summary.print_rows import print_rows
    from serve_eval.report.text import clean

    for one in found:
        outcome, style = _name_outcome(one)
        line = badge(outcome, style).append(f"  {clean(one.task)}  {_describe_value(one)}")
        console.print(line, soft_wrap=True)
        print_rows(console, _rows(one))


def _name_outcome(one: Rescored) -> tuple[str, str]:
    if not one.answered:
        return "NOT SCORED", "bold red"
    return ("CHANGED", "bold yellow") if one.changed else ("UNCHANGED", "bold green")


def _describe_value(one: Rescored) -> str:
    if one.before == one.after:
        return _number(one.after)
    change = "" if one.before is None or one.after is None else f" ({one.after - one.before:+.3f})"
    return f"{_number(one.before)} -> {_number(one.after)}{change}"


def _rows(one: Rescored) -> Iterator[tuple[str, str]]:
    if one.answered < one.planned:
        yield "scored", f"{one.answered} of {one.planned} samples have a score"
    for option, (before, after) in one.options.items():
        yield "option", f"{option}: {before} -> {after}"
    if one.changed:
        only = len(one.changed) - one.moved
        rest = f"; {only} more changed only the value or the extracted answer" if only else ""
        yield "samples", f"{one.moved} of {one.answered} changed outcome{rest}"
    elif one.answered:
        yield "samples", f"none of {one.answered} changed"
    for old, new, count in one.moves:
        yield "", f"{count} {old} -> {new}"
    for changed in one.changed[:SHOWN]:
        yield "e.g.", _sample(changed)
    if len(one.changed) > SHOWN:
        yield "", f"and {len(one.changed) - SHOWN} more: --json lists all"
    yield from (("warning", note) for note in one.notes)


def _sample(changed: Changed) -> str:
    target = " ".join(changed.target.split())
    if len(target) > TARGET_CHARACTERS:
        target = f"...{target[3 - TARGET_CHARACTERS :]}"
    return (
        f"{changed.id}: {_describe(changed.before)} -> {_describe(changed.after)}; target"
        f" {target!r}"
    )


def _describe(told: RescoreSummary | None) -> str:
    if told is None:
        return "not scored"
    return (
        f"{told.outcome} {told.value:g},"
        f" {'nothing extracted' if told.answer is None else repr(told.answer)}"
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
