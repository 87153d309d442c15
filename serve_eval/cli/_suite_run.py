"""Run a suite for `serve-eval run`: many plans for one verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.cli._common_options import FaceOptions
from serve_eval.cli._write_job import JobOptions, check_job, list_kept_flags, write_suite
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import permissions
from serve_eval.plan.shared_options import absolute_all
from serve_eval.schema import TIME, TOKENS
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.evaluation.earlier_run import Rerun
    from serve_eval.plan.limits_options import LimitsOptions
    from serve_eval.plan.options import JudgedOptions
    from serve_eval.schema import Suite, SuiteRun
    from serve_eval.workflows.suite.preparation import RefusedRun

TAKEN = frozenset(
    (
        *("plan", "resume", "rerun", "reuse", "allow_code_execution", "include_path"),
        *("rehearse", "trust_plan", "output_dir", "dry_run", "strict", "write_job", "sbatch_arg"),
        *("job_array", "verbose", "quiet", "as_json", "junit", "notify_text"),
        *("end_when_certain", "max_tokens_total"),
    )
)
"""The options of `run` that a suite takes; its plans say all else."""


@freeze
class SuiteCall:
    """The suite that `run` asks, by its file or its folder, with the options.

    `bounds` are the fields of the suite that flags set.
    """

    file: Path | None
    resume: Path | None
    output_dir: Path | None
    rerun: Rerun
    reuse: bool
    dry_run: bool
    strict: bool
    rehearse: bool
    trust_plan: bool
    allow_code_execution: bool
    include_path: Sequence[str]
    bounds: Mapping[str, Any] = field(default_factory=dict)


def is_suite(file: Path | None, resume: Path | None) -> bool:
    """Return True if `run` got a suite: a file with plans or a matrix, or a suite's folder."""
    from serve_eval.yaml_source import read

    if resume is not None:
        from serve_eval.storage.story_files import SUITE

        return SUITE.has_plan(resume)
    if file is None:
        return False
    try:
        value = read(file, PlanError).value
    except PlanError:
        return False  # reading it as a plan says what is wrong
    return isinstance(value, dict) and bool({"plans", "matrix"} & value.keys())


def check_given(given: Collection[str], flags: Mapping[str, str]) -> None:
    """Raise PlanError for a flag that a suite does not take. `flags` has them by parameter."""

    if wrong := sorted(flags.get(name, name) for name in given if name not in TAKEN):
        raise PlanError(
            f"{', '.join(wrong)}: each plan of a suite says this itself",
            hint="Write it into the suite's defaults or into its plans.",
        )


def read_bounds(
    judged: JudgedOptions, limits: LimitsOptions, settings: Sequence[str], given: Collection[str]
) -> tuple[dict[str, Any], set[str]]:
    """Return the fields of a suite that flags set, and the flags that are left.

    Of --set it takes the seconds of asking of all runs, which have no flag.
    """
    flags = {
        "end_when_certain": judged.end_when_certain,
        "max_tokens_total": limits.max_tokens_total,
    }
    found: dict[str, Any] = {name: one for name, one in flags.items() if name in given}
    rest = set(given)
    if settings and all(text.partition("=")[0] == f"limits.{TIME}" for text in settings):
        rest.discard("settings")
        found[TIME] = _read_seconds(settings[-1].partition("=")[2])
    if (tokens := found.get(TOKENS)) is not None and tokens < 1:
        raise PlanError(f"--max-tokens-total: expected a number above 0, not {tokens}")
    return found, rest


def _read_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < math.inf:
        raise PlanError(f"limits.{TIME}: expected seconds above 0, not {text!r}")
    return value


def run_suite(call: SuiteCall, faces: FaceOptions, job: JobOptions) -> int:
    """Run, resume or show the plans of a suite in one folder. Return the exit code.

    Each server starts once. An existing suite is resumed: finished runs are kept.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.workflows.suite.preparation import name_runs

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if call.file is not None and call.resume is not None:
        raise PlanError("give a suite file, or --resume with the folder of a suite")
    if call.resume is not None and call.output_dir is not None:
        raise PlanError("--resume uses the folder of the suite: do not give -o")
    others = {"--dry-run": call.dry_run, "--reuse": call.reuse}
    check_job(job, resuming=call.resume is not None, others=others)
    known, refused = _open(
        call.file,
        call.resume,
        allow_code_execution=call.allow_code_execution,
        include_path=absolute_all(call.include_path),
        follow=not call.dry_run and job.write_job is None,
        trust_plan=call.trust_plan,
    )
    if refused and not call.dry_run:
        raise PlanError(name_runs(refused))
    if call.rehearse:
        known = _rehearse(known)
    known = replace(known, **call.bounds)
    if job.write_job is not None:
        flags = list_kept_flags(strict=call.strict, as_json=faces.as_json, rerun=call.rerun)
        write_suite(known, job, out_dir=str(call.output_dir or ""), flags=flags)
        return 0
    if call.dry_run:
        from serve_eval.cli._suite_dry_run import show
        from serve_eval.workflows.suite.preparation import check_folder

        if (to := call.output_dir or call.resume) is not None and not refused:
            check_folder(to, known)
        return show(known, refused, as_json=faces.as_json)
    return execute(
        known,
        call.resume or call.output_dir or _new_folder(known.name),
        faces=faces,
        strict=call.strict,
        reuse=call.reuse,
        rerun=call.rerun,
    )


def _rehearse(known: Suite) -> Suite:
    """Return the suite with the rehearsals of its runs. Raise PlanError, which names the run."""

    from serve_eval.plan.launcher import rehearse_plan

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

    from serve_eval.evaluation.trust import adopt_code, check
    from serve_eval.plugins import extensions
    from serve_eval.storage.story_results import suite_and_owner
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

    from serve_eval.cli._async import Interrupted, explain_kept, run_async
    from serve_eval.cli._ending import RedResult, end
    from serve_eval.cli._progress import show_progress
    from serve_eval.cli._streams import say
    from serve_eval.evaluation.trust import flag_of
    from serve_eval.storage.file_names import SUITE_RUNS
    from serve_eval.storage.story_files import SUITE
    from serve_eval.storage.story_results import suite_and_owner
    from serve_eval.verdicts.exit_code import FAIL, INTERRUPTED
    from serve_eval.workflows.servers.reuse import attach
    from serve_eval.workflows.suite.document import make_document
    from serve_eval.workflows.suite.execution import evaluate_suite
    from serve_eval.workflows.suite.preparation import check_suite
    from serve_eval.workflows.suite.rows import find_worst_fail

    say(f"serve-eval: suite {known.name}, {len(known.runs)} runs, folder {out_dir}")
    check_suite(known, out_dir, rerun, say)
    plans = [run.plan for run in known.runs]

    def again() -> str:
        flags = permissions(plans) + flag_of(plans, own=suite_and_owner(out_dir)[1])
        return f"serve-eval run --resume {quote_path(out_dir)}{flags}"

    launching = partial(attach, reuse=True, keep=False, notify=say) if reuse else None
    try:
        report = run_async(
            evaluate_suite(
                known,
                out_dir,
                progress=show_progress(),
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
    from serve_eval.storage.command_folder import claim_default_folder
    from serve_eval.workflows.suite.matrix import slug

    return claim_default_folder(slug(name) or "suite")
