"""`serve-eval verdict`: judge a finished run again, without its endpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._include import IncludePath, folders_of


def verdict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    rule: Annotated[str | None, typer.Option("--verdict", help="Verdict rule, instead of the run's.")] = None,
    margin: Annotated[float | None, typer.Option(help="Drop in points that matters, for the paired rules.")] = None,
    references_dir: Annotated[str | None, typer.Option(help="Folder of references that is searched first.")] = None,
    reference_model: Annotated[str | None, typer.Option(help="Look references up under this name.")] = None,
    allow_mismatch: Annotated[list[str] | None, typer.Option(help="Compare although this field differs.")] = None,
    no_reference: Annotated[bool | None, typer.Option("--no-reference", help="Print the value alone.")] = None,
    allow_code_execution: Annotated[
        bool | None, typer.Option("--allow-code-execution", help="Run answers that were not run yet.")
    ] = None,
    include_path: IncludePath = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 instead of 3.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as one JSON object.")] = False,
) -> None:
    """Judge what a run folder holds again, by another rule or other references. Nothing is asked, nothing replaced.

    Exit codes: those of `serve-eval run`.
    """

    from serve_eval.cli._streams import draw, emit
    from serve_eval.evaluation.evaluate import judge_again
    from serve_eval.evaluation.plan.resolve import resolve
    from serve_eval.evaluation.plan.serialise import to_file
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.evaluation.trust import to_read
    from serve_eval.report.terminal import render

    plan = to_read(run, folders_of(include_path))
    saved, was = to_file(plan), plan.verdict.name
    given = {
        "verdict": rule,
        "references_dir": references_dir,
        "reference_model": reference_model,
        "allow_mismatch": allow_mismatch,
        "no_reference": no_reference,
        "allow_code_execution": allow_code_execution,
        "set": None if margin is None else [f"verdict.margin={margin}"],
    }
    settings = {name: value for name, value in given.items() if value is not None}
    if rule not in (None, was):
        saved.pop("early_stop", None)  # it looked for another rule's verdict
    if rule is not None or references_dir is not None:
        saved.pop("no_reference", None)  # it was said of another question
    replaced = ("OPENAI_BASE_URL", "INTEGRATION_TEST", "TRTLLM_ACCURACY_NO_REFERENCE")
    inherited = {name: value for name, value in os.environ.items() if name not in replaced}
    report = judge_again(resolve(saved, settings, inherited).plan, run, strict=strict)
    if as_json:
        emit(pretty_json(report).decode())
    else:
        draw(lambda console: render(report, run, console))
    raise typer.Exit(report.exit_code)
