"""Write a SLURM job that runs a plan or a suite: the option --write-job."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plan.shared_options import absolute
from serve_eval.plugins.setting import Setting
from serve_eval.processes.child_process import build_command

if TYPE_CHECKING:
    from serve_eval.evaluation.earlier_run import Rerun
    from serve_eval.schema import JobSize, Plan, Suite

PLAN_FILE, SCRIPT = "plan.yaml", "job.sbatch"
RUN, SHARDS = "run", "shards"
"""Folders below that of the job: of the run or suite, and of the shards of an array."""


@freeze
class JobOptions:
    """Write a SLURM job instead of sending anything."""

    title: ClassVar[str] = "SLURM job"
    write_job: Annotated[
        Path | None,
        Setting(
            "Write plan.yaml and job.sbatch to this folder; send nothing.",
            metavar="DIR",
            variable="never",
        ),
    ] = None
    job_array: Annotated[
        int | None,
        Setting("Make the job an array of N tasks, a shard each.", metavar="N", variable="never"),
    ] = None
    sbatch_arg: Annotated[
        list[str] | None,
        Setting(
            "Further option of sbatch, such as --sbatch-arg=--partition=NAME. Repeatable.",
            metavar="OPTION",
            variable="never",
        ),
    ] = None


KEPT = ("PASS_ENV", "LOCK_DIR", "HOLDOUT_KEY", "SHARD_GROUP", "READING_TIMEOUT", "TRACEBACK")
"""Ends of the names of SERVE_EVAL_* variables that are no options."""
FORGET = (
    f"for name in ${{!SERVE_EVAL_@}}; do case ${{name#SERVE_EVAL_}} in {'|'.join(KEPT)}) ;;"
    ' *) unset "$name" ;; esac; done'
)
"""Removes, in bash, the variables that are options. The plan has those of the time of writing; with
those of the time of submission, the job would run another plan."""


def check_job(job: JobOptions, *, resuming: bool, others: Mapping[str, bool]) -> None:
    """Raise PlanError for options that say nothing without --write-job, or against it.

    `others` has, by flag, whether an option that does not go with --write-job is given.
    """

    if job.write_job is None and (job.job_array is not None or job.sbatch_arg):
        raise PlanError("--job-array and --sbatch-arg need --write-job DIR")
    if job.write_job is not None and resuming:
        raise PlanError(
            "--write-job takes a plan: leave out --resume",
            hint="A job that is submitted again resumes its run.",
        )
    for flag in (flag for flag, given in others.items() if given and job.write_job is not None):
        raise PlanError(f"{flag} and --write-job contradict each other: give one of them")


def list_kept_flags(*, strict: bool, as_json: bool, rerun: Rerun) -> list[str]:
    """Return the flags of this command that are not part of a plan, for the command of the job."""
    return [
        *(["--strict"] if strict else []),
        *(["--json"] if as_json else []),
        *(["--rerun", rerun] if rerun != "failed" else []),
    ]


def write_run(plan: Plan, job: JobOptions, *, out_dir: str | None, flags: list[str]) -> None:
    """Write the job of a plan, and print how to submit it.

    `out_dir` is the run folder (None: one below that of the job), `flags` are more words for the
    job's command line. Raises ServeEvalError for a plan that would be refused, before anything is
    written, and PlanError if sbatch refuses the script.
    """
    from serve_eval.evaluation.launch import job_size
    from serve_eval.plan.command_line import permissions
    from serve_eval.plan.plan_file import to_file

    size = job_size(plan)
    _check(plan, job.job_array)
    folder = _folder(job)
    run = absolute(out_dir) or str(folder / RUN)
    words = ["run", str(folder / PLAN_FILE), *flags]
    if job.job_array is None:
        command = _command([*words, "-o", run]) + permissions([plan])
    else:
        words += ["--shard", f"auto/{job.job_array}"]
        out = f"{shlex.quote(str(folder / SHARDS))}/$SLURM_ARRAY_TASK_ID"
        command = f"{_command(words)} -o {out}{permissions([plan])}"
    lines = _write(folder, to_file(plan), size, command, job)
    if job.job_array is not None:
        shards = f"{shlex.quote(str(folder / SHARDS))}/*"
        asked = [flag for flag in flags if flag in ("--strict", "--json")]
        merge = f"{_command(['runs', 'merge', *asked])} {shards} -o {shlex.quote(run)}"
        merge += permissions([plan])
        given = (*size.sbatch_args, *(job.sbatch_arg or ()))
        arguments = shlex.join(word for word in given if not word.startswith("--array="))
        lines += [
            "When all its tasks have ended, judge them together with:",
            f"  {merge}",
            "or in a job that waits for them, where JOB is the number that sbatch prints:",
            f"  sbatch --dependency=afterany:JOB {arguments} --wrap {shlex.quote(merge)}",
        ]
    _tell(lines)


def write_suite(suite: Suite, job: JobOptions, *, out_dir: str | None, flags: list[str]) -> None:
    """Write the job of a suite, and print how to submit it. Raises as `write_run` does."""
    from serve_eval.evaluation.launch import job_size
    from serve_eval.plan.command_line import permissions
    from serve_eval.workflows.suite.suite_form import suite_to_file

    if job.job_array is not None:
        raise PlanError("--job-array: a suite has no shards: write a job for each of its plans")
    for run in suite.runs:
        _check(run.plan, None)
    size = _largest(job_size(run.plan) for run in suite.runs)
    folder = _folder(job)
    out_dir = absolute(out_dir) or str(folder / RUN)
    words = ["run", str(folder / PLAN_FILE), *flags, "-o", out_dir]
    command = _command(words) + permissions([run.plan for run in suite.runs])
    _tell(_write(folder, suite_to_file(suite), size, command, job))


def _check(plan: Plan, array: int | None) -> None:
    """Raise ServeEvalError if the run would be refused before its first request."""
    from dataclasses import replace

    from serve_eval.evaluation.prepare import prepare
    from serve_eval.schema import Shard

    if array is not None:
        if array < 1:
            raise PlanError(f"--job-array: must be 1 or more, not {array}")
        if plan.shard is not None:
            raise PlanError("--job-array: the plan is a shard already; leave out --shard")
        plan = replace(plan, shard=Shard(1, array))
    if plan.model is None:  # the endpoint names it, and with it the reference
        plan = replace(plan, allow_missing_reference=True)
    prepare(plan)


def _folder(job: JobOptions) -> Path:
    assert job.write_job is not None
    folder = job.write_job.expanduser().absolute()
    if not (str(folder) + str(Path.cwd())).isprintable():
        raise PlanError(f"--write-job: {str(folder)!r} cannot be written into a job script")
    return folder


def _command(words: list[str]) -> str:
    """Return a command line of this very installation, which a job may not have on its PATH."""
    return shlex.join(build_command("serve_eval", *words))


def _largest(sizes: Iterable[JobSize]) -> JobSize:
    """Return the size of a job in which each of these fits."""
    from serve_eval.schema import JobSize

    found = list(sizes)
    return JobSize(
        nodes=max(one.nodes for one in found),
        gpus_per_node=max(one.gpus_per_node for one in found),
        tasks_per_node=max(one.tasks_per_node for one in found),
        whole_nodes=any(one.whole_nodes for one in found),
        sbatch_args=next((one.sbatch_args for one in found if one.sbatch_args), ()),
        notes=tuple(dict.fromkeys(note for one in found for note in one.notes)),
    )


def _write(
    folder: Path, plan: Mapping[str, Any], size: JobSize, command: str, job: JobOptions
) -> list[str]:
    """Write both files. Return lines that tell the user how to submit the job."""
    import msgspec

    from serve_eval.launchers._slurm.allocation import list_gpus, try_out
    from serve_eval.launchers._slurm.job_script import job_script
    from serve_eval.storage.json_files import write_private
    from serve_eval.yaml_source import dump

    found = list_gpus()
    text = job_script(
        size,
        command,
        sbatch_args=(*size.sbatch_args, *(job.sbatch_arg or ())),
        manages_gpus=None if found is None else bool(found),
        array=job.job_array,
        work_dir=Path.cwd(),
        log_dir=folder,
        before=[FORGET],
    )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PlanError(f"--write-job: {folder} cannot be used: {error.strerror}") from error
    write_private(folder / PLAN_FILE, dump(msgspec.to_builtins(plan)).encode())
    write_private(folder / SCRIPT, text.encode())
    lines = [f"{folder / PLAN_FILE} and {SCRIPT} written; nothing was sent"]
    lines.append(try_out(folder / SCRIPT))
    return [*lines, "Submit it with:", f"  sbatch {shlex.quote(str(folder / SCRIPT))}"]


def _tell(lines: list[str]) -> None:
    from serve_eval.cli._streams import emit
    from serve_eval.report.text import clean

    emit("".join(f"{clean(line)}\n" for line in lines))
