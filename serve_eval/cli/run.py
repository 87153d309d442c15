"""Run `serve-eval run`: evaluate an endpoint and judge it."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from serve_eval.cli._common_options import (
    FaceOptions,
    RerunWhat,
    Reuse,
    Strict,
    TrustPlan,
    rerun_of,
)
from serve_eval.cli._options import command, list_given_flags
from serve_eval.cli._progress import EventPrinter, check_events
from serve_eval.cli._run_folder import find_run
from serve_eval.cli._run_plan import (
    continue_unfinished,
    describe_origins,
    name_model,
    new_folder,
    read_settings,
    refuse_address,
    resolve_plan,
    take_auto_limit,
)
from serve_eval.cli._streams import say
from serve_eval.cli._write_job import JobOptions, check_job, list_kept_flags, write_run
from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import write_resume_command
from serve_eval.plan.limits_options import LimitsOptions
from serve_eval.plan.options import (
    AddressOptions,
    AskedOptions,
    ConnectionOptions,
    FolderOptions,
    JudgedOptions,
    ProtocolOptions,
)
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.evaluation.earlier_run import Rerun
    from serve_eval.evaluation.launch import Launching
    from serve_eval.plan.prepared_task import PreparedTask
    from serve_eval.plan.resolve import Resolved
    from serve_eval.schema import Plan

USUAL = (
    "base_url",
    "model",
    "tasks",
    "cases",
    "dataset_root",
    "allow_hub",
    "limit",
    "settings",
    "launcher",
    "quant_algo",
    "no_reference",
    "concurrency",
    "output_dir",
    "resume",
    "dry_run",
    "as_json",
)
EXAMPLES = (
    (
        "Judge a running endpoint on two tasks:",
        "serve-eval run --base-url host:8000 --tasks mmlu,gsm8k --dataset-root DIR",
    ),
    (
        "Show the requests and thresholds of a plan, and send nothing:",
        "serve-eval run PLAN.yaml --dry-run",
    ),
    (
        "Ask your own questions, without a reference:",
        "serve-eval run --cases my-cases/ --no-reference",
    ),
    ("Resume an interrupted run:", "serve-eval run --resume outputs/RUN"),
    ("Run or resume many plans for one verdict:", "serve-eval run SUITE.yaml -o OUT"),
)


@freeze
class HeldServerOptions:
    """Keep the launcher's servers, or reuse servers that are up."""

    title: ClassVar[str] = AddressOptions.title
    keep_servers: Annotated[bool, Setting("Keep the launcher's servers up after the run.")] = False
    reuse: Reuse = False


@freeze
class EndingOptions:
    """Choose what is asked again, shown and written."""

    title: ClassVar[str] = FolderOptions.title
    command: ClassVar[str] = "run"
    resume: Annotated[
        Path | None,
        Setting(
            (
                "Resume the run in this folder, with its saved plan; SERVE_EVAL_* variables"
                " are ignored."
            ),
            metavar="DIR",
        ),
    ] = None
    trust_plan: TrustPlan = False
    rerun: RerunWhat = "failed"
    new: Annotated[
        bool, Setting("Begin a new run, even if one of the same plan is unfinished.")
    ] = False
    dry_run: Annotated[
        bool, Setting("Show plan, requests, thresholds and first prompts; send nothing.")
    ] = False
    dump_prompts: Annotated[
        Path | None,
        Setting("Write all prompts to this file as JSON lines; send nothing.", metavar="FILE"),
    ] = None
    strict: Strict = False
    max_detects: Annotated[
        float | None,
        Setting(
            (
                "With --strict, a PASS that detects only drops of more points exits with 1 (tasks"
                " with values in points)."
            ),
            metavar="POINTS",
            flag=False,
        ),
    ] = None
    json_events: Annotated[
        bool,
        Setting("Print what happens as JSON lines instead of the result: docs/extending.md."),
    ] = False


@command(usual=USUAL, examples=EXAMPLES, every_variable=True)
def run(
    ctx: typer.Context,
    address: AddressOptions,
    held: HeldServerOptions,
    asked: AskedOptions,
    protocol: ProtocolOptions,
    judged: JudgedOptions,
    connection: ConnectionOptions,
    limits: LimitsOptions,
    folder: FolderOptions,
    ending: EndingOptions,
    faces: FaceOptions,
    job: JobOptions,
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN",
            help="Plan (YAML; its keys correspond to the flags), or a suite of plans.",
        ),
    ] = None,
) -> None:
    """Evaluate an endpoint against its references: PASS, FAIL or INCONCLUSIVE.

    --set KEY=VALUE sets any key of a plan. Each flag can also be set by a variable
    SERVE_EVAL_<FLAG>. Flags take precedence over variables, and variables over the plan file. A
    suite runs a list or a matrix of plans in one folder, for one verdict; each server starts once,
    and finished runs are kept.

    Exit codes: 0 pass, 1 fail, 2 usage, 3 undecided or no reference, 4 endpoint or infrastructure,
    5 nothing scored, 130 interrupted.
    """
    ending = replace(ending, resume=find_run(ending.resume))
    if _is_suite(plan, ending.resume):
        from serve_eval.cli._suite_run import check_given, read_bounds

        given = list_given_flags(ctx)
        bounds, given = read_bounds(judged, limits, asked.settings or (), given)
        check_given(
            given, {one.name: max(one.opts, key=len) for one in ctx.command.params if one.name}
        )
        call = partial(_run_suite, plan, given, address, held, asked, folder, ending, faces, job)
        raise typer.Exit(call(bounds))
    check_events(ending.json_events, {"--json": faces.as_json, "--dry-run": ending.dry_run})
    sections = (address, asked, judged, connection, limits, folder)
    _check_max_detects(ending)
    settings = read_settings(
        sections, protocol, flags=list_given_flags(ctx), resuming=ending.resume is not None
    )
    check_job(job, resuming=ending.resume is not None, others=_list_refused(held, ending, faces))
    auto = take_auto_limit(settings, resuming=ending.resume is not None)
    only_shown = ending.dry_run or ending.dump_prompts is not None or job.write_job is not None
    resolved = resolve_plan(
        plan, ending.resume, settings, follow=not only_shown, trust_plan=ending.trust_plan
    )
    if auto:
        from serve_eval.evaluation.earlier_run import choose_limits

        limited, lines = choose_limits(resolved.plan, resolved.out_dir)
        resolved = replace(resolved, plan=limited, notes=(*resolved.notes, *lines))
    what = rerun_of(ending.rerun)
    if resolved.notes:
        say(*resolved.notes)
    if job.write_job is not None:
        flags = list_kept_flags(strict=ending.strict, as_json=faces.as_json, rerun=what)
        write_run(resolved.plan, job, out_dir=folder.output_dir, flags=flags)
        return
    if only_shown:
        from serve_eval.cli._dry_run import show_only

        if ending.dry_run and ending.resume is None:
            values = asked.settings or ()
            say(*describe_origins(plan, settings, list_given_flags(ctx), values))
        raise typer.Exit(
            show_only(
                resolved.plan,
                dry_run=ending.dry_run,
                dump_to=ending.dump_prompts,
                as_json=faces.as_json,
                out_dir=resolved.out_dir,
            )
        )
    moved = ending.resume is not None and "base_url" in list_given_flags(ctx)
    raise typer.Exit(_evaluate(resolved, held, ending, faces, moved=moved, rerun=what))


def _is_suite(file: Path | None, resume: Path | None) -> bool:
    """Return True if a suite was given. Flags alone import nothing of suites."""
    if file is None and resume is None:
        return False
    if file is not None:
        refuse_address(file)
    from serve_eval.cli._suite_run import is_suite

    return is_suite(file, resume)


def _run_suite(
    file: Path | None,
    given: Collection[str],
    address: AddressOptions,
    held: HeldServerOptions,
    asked: AskedOptions,
    folder: FolderOptions,
    ending: EndingOptions,
    faces: FaceOptions,
    job: JobOptions,
    bounds: Mapping[str, Any],
) -> int:
    """Run a suite. Variables do not count, but for the folders of code, as in its plans."""
    from serve_eval.cli._suite_run import SuiteCall, run_suite

    to = folder.output_dir if "output_dir" in given else None
    call = SuiteCall(
        file=file,
        resume=ending.resume,
        output_dir=None if to is None else Path(to),
        rerun=rerun_of(ending.rerun),
        reuse=held.reuse,
        dry_run=ending.dry_run,
        strict=ending.strict,
        rehearse=bool(address.rehearse) and "rehearse" in given,
        trust_plan=ending.trust_plan,
        allow_code_execution=bool(asked.allow_code_execution) and "allow_code_execution" in given,
        include_path=asked.include_path or (),
        bounds=bounds,
    )
    return run_suite(call, faces, job)


def _list_refused(
    held: HeldServerOptions, ending: EndingOptions, faces: FaceOptions
) -> dict[str, bool]:
    """Return, by flag, whether an option is given that a job cannot have."""
    return {
        "--dry-run": ending.dry_run,
        "--dump-prompts": ending.dump_prompts is not None,
        "--json-events": ending.json_events,
        "--junit": faces.junit is not None,
        "--notify-text": faces.notify_text is not None,
        "--keep-servers": held.keep_servers,
        "--reuse": held.reuse,
    }


def _check_max_detects(ending: EndingOptions) -> None:
    """Raise PlanError if max_detects would decide nothing."""

    if ending.max_detects is None:
        return
    if not ending.strict:
        raise PlanError("run.max_detects is part of --strict", hint="Give both.")
    if not 0.0 < ending.max_detects < float("inf"):
        raise PlanError("run.max_detects must be a number of points above 0")


def _evaluate(
    resolved: Resolved,
    held: HeldServerOptions,
    ending: EndingOptions,
    faces: FaceOptions,
    *,
    moved: bool,
    rerun: Rerun,
) -> int:
    """Run the plan in its folder, with kept or reused servers if wanted. Return the exit code."""
    plan, out_dir = resolved.plan, ending.resume or resolved.out_dir
    if out_dir is None:
        plan = name_model(plan)
        fresh = ending.new or rerun != "failed"
        out_dir = (None if fresh else continue_unfinished(plan)) or new_folder(plan)
    finish = partial(
        execute,
        plan,
        out_dir,
        faces=faces,
        json_events=ending.json_events,
        strict=ending.strict,
        max_detects=ending.max_detects,
        moved=moved,
        rerun=rerun,
    )
    if not (held.keep_servers or held.reuse):
        return finish()
    from serve_eval.workflows.servers import daemon
    from serve_eval.workflows.servers.reuse import attach, up

    daemon.check(plan)
    try:
        return finish(
            launching=partial(attach, reuse=held.reuse, keep=held.keep_servers, notify=say)
        )
    finally:
        if held.keep_servers and (entry := up(plan)) is not None and entry.endpoint is not None:
            say(
                f"The servers stay up at {entry.endpoint.base_url}. Stop them with:"
                f" serve-eval serve --stop {entry.id}"
            )


def execute(
    plan: Plan,
    out_dir: Path,
    *,
    faces: FaceOptions | None = None,
    json_events: bool = False,
    strict: bool = False,
    max_detects: float | None = None,
    moved: bool = False,
    launching: Launching | None = None,
    rerun: Rerun = "failed",
) -> int:
    """Run a plan, with progress on stderr and verdicts on stdout. Return the exit code."""

    from serve_eval.cli._async import Interrupted, can_resume, explain_kept, run_async
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import HalfWay
    from serve_eval.cli._progress import show_progress
    from serve_eval.evaluation.trust import flag_of
    from serve_eval.report.drawing_process import drawing_ahead
    from serve_eval.storage.run_folder import holds_run, plan_and_owner
    from serve_eval.verdicts.exit_code import INTERRUPTED

    faces = faces or FaceOptions()
    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json or json_events)
    base_url = plan.launcher.options.get("base_url")
    where = f"endpoint {base_url}" if base_url else f"launcher {plan.launcher.name}"
    if base_url and os.environ.get("OPENAI_BASE_URL", "").removesuffix("/v1") in (
        base_url,
        str(base_url)[:-3],
    ):
        where += " (from OPENAI_BASE_URL)"
    say(
        f"serve-eval: {where}, tasks {', '.join(task.name for task in plan.tasks)}, run folder"
        f" {out_dir}"
    )
    prepared: list[PreparedTask] = []
    with EventPrinter(json_events) as events, drawing_ahead() as ahead:
        try:
            report = run_async(
                events.evaluate(
                    plan,
                    out_dir,
                    progress=HalfWay(show_progress(), ahead.start),
                    strict=strict,
                    moved=moved,
                    launching=launching,
                    notify=say,
                    rerun=rerun,
                    hand_on=prepared.extend,
                )
            )
        except (Interrupted, ServeEvalError) as ending:
            if can_resume(ending, out_dir) and holds_run(out_dir):
                again = write_resume_command(out_dir, plan)
                say(
                    explain_kept(
                        out_dir, f"{again}{flag_of([plan], own=plan_and_owner(out_dir)[1])}"
                    )
                )
            elif isinstance(ending, Interrupted):
                say("Interrupted; nothing was saved")
            if isinstance(ending, ServeEvalError):
                raise
            return INTERRUPTED
        from serve_eval.cli._ending import (
            RedResult,
            end,  # these are needed after what is timed
            fail_undecided,
        )
        from serve_eval.report.run.document import make_run_document

        red = RedResult(out_dir, report.exit_code, plan.include_path)
        document = make_run_document(
            report,
            out_dir,
            red.leads.causes,
            red.leads.places,
            include_path=plan.include_path,
            prepared=prepared,
        )
        code = end(document, faces, folder=out_dir, printed=not json_events)
        code = fail_undecided(report, code, strict=strict, most=max_detects)
        events.end(document, code)
        return code
