"""Run `serve-eval rescore`: score the answers of a run again and show the changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of
from serve_eval.cli._run_folder import name_run

if TYPE_CHECKING:
    from serve_eval.evaluation.rescore import Changed, Rescored, RescoreSummary

SHOWN = 5
"""Changed samples shown per task."""
TARGET_CHARACTERS = 40


def rescore(
    run: Annotated[Path, name_run("A run folder, finished or not, or latest.")],
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
    allow_code_execution: Annotated[
        bool,
        typer.Option(
            "--allow-code-execution", help="Allow programs that the run itself did not run."
        ),
    ] = False,
    include_path: IncludePath = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with every changed sample.")
    ] = False,
) -> None:
    """Score the answers in a run folder again and show what changed.

    Nothing is sent, and the folder stays as it is.

    Exit codes: 0 even if something changed, 2 usage, folder or data, 5 no answer to score.
    """
    from serve_eval.cli._streams import emit, say
    from serve_eval.evaluation.rescore import rescore as again
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.report.text import clean
    from serve_eval.verdicts.exit_code import NOTHING_SCORED, PASS

    found = again(
        run,
        settings or (),
        to=output_dir,
        allow_code_execution=allow_code_execution,
        include_path=folders_of(include_path),
    )
    if as_json:
        emit(pretty_json({"schema_version": 1, "run": str(run), "tasks": found}).decode())
    else:
        emit("".join(f"{clean(line)}\n" for one in found for line in _lines(one)))
    if output_dir is not None:
        say(f"run folder with these scores: {output_dir}")
    raise typer.Exit(PASS if any(one.answered for one in found) else NOTHING_SCORED)


def _lines(one: Rescored) -> list[str]:
    lines = []
    if one.answered < one.planned:
        lines.append(f"{one.answered} of {one.planned} samples have a score")
    lines += [f"{option}: {before} -> {after}" for option, (before, after) in one.options.items()]
    change = "" if one.before is None or one.after is None else f" ({one.after - one.before:+.3f})"
    lines.append(f"value {_number(one.before)} -> {_number(one.after)}{change}")
    if one.changed:
        only = len(one.changed) - one.moved
        rest = f"; {only} more changed only the value or the extracted answer" if only else ""
        lines.append(f"{one.moved} of {one.answered} samples changed outcome{rest}")
    else:
        lines.append(f"none of {one.answered} samples changed")
    if one.moves:
        width = max(6, *(len(old) for old, _, _ in one.moves))
        to = max(5, *(len(new) for _, new, _ in one.moves))
        lines.append(f"  {'before':{width}}    {'after':{to}}  samples")
        lines += [f"  {old:{width}} -> {new:{to}}  {count:>7}" for old, new, count in one.moves]
    lines += [f"  {_sample(changed)}" for changed in one.changed[:SHOWN]]
    if len(one.changed) > SHOWN:
        lines.append(f"  and {len(one.changed) - SHOWN} more: --json lists all")
    lines += [f"warning: {note}" for note in one.notes]
    return [f"{one.task}: {line}" for line in lines]


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
