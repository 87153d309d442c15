"""Name every file of a run's folder, and of the folders of comparisons, checks and suites that hold
such runs.

The folder of a run:

    plan.json                the plan and the protocol fingerprint of each task, signed by its user (see ownership)
    environment.json         one entry per session: versions, endpoint, abilities, limits, and at its end the load
    samples/<task>.jsonl     what the endpoint said (see journal)
    scores/<task>.jsonl      what we made of it
    executions/<task>.jsonl  the results of running the answers, for a task that runs them
    judgements/<task>.jsonl  what judges said of the answers, for a task that asks them
    judgements/<task>.steps  the proofs of the connections to those judges
    cases/<task>.jsonl       under what a user's own cases were asked
    archive/<time>/          records that no longer count
    report.json              the report
    report.html              the same to look at
    logs/                    of launched servers
    served.jsonl             which server answered which request, where the endpoint tells it
    steps.jsonl              which connections were proven to give each answer to its own request
    order.json               the seed of the random order of its samples
    looks.json               the tasks that a paired rule looked at on the way, and which rule
    attribution.json         the result of `serve-eval attribute`
    lm-eval/, capsules/      the results of `serve-eval export` and `serve-eval capsule`, unless they go elsewhere
"""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import file_stem

PLAN_FILE, REPORT_FILE, PAGE_FILE = "plan.json", "report.json", "report.html"
SESSIONS_FILE, ORDER_FILE, LOOKS_FILE, LOCK_FILE = (
    "environment.json",
    "order.json",
    "looks.json",
    "lock",
)
PROOFS_FILE, TRACE_FILE, ATTRIBUTION_FILE = "steps.jsonl", "served.jsonl", "attribution.json"
SAMPLES, SCORES, EXECUTIONS, JUDGEMENTS = "samples", "scores", "executions", "judgements"
CASES, ARCHIVE, LOGS = "cases", "archive", "logs"
LM_EVAL, CAPSULES = "lm-eval", "capsules"

COMPARISON_PLAN, COMPARISON = "compare.json", "comparison.json"
"""What a comparison compares and by which rule, and its result."""
SIDE_A, SIDE_B, AGAIN = "a", "b", "again"
"""The folders of a comparison that hold its run folders."""

INVARIANTS_PLAN, INVARIANTS, CHUNKS_FILE = "invariants_plan.json", "invariants.json", "chunks.json"
"""What a check of invariants asks, its result, and the lengths of its prompts."""

SUITE_FILE, SUITE_REPORT_FILE, SUITE_RUNS = "suite.json", "suite_report.json", "runs"
"""The runs of a suite, its report, and the folder of a suite that holds its run folders."""

SERVERS = "servers"
"""The folder of a comparison, a check or a suite for the logs of servers that several runs
share."""

RECORDS_OF_ANSWERS = (SAMPLES, EXECUTIONS, JUDGEMENTS)
"""The folders whose files hold answers and what was found out about them, at a cost."""
PROTOCOL_FILES = (SESSIONS_FILE, ORDER_FILE, LOOKS_FILE, PROOFS_FILE)
"""The files that say under which circumstances answers came."""


def samples_file(run: Path, task: str) -> Path:
    """Return the journal of a task."""
    return task_file(run / SAMPLES, task)


def scores_file(run: Path, task: str) -> Path:
    """Return the file of a task's scores."""
    return task_file(run / SCORES, task)


def executions_file(run: Path, task: str) -> Path:
    """Return the file of what running a task's answers gave."""
    return task_file(run / EXECUTIONS, task)


def judgements_file(run: Path, task: str) -> Path:
    """Return the journal of what judges said of a task's answers."""
    return task_file(run / JUDGEMENTS, task)


def judges_proofs_file(judgements: Path) -> Path:
    """Return the file of proofs for the connections to the judges whose answers are in
    `judgements`.
    """
    return judgements.with_suffix(".steps")


def cases_file(run: Path, task: str) -> Path:
    """Return the file that says under what the cases of a task were asked."""
    return task_file(run / CASES, task)


def name_archive_file(run: Path, stamp: str, file: Path) -> Path:
    """Return where lines of a task's file go that no longer count."""
    return run / ARCHIVE / stamp / file.parent.name / file.name


def list_archived_samples(run: Path, task: str) -> list[Path]:
    """Return the journals of a task in the archive, oldest first."""
    return sorted(run.glob(f"{ARCHIVE}/*/{SAMPLES}/{file_stem(task)}.jsonl"))


def task_file(folder: Path, task: str) -> Path:
    """Return the file of a task in a folder that has one per task."""
    return folder / f"{file_stem(task)}.jsonl"


def journals_below(folder: Path) -> list[Path]:
    """Return the journals of all tasks, in the folder of a run or of several runs below it."""
    return sorted(folder.glob(f"**/{SAMPLES}/*.jsonl"))
