"""Apply all rules about one run, also those about counted prompt tokens.

The sum of the levels of the rules bounds the probability that any of them reports something
(Boole's inequality). Facts and counts have no level: they are always true.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.errors import PlanError
from serve_eval.evidence.prompt_audit import find_gap
from serve_eval.evidence.prompt_tokens import LocalTokenizer
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import Comparison, Dataset, Prompt, Task
from serve_eval.workflows.diagnose import (
    between,
    breakdown,
    course,
    endings,
    extraction,
    foreign,
    setting,
    slicing,
    unanswered,
    unlike,
)
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    BETWEEN_SHARE,
    MIXED,
    SIDE_SHARE,
    Finding,
    order_findings,
)
from serve_eval.workflows.diagnose.slice_data import Data, read_data
from serve_eval.workflows.diagnose.slicing import ANSWER_LEVEL, PROMPT_LEVEL
from serve_eval.workflows.diagnose.unlike import UNLIKE

TASK_RULES: tuple[Callable[[Evidence, TaskEvidence], Iterable[Finding]], ...] = (
    unanswered.failures,
    course.find_repaired,
    endings.find_truncated,
    endings.find_unclosed_reasoning,
    endings.find_stopped_in_reasoning,
    endings.stop_string,
    endings.empty,
    endings.find_misfiled,
    endings.find_looping,
    endings.find_unlisted,
    extraction.template_marks,
    extraction.find_end_tokens,
    extraction.run_on,
    extraction.find_doubled_bos,
    extraction.find_stated,
    extraction.extractors,
    extraction.unreadable,
    course.worker,
    course.slow_worker,
    course.drift,
    course.concurrency,
    course.find_retried,
    setting.find_other_protocol,
    setting.data,
    setting.find_unsupported,
    setting.too_few,
    setting.find_missing,
    setting.find_unscored,
)
RUN_RULES: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    unanswered.server_errors,
    foreign.foreign_answers,
    course.find_hidden_retries,
    setting.other_model,
    setting.first_token_only,
)


def findings(
    evidence: Evidence, other: Evidence | None = None, name: str = ""
) -> tuple[Finding, ...]:
    """Return the findings of all rules about one run.

    A run with an `other` side, of that `name`, is compared with it, not with its reference.
    """
    alone = other is None
    found = [finding for of_run in RUN_RULES for finding in of_run(evidence)]
    found += [
        finding
        for rule in TASK_RULES
        for task in evidence.tasks
        for finding in rule(evidence, task)
    ]
    found += setting.find_added(evidence, other, name)
    data: Data = {}
    searched = alone and any(task.lost or _has_answers(task) for task in evidence.tasks)
    if searched:
        data = read_data(evidence)
    found = _keep_surplus(evidence, found, data, other, name)
    found = setting.demote_cuts(found)
    if searched:
        found += [
            one for task in evidence.tasks for one in unlike.find_unlike(evidence, task, data)
        ]
        found += slicing.find_slices(evidence, found, data)
    # An option that differs is known, and what answers look like is only its effect.
    first = list(setting.other_launch(evidence)) if alone else []
    even = (
        list(breakdown.find_even_loss(evidence, found, data, differs=bool(first))) if alone else []
    )
    if first and even:  # nothing else explains the loss, so the difference is the likeliest cause
        first = [replace(one, leads=True, rather=breakdown.OTHER_LAUNCH) for one in first]
    ended = course.find_unfinished(evidence)
    return (*ended, *first, *order_findings((*found, *even)))


def _has_answers(task: TaskEvidence) -> bool:
    """Return True if the reference of a task may describe its answers."""
    reference = None if task.report is None else task.report.reference
    return reference is not None and reference.runs is not None


def _keep_surplus(
    evidence: Evidence,
    found: Sequence[Finding],
    data: Data,
    other: Evidence | None,
    name: str,
) -> list[Finding]:
    """Return findings that explain only what the reference, or the other side, lacks."""
    there = {} if other is None else {task.name: task for task in other.tasks}
    kept = list(found)
    for task in evidence.tasks:
        if other is None:
            before = unlike.read_reference(task, data)
        else:
            before = unlike.read_side(name, there[task.name]) if task.name in there else None
        kept = unlike.keep_surplus(kept, task, before)
    return kept


OF_A_TASK = {
    "truncated": ALPHA,
    "stop_string": ALPHA,
    "run_on": ALPHA,
    "extractors": ALPHA,
    "concurrency": ALPHA,
    "worker": course.WORKER,
    "slow_worker": course.SLOW_WORKER,
    "drift": course.DRIFT,
}
"""Levels of the rules that test the tasks of a run, which share them."""
OF_A_RUN = {
    "server_errors": ALPHA,
    "foreign_answers": ALPHA,
    "slice": PROMPT_LEVEL,
    "unlike": UNLIKE,
}
"""Levels of the rules that test a run as a whole."""
OF_A_COMPARISON = {**between.LEVELS, "slice": PROMPT_LEVEL + ANSWER_LEVEL}
"""Levels of the rules that test B against A, before BETWEEN_SHARE.

The runs of a comparison are neither searched for slices nor compared with a reference: they are
compared with each other."""
TESTS = OF_A_TASK.keys() | OF_A_RUN.keys() | OF_A_COMPARISON.keys()


def sum_levels() -> float:
    """Return the largest probability that any test reports a healthy run, of any number of tasks.

    The level of each rule is shared by the tasks.
    """
    return sum(OF_A_TASK.values()) + sum(OF_A_RUN.values())


def sum_comparison_levels() -> float:
    """Return the same for a comparison of two healthy runs."""
    return 2 * SIDE_SHARE * sum_levels() + BETWEEN_SHARE * sum(OF_A_COMPARISON.values())


RULE = "prompt_counts"
MOST = 50
"""Most prompts of a task that are counted."""


def audit_counts(run: Evidence, local: LocalTokenizer) -> list[Finding]:
    """Return a finding for each task whose answers count prompt tokens.

    Raises PlanError if the prompts cannot be built again, because their data or code are missing.
    """
    data = read_data(run)
    if missing := [task.name for task in run.tasks if task.name not in data]:
        raise PlanError(
            f"--tokenizer: the prompts of {', '.join(missing)} cannot be built again",
            hint="Name the data as for the run: its folder may have moved.",
        )
    found = []
    for task in run.tasks:
        gaps, dated = _count(task, *data[task.name], local)
        found += list(_judge(task, gaps, local.side, dated=dated))
    return found


def _count(
    task: TaskEvidence, asked: Task, dataset: Dataset, local: LocalTokenizer
) -> tuple[list[int], bool]:
    """Return by how many tokens the server counts more than the files, for a part of the prompts.

    The flag is True if the chat template writes a date.
    """
    samples = {sample.id: sample for sample in dataset.samples}
    gaps, dated = list[int](), False
    for one in task.texts:
        told = 0 if one.response is None else one.response.usage.prompt_tokens
        sample = samples.get(base_of(one.id))
        if not told or sample is None:
            continue
        request = request_of(asked, sample)
        if not _is_plain(request.prompt, request.extra):
            continue
        reading = local.read_now(request.prompt)
        if reading.ids is not None:
            gaps.append(told - len(reading.ids))
            dated |= bool(reading.dated)
        if len(gaps) == MOST:
            break
    return gaps, dated


def _is_plain(prompt: Prompt, extra: Mapping[str, object]) -> bool:
    """Return True if only the text and the template decide the tokens."""
    if extra.get("tools") or extra.get("add_special_tokens") is False:
        return False
    return isinstance(prompt, str) or not any(message.media for message in prompt)


def _judge(task: TaskEvidence, gaps: Sequence[int], side: str, *, dated: bool) -> Iterator[Finding]:
    if dated:
        yield _find(
            task,
            f"the chat template of {side} writes a date: prompts change from day to day",
            (f"--set {task.word}.template_date=DATE, and a fixed date on the server",),
            len(gaps),
            len(gaps),
        )
    gap = find_gap(gaps)
    if gap is None:
        return
    where = f"in {gap.prompts} of {gap.of} prompts"
    if gap.tokens == 0:
        told = f"the server counts as many tokens as {side} {where}"
        yield _find(task, told, (), gap.prompts, gap.of)
        return
    yield _find(
        task,
        f"the server counts {gap.amount} than {side} {where}: {gap.cause}",
        ("serve-eval smoke URL --set smoke.tokenizer=DIR", "the tokenizer files of the model"),
        gap.prompts,
        gap.of,
    )


def _find(task: TaskEvidence, told: str, change: tuple[str, ...], count: int, of: int) -> Finding:
    return Finding(
        RULE, told, change=change, count=count, of=of, lost=len(task.lost), task=task.name
    )


def prompt_tokens(a: Evidence, b: Evidence) -> Iterator[Finding]:
    """Yield a finding if one server counts more tokens than the other in the same texts.

    Special tokens are added twice or not at all, or the chat templates differ.
    """
    others = {task.name: task for task in b.tasks}
    for task in a.tasks:
        if task.name not in others:
            continue
        told = {
            one.id: one.response.usage.prompt_tokens
            for one in others[task.name].texts
            if one.response
        }
        counted = [
            told[one.id] - one.response.usage.prompt_tokens
            for one in task.texts
            if one.response and one.response.usage.prompt_tokens and told.get(one.id)
        ]
        gap = find_gap(counted)
        if gap is None or not gap.tokens:
            continue
        # The side that counts more is named.
        more, gap = ("B" if gap.tokens > 0 else "A"), replace(gap, tokens=abs(gap.tokens))
        yield Finding(
            "prompt_tokens",
            (
                f"{more} counts {gap.amount} than the other in {gap.prompts} of {gap.of} prompts"
                f" with the same text: {gap.cause}"
            ),
            change=(
                "serve-eval smoke URL, row special_tokens",
                f"--set {task.word}.add_special_tokens=false",
            ),
            count=gap.prompts,
            of=gap.of,
            task=task.name,
        )


def find_mixed(a: Evidence, b: Evidence, comparison: Comparison | None) -> Iterator[Finding]:
    """Yield a finding for each task if a side that disagrees with itself was asked in parts.

    Another server may have answered in a later session. The value then mixes both.
    """
    said = () if comparison is None else comparison.warnings
    for name, side in (("A", a), ("B", b)):
        sessions = len(side.sessions)
        if sessions < 2 or not any(one.startswith(f"unsteady: {name} ") for one in said):
            continue
        for task in side.tasks:
            yield Finding(
                MIXED,
                (
                    f"answers of two servers may be mixed: {name} was asked in {sessions} sessions"
                    " and disagrees with itself"
                ),
                change=("the same serve-eval compare command with another folder for -o",),
                count=sessions,
                of=sessions,
                task=task.name,
            )
