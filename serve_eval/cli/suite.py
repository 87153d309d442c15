"""Run `serve-eval suite`: run many plans for one verdict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from serve_eval.cli._common_options import (
    FaceOptions,
    RerunWhat,
    Reuse,
    RunAll,
    Strict,
    TrustPlan,
    rerun_of,
)
from serve_eval.cli._options import command
from serve_eval.cli._write_job import JobOptions, check_job, list_kept_flags, write_suite
from serve_eval.evaluation.plan.again import permissions
from serve_eval.evaluation.plan.flag_values import absolute_all
from serve_eval.evaluation.plan.shared_options import AllowCodeExecution, IncludePath, Rehearse
from serve_eval.plugins.setting import Setting
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.evaluation.rerun import Rerun
    from serve_eval.schema import Suite, SuiteRun
    from serve_eval.workflows.suite.checked_runs import RefusedRun

EXAMPLES = (
    ("Show the runs of a suite and their requests:", "serve-eval suite SUITE.yaml --dry-run"),
    ("Run or resume the suite in a folder:", "serve-eval suite SUITE.yaml -o OUT"),
    (
        "Ask failed samples again, without the suite file:",
        "serve-eval suite --resume OUT --rerun failed",
    ),
)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Choose which runs of a suite are run, and how."""

    title: ClassVar[str] = "Runs"
    resume: Annotated[
        Path | None,
        Setting("Resume the suite in this folder, with its saved plans.", metavar="DIR"),
    ] = None
    rerun: RerunWhat = "failed"
    run_all: RunAll = False
    reuse: Reuse = False
    allow_code_execution: AllowCodeExecution = None
    include_path: IncludePath = None
    rehearse: Rehearse = None
    trust_plan: TrustPlan = False


@dataclass(frozen=True, kw_only=True)
class SuiteResultOptions:
    """Choose the folder and the output."""

    title: ClassVar[str] = "Output"
    output_dir: Annotated[
        Path | None,
        Setting(
            "Folder of the suite (default outputs/<time>_<name>).",
            flags=("--output-dir", "-o"),
            metavar="DIR",
        ),
    ] = None
    dry_run: Annotated[
        bool, Setting("Show runs, servers, requests and references; send nothing.")
    ] = False
    strict: Strict = False


@command(examples=EXAMPLES)
def suite(
    asked: SuiteOptions,
    result: SuiteResultOptions,
    faces: FaceOptions,
    job: JobOptions,
    file: Annotated[Path | None, typer.Argument(metavar="SUITE.yaml", help="A suite file.")] = None,
) -> None:
    """Run a list or a matrix of plans in one folder, for one verdict.

    Each server starts once. An existing suite is resumed: finished runs are kept.

    Exit codes, the first that applies: 1 a FAIL without a waiver, 4 endpoint or infrastructure, 2 a
    plan or its data, 3 undecided or no reference, 0 pass; 130 interrupted.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.errors import PlanError
    from serve_eval.workflows.suite.checked_runs import name_runs

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if (file is None) == (asked.resume is None):
        raise PlanError("give a suite file, or --resume with the folder of a suite")
    if asked.resume is not None and result.output_dir is not None:
        raise PlanError("--resume uses the folder of the suite: do not give -o")
    others = {"--dry-run": result.dry_run, "--reuse": asked.reuse}
    check_job(job, resuming=asked.resume is not None, others=others)
    known, refused = _open(
        file,
        asked.resume,
        allow_code_execution=bool(asked.allow_code_execution),
        include_path=absolute_all(asked.include_path or ()),
        follow=not result.dry_run and job.write_job is None,
        trust_plan=asked.trust_plan,
    )
    if refused and not result.dry_run:
        raise PlanError(name_runs(refused))
    if asked.rehearse:
        known = _rehearse(known)
    what = rerun_of(asked.rerun, run_all=asked.run_all)
    if job.write_job is not None:
        flags = list_kept_flags(strict=result.strict, as_json=faces.as_json, rerun=what)
        write_suite(known, job, out_dir=str(result.output_dir or ""), flags=flags)
        return
    if result.dry_run:
        from serve_eval.cli._suite_dry_run import show
        from serve_eval.workflows.suite.folder import check_folder

        if (to := result.output_dir or asked.resume) is not None and not refused:
            check_folder(to, known)
        raise typer.Exit(show(known, refused, as_json=faces.as_json))
    out_dir = asked.resume or result.output_dir or _new_folder(known.name)
    code = execute(
        known,
        out_dir,
        faces=faces,
        strict=result.strict,
        reuse=asked.reuse,
        rerun=what,
    )
    raise typer.Exit(code)


def _rehearse(known: Suite) -> Suite:
    """Return the suite with the rehearsals of its runs. Raise PlanError, which names the run."""
    from dataclasses import replace

    from serve_eval.errors import PlanError
    from serve_eval.evaluation.plan.rehearse import rehearse_plan

    runs, problems, hint = [], [], ""
    for run in known.runs:
        try:
            runs.append(replace(run, plan=rehearse_plan(run.plan)))
        except PlanError as error:
            problems += [f"{run.name}: {problem}" for problem in error.problems]
            hint = error.hint
    if problems:
        raise PlanError(problems, hint=hint)
    return replace(known, runs=tuple(runs))


def _open(
    file: Path | None,
    resume: Path | None,
    *,
    allow_code_execution: bool,
    include_path: Sequence[str] = (),
    follow: bool = True,
    trust_plan: bool = False,
) -> tuple[Suite, Sequence[RefusedRun]]:
    """Return the suite of a file or a folder, and the runs of the file whose plans are wrong.

    A folder may come from another user. Its permission to run code and the code folders that it
    names must be given again. If it is followed, its commands and endpoints must be trusted.
    """
    from dataclasses import replace

    from serve_eval.evaluation.storage.reports.suite_files import suite_and_owner
    from serve_eval.evaluation.trust import adopt_code, check
    from serve_eval.plugins import extensions
    from serve_eval.workflows.suite.file import read_runs

    extensions.include(include_path)
    refused: Sequence[RefusedRun] = ()
    if resume is not None:
        suite, own = suite_and_owner(resume)
    else:
        assert file is not None
        (suite, refused), own = read_runs(file, os.environ), True
    in_file = resume is None

    def allow(run: SuiteRun) -> SuiteRun:
        allow = allow_code_execution or (in_file and run.plan.allow_code_execution)
        plan = run.plan if in_file else adopt_code(run.plan, ())
        found = tuple(dict.fromkeys((*include_path, *plan.include_path)))
        hub = plan.allow_hub and (own or follow)
        return replace(
            run, plan=replace(plan, allow_code_execution=allow, include_path=found, allow_hub=hub)
        )

    suite = replace(suite, runs=tuple(map(allow, suite.runs)))
    if resume is not None and follow and not (own or trust_plan):
        check(resume, {f"{run.name}: ": run.plan for run in suite.runs})
    return suite, refused


def execute(
    known: Suite,
    out_dir: Path,
    *,
    faces: FaceOptions | None = None,
    strict: bool = False,
    reuse: bool = False,
    rerun: Rerun = "failed",
) -> int:
    """Run a suite, with progress on stderr and its verdict on stdout. Return the exit code."""
    from functools import partial

    from serve_eval.cli._async import Interrupted, run_async
    from serve_eval.cli._ending import end
    from serve_eval.cli._kept import explain_kept
    from serve_eval.cli._progress import PatientConsole, progress
    from serve_eval.cli._red_results import RedResult
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.storage.file_names import SUITE_RUNS
    from serve_eval.evaluation.storage.reports.suite_files import (
        suite_and_owner,
    )
    from serve_eval.evaluation.storage.story_files import SUITE
    from serve_eval.evaluation.trust import flag_of
    from serve_eval.verdicts.exit_code import FAIL, INTERRUPTED
    from serve_eval.workflows.servers.reuse import attach
    from serve_eval.workflows.suite.checked_runs import check_suite
    from serve_eval.workflows.suite.document import make_document
    from serve_eval.workflows.suite.execution import evaluate_suite
    from serve_eval.workflows.suite.rows import find_worst_fail

    say(f"serve-eval: suite {known.name}, {len(known.runs)} runs, folder {out_dir}")
    check_suite(known, out_dir, rerun, say)
    plans = [run.plan for run in known.runs]

    def again() -> str:
        flags = permissions(plans) + flag_of(plans, own=suite_and_owner(out_dir)[1])
        return f"serve-eval suite --resume {quote_path(out_dir)}{flags}"

    launching = partial(attach, reuse=True, keep=False, notify=say) if reuse else None
    shown = progress(PatientConsole(stderr=True, highlight=False, emoji=False))
    try:
        report = run_async(
            evaluate_suite(
                known,
                out_dir,
                progress=shown,
                notify=say,
                strict=strict,
                launching=launching,
                rerun=rerun,
            )
        )
    except Interrupted:
        say(
            explain_kept(out_dir, again())
            if SUITE.has_plan(out_dir)
            else "Interrupted; nothing was saved"
        )
        return INTERRUPTED
    causes = {}
    if (worst := find_worst_fail(report)) is not None:
        found = RedResult(out_dir / SUITE_RUNS / worst.run, FAIL).leads.causes
        causes = {f"{worst.run}/{task}": cause for task, cause in found.items()}
    document = make_document(report, out_dir, causes, again=again())
    return end(document, faces or FaceOptions(), folder=out_dir)


def _new_folder(name: str) -> Path:
    from serve_eval.evaluation.storage.default_folder import claim_default_folder
    from serve_eval.workflows.suite.matrix import slug

    return claim_default_folder(slug(name) or "suite")
