"""Apply the rules to a run, to both sides of a comparison, or to the runs of a suite.

A red result is joined with its causes, and with the commands that look further.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.evidence.prompt_tokens import LocalTokenizer
from serve_eval.frozen import freeze
from serve_eval.plugins.scope import with_scope
from serve_eval.report.attribution import accusations
from serve_eval.report.ci_result import write_line
from serve_eval.report.summary.headline import ORDER
from serve_eval.report.task_line import make_compared_line
from serve_eval.schema import Comparison, SuiteRow, VerdictOutcome
from serve_eval.storage.story_files import COMPARE
from serve_eval.storage.story_results import find_suite_rows
from serve_eval.workflows.diagnose import (
    Leads,
    between,
    paired_answers,
    run_rules,
    setting,
    slicing,
    unanswered,
)
from serve_eval.workflows.diagnose.breakdown import Breakdown, break_down
from serve_eval.workflows.diagnose.course import RULE as UNFINISHED
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, describe_end, find_end
from serve_eval.workflows.diagnose.finding import Finding, list_leading, order_findings
from serve_eval.workflows.diagnose.judged import (
    FolderOutcome,
    ReadFolder,
    list_outcomes,
    read_folder,
)
from serve_eval.workflows.diagnose.paired_answers import drop_sound
from serve_eval.workflows.diagnose.run_rules import findings
from serve_eval.workflows.diagnose.setting import find_threshold
from serve_eval.workflows.diagnose.slice_words import RULE

if TYPE_CHECKING:
    from serve_eval.workflows.diagnose.judged import FolderOutcomes

SCHEMA_VERSION = 1


@freeze
class DiagnosedTask:
    """The result of a task.

    `outcome` is None if the run did not finish, and `in_suite` that of its suite, if that differs.
    `threshold` is that of the classic rule, `margin` that of a paired `rule`. `breakdown` is about
    a task that is not green, and `accused` has what the report says of servers, unless a finding of
    the rule `worker` has it.
    """

    task: str
    outcome: str | None
    value: float | None
    threshold: float | None
    asked: int
    wrong: int
    missing: int
    breakdown: Breakdown | None = None
    accused: tuple[str, ...] = ()
    rule: str = ""
    margin: float | None = None
    in_suite: str = ""


@freeze
class DiagnosedRun:
    """A run with its findings.

    Findings that explain the most come first; those that explain an unknown number come after them,
    and those that explain nothing last.
    """

    label: str
    folder: str
    tasks: tuple[DiagnosedTask, ...]
    findings: tuple[Finding, ...]


@freeze
class Diagnosis:
    """The findings about a folder. `between` are findings from comparing two sides.

    `verdict` has lines that say what failed, of a comparison or a suite. `compared`: the runs are
    the sides of a comparison.
    """

    schema_version: int
    folder: str
    runs: tuple[DiagnosedRun, ...]
    between: tuple[Finding, ...] = ()
    verdict: tuple[str, ...] = ()
    compared: bool = False


@with_scope
def diagnose(
    folder: Path, *, include_path: Sequence[str] = (), local: LocalTokenizer | None = None
) -> Diagnosis:
    """Diagnose the folder of a run, a comparison or a suite.

    With `local`, also compare the prompt tokens that servers counted with these files of a model.
    Raises RunFolderError if the folder is none of them, or is damaged, and PlanError if prompts
    cannot be built again for `local`.
    """
    return diagnose_read(read_folder(folder, include_path), local)


@with_scope
def diagnose_read(answers: ReadFolder, local: LocalTokenizer | None = None) -> Diagnosis:
    """Diagnose a folder that was read. Raises PlanError as `diagnose` does."""
    folder, read_runs = answers.folder, answers.runs
    sides_of = [evidence for _, evidence in read_runs] if answers.compared else []
    others: Sequence[Evidence | None] = sides_of[::-1] or [None] * len(read_runs)
    runs = tuple(
        _diagnose(
            label,
            evidence,
            other,
            [] if local is None else _audit(evidence, local),
        )
        for (label, evidence), other in zip(read_runs, others, strict=True)
    )
    found: tuple[Finding, ...] = ()
    if sides_of:
        a, b = sides_of
        comparison = COMPARE.find(folder, Comparison)
        kept = drop_sound((runs[0].findings, runs[1].findings), (a, b))
        runs = tuple(replace(run, findings=own) for run, own in zip(runs, kept, strict=True))
        found = find_between(a, b, comparison, runs[1].findings)
        verdict = head_comparison(comparison, order_findings((*runs[1].findings, *found)), folder)
    else:
        verdict = head_others(list_outcomes(answers))
        runs = tuple(sorted(runs, key=rank_run))
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        folder=str(folder),
        runs=runs,
        between=found,
        verdict=verdict,
        compared=bool(sides_of),
    )


def _audit(evidence: Evidence, local: LocalTokenizer) -> list[Finding]:
    """Return what the files of a model say of counted tokens."""
    found = run_rules.audit_counts(evidence, local)
    return [*found, *audit_answer_counts(evidence, local)]


def find_between(
    a: Evidence, b: Evidence, comparison: Comparison | None, of_b: Sequence[Finding] = ()
) -> tuple[Finding, ...]:
    """Return the findings between both sides of a comparison.

    `comparison` is its result, or None if it did not finish; `of_b` are the findings about B alone.
    """
    found = [*run_rules.prompt_tokens(a, b), *run_rules.find_mixed(a, b, comparison)]
    found += setting.find_unlike_defaults(a, b)
    pairs = list(paired_answers.pair_answers(a, b, comparison))
    found += between.find_differences(pairs)
    found += slicing.compare_slices(a, b, (*of_b, *found))
    told = {one.task for one in (*of_b, *found) if not one.is_remark}
    return (*found, *between.find_even_losses(pairs, told))


def _diagnose(
    label: str, evidence: Evidence, other: Evidence | None, more: Sequence[Finding]
) -> DiagnosedRun:
    found = findings(evidence, other, "B" if label == "A" else "A")
    for task in () if other is None else other.tasks:
        found = tuple(between.drop_contradicted(found, task))
    named = {one.task for one in found if one.rule == "worker"}
    judged = find_suite_rows(evidence.folder)
    tasks = tuple(
        DiagnosedTask(
            task=task.name,
            outcome=None if task.outcome is None else task.outcome.value,
            value=None if task.report is None else task.report.result.value,
            threshold=find_threshold(task),
            asked=len(task.asked),
            wrong=sum(one.bad for one in task.asked),
            missing=len(task.missing) + task.unscored,
            breakdown=break_down(evidence, task, other),
            accused=() if task.name in named else _list_accused(task),
            rule="" if task.report is None else task.report.verdict.rule or "",
            margin=_find_margin(task),
            in_suite=_find_in_suite(task, judged.get(task.name)),
        )
        for task in evidence.tasks
    )
    return DiagnosedRun(
        label=label,
        folder=str(evidence.folder),
        tasks=tasks,
        findings=(*found, *more),
    )


def _find_margin(task: TaskEvidence) -> float | None:
    """Return the drop that the rule of a task must exclude; anchors have none."""
    if task.report is None or task.report.verdict.rule == "anchors":
        return None
    paired = task.report.verdict.paired
    return None if find_threshold(task) is not None or paired is None else paired.margin


def _find_in_suite(task: TaskEvidence, row: SuiteRow | None) -> str:
    """Return the outcome of a task in its suite if it is another than that of the run alone."""
    return "" if row is None or row.outcome is task.outcome else row.outcome.value


def _list_accused(task: TaskEvidence) -> tuple[str, ...]:
    """Return what the report says of the servers that it accuses."""
    told = None if task.report is None else task.report.attribution
    return () if told is None else tuple(accusations(told))


def head_comparison(
    comparison: Comparison | None, findings: Sequence[Finding], folder: Path
) -> tuple[str, ...]:
    """Return a line for each compared task, the worst first, with its likeliest cause."""
    if comparison is None:
        end = describe_end(find_end(folder))
        said = f"the comparison in {folder} did not finish: it has no verdict"
        return (f"{said}; {end}" if end else said,)
    causes = {one.task: one.brief for one in reversed(list_leading(findings))}
    tasks = sorted(comparison.tasks, key=lambda one: ORDER.index(one.verdict.outcome))
    return tuple(
        write_line(make_compared_line(one, comparison.b.model, causes.get(one.task, "")))
        for one in tasks
    )


def head_others(outcomes: FolderOutcomes) -> tuple[str, ...]:
    """Return the verdict of a suite with its counts, and lines about what has no run folder."""
    suite = (f"{outcomes.outcome} {outcomes.counted_as}",) if outcomes.counted_as else ()
    ended = [f"{one.name}: {one.outcome}: {one.why}" for one in outcomes.judged if one.why]
    return (*suite, *ended)


def rank_run(run: DiagnosedRun) -> int:
    """Return a sort key: the run with the worst outcome first. One without an outcome is worst."""
    known = [task.outcome for task in run.tasks]
    return min((0 if one is None else ORDER.index(VerdictOutcome(one)) for one in known), default=0)


ANSWER_COUNTS = "answer_counts"
MOST, LEAST = 50, 10
"""Most and fewest answers of a task that are counted."""
TOLERATED, LEAST_TOKENS = 0.1, 3
"""Share, and number of tokens, by which a count may differ: MLPerf's TEST06 compares both, and an
end token, tags of thoughts or another cut of the text are no error."""


def audit_answer_counts(run: Evidence, local: LocalTokenizer) -> Iterator[Finding]:
    """Yield a finding for each task in most of whose answers the counts and the texts differ."""
    for task in run.tasks:
        counts = list(_count(task, local))
        odd = sum(abs(told - made) > max(LEAST_TOKENS, TOLERATED * told) for told, made in counts)
        if len(counts) < LEAST or 2 * odd <= len(counts):
            continue
        told, made = (statistics.fmean(side) for side in zip(*counts, strict=True))
        yield Finding(
            ANSWER_COUNTS,
            (
                f"the server counts {told:.1f} tokens per answer, and {local.side} make {made:.1f}"
                f" of the texts; they differ in {odd} of {len(counts)} answers: tokens were removed"
                " from the texts, or the counts are wrong"
            ),
            change=(
                "trtllm-serve without --reasoning_parser and --tool_parser",
                "do not compare tokens per second by these counts",
            ),
            count=odd,
            of=len(counts),
            lost=len(task.lost),
            task=task.name,
        )


def _count(task: TaskEvidence, local: LocalTokenizer) -> Iterator[tuple[int, int]]:
    """Yield the counted tokens of an answer and those of its text and thoughts."""
    counted = 0
    for one in task.texts:
        response = one.response
        if response is None or response.tool_calls or not response.usage.completion_tokens:
            continue
        made = local.count_tokens(response.text)
        if not response.usage.reasoning_tokens:  # else thoughts are shown in part, or not at all
            made += local.count_tokens(response.reasoning or "")
        yield response.usage.shown_tokens, made
        counted += 1
        if counted == MOST:
            return


def find_leads(answers: ReadFolder) -> Leads:
    """Return what leads to the cause of a run, or of B of a comparison.

    A cause is the first finding of `serve-eval diagnose` that leads and explains any lost answer.
    One about the whole run stands for the tasks without one. Where missing answers leave a verdict
    open, whatever else the answers have in common is not the cause of that: these come first.
    """
    found = diagnose_read(answers)
    judged = found.runs[-1]
    left_open = {one.task for one in list_outcomes(answers).judged if one.left_open}
    causes: dict[str, str] = {}
    for task in judged.tasks:
        own = list_causes((*judged.findings, *found.between), task, task.task in left_open)
        if own:
            causes[task.task] = own[0].brief
        elif task.accused:
            causes[task.task] = task.accused[0]
    findings = list_leading((*judged.findings, *found.between))
    slices = [one for one in findings if one.rule == RULE and not one.rather]
    places = [f"{one.task}: the loss lies in one slice: {one.told}" for one in slices]
    return Leads(causes, tuple(places))


def list_causes(found: Sequence[Finding], task: DiagnosedTask, left_open: bool) -> list[Finding]:
    """Return the findings that may be the cause of the lost answers of a task, likeliest first.

    Those about the whole run come after its own. `left_open`: missing answers leave the verdict
    open, so that their cause comes first.
    """
    leading = list_leading(found)
    own = [one for one in leading if one.task == task.task]
    own += [one for one in leading if one.task is None]
    return sorted(own, key=_rank_missing) if left_open else own


def _rank_missing(finding: Finding) -> int:
    """Return the rank of a finding where missing answers are to blame: their cause comes first."""
    return 0 if finding.rule in unanswered.RULES else 1 if finding.rule == setting.MISSING else 2


STAND_INS = frozenset({"GOOD", "URL", "A", "B", "N", "DIR", "ID", "NAME"})
"""Words in advice that stand for what the user has to name."""


def is_command(advice: str) -> bool:
    """Return True for a whole command, without a word of advice or a name to replace."""
    try:
        words = shlex.split(advice)
    except ValueError:
        return False
    if words[:1] != ["serve-eval"]:
        return False
    return not any(word in STAND_INS or word.endswith((",", ":", ";")) for word in words)


def list_commands(advice: Iterable[str]) -> Iterator[str]:
    """Yield the commands among advice, in its order."""
    return (one for one in advice if is_command(one))


_CAPSULE = " --capsule "
"""Part of the commands of findings that the one of an example stands for."""


@freeze
class ExplainedTask:
    """An outcome and what the diagnosis found about it.

    `causes` are the findings that may be its cause, the likeliest first, and `others` the other
    ones. `ended` says how the run ended if it did not finish. `a` is side A of a comparison, with
    the same task there.
    """

    judged: FolderOutcome
    run: DiagnosedRun | None = None
    task: DiagnosedTask | None = None
    a: tuple[DiagnosedRun, DiagnosedTask | None] | None = None
    ended: Finding | None = None
    causes: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """True if there is nothing to explain."""
        return self.judged.outcome == "PASS"

    def list_commands(self) -> Iterator[str]:
        """Yield commands that run as they stand: those of the likeliest cause, then an example."""
        if self.passed:
            return
        found = [*([self.ended] if self.ended else []), *(self.causes or self.others)]
        advice = [one for finding in found for one in finding.change]
        yield from (one for one in list_commands(advice) if _CAPSULE not in one)
        for task in (self.task, None if self.a is None else self.a[1]):
            if task is not None and task.breakdown is not None:
                yield from list_commands(task.breakdown.next)


def explain(judged: FolderOutcome, found: Diagnosis) -> ExplainedTask:
    """Return an outcome with the findings about it, and about its run as a whole."""
    run = next((one for one in found.runs if one.label == judged.run), None)
    if run is None:
        return ExplainedTask(judged=judged)
    task = _find_task(run, judged.task)
    a = None
    if found.compared:
        a = (found.runs[0], _find_task(found.runs[0], judged.task))
    own = [
        one
        for one in (*run.findings, *found.between)
        if one.task in (None, judged.task) or not judged.task
    ]
    ended = next((one for one in own if one.rule == UNFINISHED and judged.task), None)
    of_answers = [one for one in own if one.rule != UNFINISHED]
    causes = () if task is None else tuple(list_causes(of_answers, task, judged.left_open))
    others = [one for one in own if one is not ended and one not in causes]
    return ExplainedTask(
        judged=judged,
        run=run,
        task=task,
        a=a,
        ended=ended,
        causes=causes,
        others=tuple(order_findings(others) if found.compared else others),
    )


def _find_task(run: DiagnosedRun, name: str) -> DiagnosedTask | None:
    return next((one for one in run.tasks if one.task == name), None)
