"""Name every file in the folder of a run, and those that only one other command has.

The plan and the result of each command stand in story_files.

The folder of a run:

    copying.json             a mark, until `serve-eval runs merge` or `rescore` has filled the
    folder plan.json                the plan and the fingerprint of each task, signed (see
    ownership) environment.json         one entry per session: versions, endpoint, abilities,
    limits, load samples/<task>.jsonl     the responses of the endpoint (see journal)
    scores/<task>.jsonl      the scores of the answers executions/<task>.jsonl  the results of
    running the answers, for a task that runs them judgements/<task>.jsonl  the responses of judges,
    for a task that asks them judgements/<task>.steps  the proofs of the connections to those judges
    prompts/<task>.jsonl     the prompts, unless the plan has no_prompts media/<sha256>.<type>
    small media of the prompts, each once, unless the plan has no_media cases/<task>.jsonl       the
    expectation, scorer and versions of each user case archive/<time>/          records that no
    longer count report.json              the report report.html              the report as a web
    page diagnosis.html           the page of `serve-eval diagnose`, in any folder that it reads
    run.log                  what happened, a line each with its time; run.log.1 has older lines
    logs/                    logs of launched servers served.jsonl             the server that
    answered each request, if the endpoint reports it steps.jsonl              the connections
    proven to return each response to its own request order.json               the seed of the
    random order of the samples looks.json               the tasks that a paired rule checked for an
    early stop, and the rule attribution.json         the result of `serve-eval check workers`
    attribution/             its page and files for CI lm-eval/, capsules/      default output of
    `serve-eval runs export` and `show --capsule`
"""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import file_stem

PLAN_FILE, REPORT_FILE, PAGE_FILE = "plan.json", "report.json", "report.html"
DIAGNOSIS_PAGE = "diagnosis.html"
PAGES = (PAGE_FILE, DIAGNOSIS_PAGE)
"""The pages of a result, which describe an earlier state once its folder goes on."""
COPY_FILE = "copying.json"
"""The mark of a run folder that `serve-eval runs merge` or `rescore` is still filling."""
LOG_FILE = "run.log"
JUNIT_FILE, SUMMARY_FILE = "junit.xml", "summary.md"
"""The result of a command for CI systems."""
SESSIONS_FILE, ORDER_FILE, LOOKS_FILE, LOCK_FILE = (
    "environment.json",
    "order.json",
    "looks.json",
    "lock",
)
IDENTITY_FILE = "identity.json"
"""The findings of the probes of references, by task."""
PROOFS_FILE, TRACE_FILE = "steps.jsonl", "served.jsonl"
ATTRIBUTION_FACES = "attribution"
SAMPLES, SCORES, EXECUTIONS, JUDGEMENTS = "samples", "scores", "executions", "judgements"
CASES, PROMPTS, MEDIA, ARCHIVE, LOGS = "cases", "prompts", "media", "archive", "logs"
LM_EVAL, CAPSULES = "lm-eval", "capsules"

SIDE_A, SIDE_B, AGAIN = "a", "b", "again"
"""The folders of a comparison that hold its run folders."""

CHUNKS_FILE = "chunks.json"
"""The lengths of the prompts of a check of invariants."""
PRESSURE_FILE = "pressure.json"
"""The tokens of other prompts that were sent in a check of invariants to fill the cache."""
SALT_FILE = "cache_salt.json"
"""The salt of a check of invariants, or why it has none."""

CANARY_LOG = "canaries.jsonl"
"""Every reply of a canary pass."""

VERIFICATION_REFERENCE = "reference.json"
"""The reference that a verification made."""

SUITE_RUNS = "runs"
"""The folder of a suite that holds its run folders."""
EARLIER_SUITE_REPORT = "suite_report.earlier.json"
"""The last report of a suite, until the runs that were added have one."""

BISECTION_RUNS = "runs"
"""The folder of a bisection that holds its run folders."""
BISECTION_REFERENCES = "good_scores"
"""The folder in a bisection with the scores of the good configuration."""

SERVERS = "servers"
"""The folder in a comparison, check or suite for the logs of servers that several runs share."""

RECORDS_OF_ANSWERS = (SAMPLES, EXECUTIONS, JUDGEMENTS)
"""The folders that hold answers and the results of running or judging them. All are costly to
redo."""
PROTOCOL_FILES = (SESSIONS_FILE, ORDER_FILE, LOOKS_FILE, PROOFS_FILE, IDENTITY_FILE)
"""The files that record the conditions under which answers came."""


def samples_file(run: Path, task: str) -> Path:
    """Return the journal of a task."""
    return task_file(run / SAMPLES, task)


def scores_file(run: Path, task: str) -> Path:
    """Return the file of a task's scores."""
    return task_file(run / SCORES, task)


def executions_file(run: Path, task: str) -> Path:
    """Return the file with the results of running a task's answers."""
    return task_file(run / EXECUTIONS, task)


def judgements_file(run: Path, task: str) -> Path:
    """Return the journal of the judges' responses about a task's answers."""
    return task_file(run / JUDGEMENTS, task)


def judges_proofs_file(judgements: Path) -> Path:
    """Return the file of proofs for the connections to the judges of `judgements`."""
    return judgements.with_suffix(".steps")


def cases_file(run: Path, task: str) -> Path:
    """Return the file that records how the cases of a task were asked."""
    return task_file(run / CASES, task)


def prompts_file(run: Path, task: str) -> Path:
    """Return the file of a task's prompts."""
    return task_file(run / PROMPTS, task)


def name_archive_file(run: Path, stamp: str, file: Path) -> Path:
    """Return the archive file for lines of a task's file that no longer count."""
    return run / ARCHIVE / stamp / file.parent.name / file.name


def list_archived_samples(run: Path, task: str) -> list[Path]:
    """Return the journals of a task in the archive, oldest first."""
    return sorted(run.glob(f"{ARCHIVE}/*/{SAMPLES}/{file_stem(task)}.jsonl"))


def task_file(folder: Path, task: str) -> Path:
    """Return the file of a task in a folder that has one per task."""
    return folder / f"{file_stem(task)}.jsonl"


def journals_below(folder: Path) -> list[Path]:
    """Return the journals of all tasks in a run folder, or in all run folders below a folder."""
    return sorted(folder.glob(f"**/{SAMPLES}/*.jsonl"))
