"""Take a reference: ask an endpoint a plan several times, and register the runs.

OUT/run_<k> are ordinary run folders, each with a random order of its own, and OUT/references.json
is the plan. Finished runs are not repeated, so that the same command resumes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.client.connection import connect
from serve_eval.errors import PlanError, RunFolderError, ServeEvalError
from serve_eval.evaluation.engine.start_times import Labelled
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import check_launcher, launch, with_model
from serve_eval.evaluation.passes import check_same_passes
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.settle import settle
from serve_eval.evidence.engine_counters import Companions
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import (
    Endpoint,
    IdentityProbes,
    Plan,
    Progress,
    Spec,
    VerdictOutcome,
    is_rehearsal,
)
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.folder_results import list_unfinished
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.story_files import TAKE
from serve_eval.verdicts.reference_noise import describe_one_seed
from serve_eval.workflows.references import (
    Registered,
    register,
    without_missing_folder,
)
from serve_eval.workflows.references.entries import check_entry, make_folder
from serve_eval.workflows.references.scored_runs import check_supported


@freeze
class TakenReference:
    """The plan that was asked, with its model, and what was registered."""

    plan: Plan
    registered: Sequence[Registered]


class TakenRuns(msgspec.Struct, frozen=True, kw_only=True):
    """The plan and the number of the runs, and if they are being or were registered."""

    plan: Plan
    runs: int
    registering: bool = False
    registered: bool = False


@with_scope
async def take_reference(
    plan: Plan,
    out_dir: Path,
    references_dir: Path,
    *,
    runs: int,
    hardware: str | None,
    reason: str | None,
    probes: int,
    progress: Progress | None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None],
) -> TakenReference:
    """Ask what is left to ask, and register the runs as the reference of every task.

    An entry of the same model and specification is replaced only with a `reason`. What would be
    refused at the end is refused before anything is sent. With `probes`, that number of requests of
    each task is asked again, by which the deployment is recognized later. Raises ServeEvalError for
    what stops a run, and as `register` does.
    """
    plan, prepared = await _prepare(plan, out_dir, environ, notify)
    if probes:
        from serve_eval.workflows.references.take_probes import check_probed

        check_probed(prepared, probes)
    if not _is_asked(out_dir, runs):
        _check(plan, prepared, references_dir, runs, reason)
        _warn(prepared, runs, notify)
    make_folder(references_dir)
    folders = [out_dir / f"run_{number + 1}" for number in range(runs)]
    with run_folder.hold(out_dir, TAKE.plan, "runs of a reference"):
        saved = TAKE.find_plan(out_dir, TakenRuns)
        check_same_passes(out_dir, None if saved is None else saved.plan, plan, ())
        taken = TakenRuns(plan=plan, runs=runs)
        TAKE.write_plan(out_dir, taken)
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        found: dict[str, IdentityProbes] = {}
        left = [one for one in folders if not _is_complete(one)]
        if left or probes:
            async with launch(plan, prepared, logs, notify=notify) as endpoint:
                async with connect(plan, endpoint, environ) as client:
                    _refuse_rehearsal(await client.is_stand_in())
                together = Companions()
                for folder in left:
                    await _ask(
                        folder, plan, prepared, endpoint, together, progress, environ, notify
                    )
                if probes:
                    found = await _take_probes(
                        plan, prepared, endpoint, folders[0], probes, environ, notify
                    )
        TAKE.write_plan(out_dir, msgspec.structs.replace(taken, registering=True))
        registered = await asyncio.to_thread(
            register,
            folders,
            references_dir,
            hardware=hardware,
            reason=reason,
            include_path=plan.include_path,
            probes=found,
        )
        TAKE.write_plan(out_dir, msgspec.structs.replace(taken, registered=True))
    return TakenReference(plan=plan, registered=registered)


@with_scope
async def find_unfinished_take(
    plan: Plan, runs: int, environ: Mapping[str, str] = os.environ
) -> tuple[Path, float] | None:
    """Return the folder in outputs/ that this plan would resume, and the age of its last answer."""
    for folder, age_s in list_unfinished(TAKE.plan, _is_registered):
        try:
            saved = TAKE.find_plan(folder, TakenRuns)
            asked, _ = await _prepare(plan, folder, environ, ignore)
            if saved is None or saved.runs != runs or saved.plan.launcher != asked.launcher:
                continue
            check_same_passes(folder, saved.plan, asked, ())
        except ServeEvalError:
            continue
        return folder, age_s
    return None


def _is_asked(folder: Path, runs: int) -> bool:
    """Return True if an earlier session asked all runs of a folder, and began to register them.

    It may have been killed then, or before its result was shown. To register them again changes
    nothing in an entry of the same scores, and another entry is refused.
    """
    saved = TAKE.find_plan(folder, TakenRuns)
    begun = saved is not None and (saved.registering or saved.registered)
    return saved is not None and begun and saved.runs == runs


def _is_registered(folder: Path) -> bool:
    try:
        saved = TAKE.find_plan(folder, TakenRuns)
    except RunFolderError:
        return True
    return saved is None or saved.registered


async def _prepare(
    plan: Plan, out_dir: Path, environ: Mapping[str, str], notify: Callable[[str], None]
) -> tuple[Plan, Sequence[PreparedTask]]:
    """Return the plan of every run, without a reference or an early stop, and its tasks."""
    plan = replace(plan, no_reference=True, verdict=Spec(name="classic"), early_stop=None)
    plan = replace(plan, repeats=1, repeats_of={}, accept_identical=False)
    extensions.include(plan.include_path)
    plan = await with_model(plan, environ, notify=notify)
    plan = await settle(plan, out_dir / "run_1", environ, notify)
    if not out_dir.exists():
        check_launcher(plan)
    return plan, await asyncio.to_thread(prepare, without_missing_folder(plan))


def _check(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    references_dir: Path,
    runs: int,
    reason: str | None,
) -> None:
    """Raise ServeEvalError for what could not be registered after the runs."""
    if runs < 1:
        raise PlanError("--runs must be 1 or more")
    _refuse_rehearsal(is_rehearsal(plan))
    if plan.subset or plan.shard is not None or plan.integration_test:
        raise PlanError(
            "a reference needs complete runs",
            hint="Leave out limit, samples and shard, and unset INTEGRATION_TEST.",
        )
    model = plan.reference_model or plan.model
    assert model is not None
    for one in prepared:
        file = references_dir / f"{one.task.reference_file}.yaml"
        check_entry(file, model, plan.accuracy_spec, reason)


def _warn(prepared: Sequence[PreparedTask], runs: int, notify: Callable[[str], None]) -> None:
    """Say before the first request that runs with one seed would be one draw."""
    for one in prepared:
        sampling = one.task.sampling
        if told := describe_one_seed(runs, sampling.seed, sampling.temperature):
            notify(f"warning: {one.task.name}: {told}")


def _refuse_rehearsal(rehearsal: bool) -> None:
    if rehearsal:
        raise PlanError(
            "a rehearsal, in which the stand-in answers, is no reference",
            hint="Take it from the real servers.",
        )


async def _take_probes(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    endpoint: Endpoint,
    run: Path,
    count: int,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> dict[str, IdentityProbes]:
    from serve_eval.workflows.references.take_probes import take_probes

    async with connect(plan, endpoint, environ) as client:
        return await take_probes(plan, prepared, client, run, count, notify)


def _is_complete(folder: Path) -> bool:
    """Return True if a run is finished and every sample was answered."""
    if not has_report(folder):
        return False
    return not any(
        task.result.failed or task.verdict.outcome is VerdictOutcome.UNSUPPORTED
        for task in read_report(folder).tasks
    )


async def _ask(
    folder: Path,
    plan: Plan,
    prepared: Sequence[PreparedTask],
    endpoint: Endpoint,
    companions: Companions,
    progress: Progress | None,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> None:
    """Ask what is left of a run, in a random order of its own.

    Raises EndpointError if the endpoint lacks what a task needs: no other run would change that.
    """
    await evaluate(
        plan,
        folder,
        progress=None if progress is None else Labelled(progress, folder.name),
        environ=environ,
        launching=lambda *_: nullcontext(endpoint),
        notify=lambda line: notify(f"{folder.name}: {line}"),
        prepared=prepared,
        companions=companions,
        part_of=TAKE.command,
    )
    check_supported(folder)
