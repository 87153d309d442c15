"""Judge the answers, failures and speed of B in a comparison, with A as the reference.

The results are warnings, since they say nothing about the answers.
"""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from serve_eval.errors import ExternalCodeError, ServeEvalError
from serve_eval.evidence import score_pairs as evidence_score_pairs
from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.evidence.score_pairs import score_pairs
from serve_eval.plugins.values import VerdictRule, load_verdict_rule
from serve_eval.processes.resources import describe_busy, is_busy
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Cut, Plan, Reference, Spec, Task, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.sign_tests import SLOWER, lateness, mcnemar
from serve_eval.verdicts import many_tests, repaired, validity
from serve_eval.workflows.compare.exact import ExactAnswers, add_own

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


def judge_sides(
    plan: Plan, a: TaskAnswers, b: TaskAnswers, rule: Spec, exact: ExactAnswers | None
) -> Verdict:
    """Return the rule's verdict of B, with A's value and its scores per prompt as the reference.

    It is ERROR, with the reason, if a rule of the user raises or returns no verdict.
    """
    try:
        return leave_open(_judge_sides(plan, a, b, rule, exact), a, b, exact=exact is not None)
    except ExternalCodeError as error:
        return Verdict(
            task=b.task.result.task,
            outcome=VerdictOutcome.ERROR,
            rule=rule.name,
            evaluated=b.task.result.value,
            reasons=(f"{error}; the answers are kept: mend the rule, then compare again",),
        )


def leave_open(verdict: Verdict, a: TaskAnswers, b: TaskAnswers, *, exact: bool) -> Verdict:
    """Return a verdict that is INCONCLUSIVE if a limit ended a side before all was asked.

    The figures are those of the prompts that both were asked. With `exact`, one answer that differs
    is a FAIL whatever the others are.
    """
    ends = [end for one in (a, b) if (end := one.task.verdict.budget) is not None]
    certain = exact and verdict.outcome is VerdictOutcome.FAIL
    if not ends or certain or verdict.outcome is VerdictOutcome.UNSUPPORTED:
        return verdict
    common, planned = b.planned, max(end.planned for end in ends) // len(b.lines)
    said = f"{ends[0].ended_by}: the limit ended the comparison after {common:,} of {planned:,}"
    reasons = [f"{said} prompts were asked of both"]
    if common and verdict.outcome in (VerdictOutcome.PASS, VerdictOutcome.FAIL):
        reasons.append(
            f"of these prompts alone the rule says {verdict.outcome}, which decides nothing of all"
        )
    return replace(verdict, outcome=VerdictOutcome.INCONCLUSIVE, reasons=tuple(reasons))


def _judge_sides(
    plan: Plan, a: TaskAnswers, b: TaskAnswers, rule: Spec, exact: ExactAnswers | None
) -> Verdict:
    before, after = a.task.result, b.task.result
    lacking = [
        had.task.verdict for had in (a, b) if had.task.verdict.outcome is VerdictOutcome.UNSUPPORTED
    ]
    if lacking:
        return replace(lacking[0], rule=rule.name)
    if before.value is None or after.value is None:
        side = "A" if before.value is None else "B"
        return Verdict(
            task=after.task,
            outcome=VerdictOutcome.ERROR,
            rule=rule.name,
            evaluated=after.value,
            reasons=(f"nothing_scored: no answer of {side} could be scored",),
        )
    task = build_task(a.task.spec, f"tasks.{after.task}")
    # A run judges with the number that was asked for, of which a task may ask a few more.
    n = min(a.planned, task.hypothesis.num_samples or a.planned)
    hypothesis = replace(task.hypothesis, num_samples=n)
    reference = Reference(
        task=after.task,
        model=plan.model or "A",
        spec=plan.accuracy_spec,
        value=before.value,
        num_samples=n,
    )
    judging = load_verdict_rule(rule.name)
    options = judging.check_options(rule.options)
    pairs, why = _pair(task, a, b, judging, None if exact is None else exact.pairs)
    higher = after.metric.higher_is_better

    def judge(
        result: TaskResult,
        pairs: Pairs | None,
        against: Reference = reference,
        **more: object,
    ) -> Verdict:
        found = judging.judge(result, against, hypothesis, pairs, **{**options, **more})
        return many_tests.add_other(found, result, higher_is_better=higher)

    verdict = judge(after, pairs)
    if (doubt := _doubt(a, b)) is not None:
        # The samples whose first answers are unknown are missing on both sides.
        sides = a.without_doubted(), b.without_doubted()
        fewer, _ = _pair(task, *sides, judging, None if exact is None else exact.known)
        more = repaired.allow_more(judging, doubt.share, options)
        bounded = partial(judge, repaired.as_bounded(after), fewer, _at_best(reference, a), **more)
        policy = repaired.read_policy(rule.options)
        verdict = repaired.settle(verdict, bounded, doubt, policy, after, exact=judging.needs_texts)
    if not judging.needs_texts:
        right = evidence_score_pairs.with_cuts_right(a), evidence_score_pairs.with_cuts_right(b)

        def judge_right(before: TaskAnswers, after: TaskAnswers) -> Verdict:
            pairs, _ = _pair(task, before, after, judging, None)
            value = before.task.result.value
            assert value is not None
            return judge(after.task.result, pairs, replace(reference, value=value))

        cut = evidence_score_pairs.count_cut(a), evidence_score_pairs.count_cut(b)
        verdict = validity.add_effect(
            verdict,
            replace(after, cut=after.cut or ({Cut.MAX_TOKENS: cut[1]} if cut[1] else {})),
            own=None if right[1] is None or not cut[1] else partial(judge_right, a, right[1]),
            reference_cut=cut[0],
            reference_answers=sum(map(len, a.lines)),
            theirs=None if right[0] is None or not cut[0] else partial(judge_right, right[0], b),
            reference_name="A",
        )
    verdict = many_tests.warn(verdict)
    # The other warnings belong to the classic test, which does not judge here.
    kept = (
        *("small_drop", "run_effect", many_tests.DISAGREE, validity.CUT),
        *repaired.WARNINGS,
    )
    verdict = replace(
        verdict, warnings=tuple(line for line in verdict.warnings if line.startswith(kept))
    )
    if exact is not None:
        return add_own(verdict, exact.equality)
    return replace(verdict, reasons=(*verdict.reasons, why)) if why else verdict


def _pair(
    task: Task, a: TaskAnswers, b: TaskAnswers, judging: VerdictRule, exact: Pairs | None
) -> tuple[Pairs | None, str]:
    """Return the pairs that the rule judges, or None with the reason."""
    if judging.needs_texts:
        return exact, ""
    if not task.aggregation.paired:
        return None, (
            f"the value is the {task.aggregation.name} of the scores, which has no paired"
            " comparison"
        )
    try:
        return score_pairs(a, b, task.aggregation.sums), ""
    except ServeEvalError as error:
        return None, str(error)


def _at_best(reference: Reference, a: TaskAnswers) -> Reference:
    """Return the reference with A's value if all its unknown first answers were right."""
    result = a.task.result
    if not result.doubted or result.doubted_bounds is None:
        return reference
    return replace(reference, value=result.doubted_bounds[result.metric.higher_is_better])


def _doubt(a: TaskAnswers, b: TaskAnswers) -> repaired.Doubt | None:
    """Return the doubt about the first answers of both sides; None if all are known."""
    gone = [(repeat, prompt) for repeat, one in enumerate(b.doubted) for prompt in one]
    other = {(repeat, prompt) for repeat, one in enumerate(a.doubted) for prompt in one}
    if not gone and not other:
        return None
    result = b.task.result
    low, high = (result.doubted_bounds if gone else result.bounds) or (None, None)
    scores = {prompt: line.value for lines in a.lines[:1] for prompt, line in lines.items()}
    places = {prompt: place for place, prompt in enumerate(scores)}
    return repaired.Doubt(
        count=len({*gone, *other}),
        planned=result.planned,
        restarted=min(result.restarted + a.task.result.restarted, len({*gone, *other})),
        unlisted=min(result.unlisted + a.task.result.unlisted, len({*gone, *other})),
        low=low,
        high=high,
        p=repaired.measure_dependence(
            [places[prompt] for _, prompt in gone if prompt in places], [*scores.values()]
        ),
    )


ALPHA = 0.01
"""Chance of each warning for two endpoints that serve equally well."""
LATE = 3.0
"""A response is late if it takes this many times the median of its side."""
PARTS = 10
"""Number of parts of a run, in the order of its requests."""


def slower(a: TaskAnswers, b: TaskAnswers, cores_busy: float | None = None) -> str | None:
    """Return a warning if B takes more than SLOWER times as long as A for most prompts.

    The excess must be beyond chance. Applies to requests that were sent at the same time. If the
    cores of this machine were busy throughout, the line says that it is no evidence: servers that
    share them, or their client, wait for each other. Of two sound deployments, the one with more
    processes then takes longer, as a pair of vLLM on two cores does.
    """
    times = [
        (a.latency_s[prompt], b.latency_s[prompt])
        for prompt in a.latency_s
        if prompt in b.latency_s
    ]
    longer, _, p = lateness(times)
    if p > ALPHA:
        return None
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    took = f"B took {medians[1]:.3g} s per answer and A {medians[0]:.3g} s (medians)"
    if cores_busy is not None and is_busy(cores_busy):
        return f"busy_cores: {took}, {describe_busy(cores_busy)} B"
    return (
        f"slower: {took}, more than {SLOWER:g} times as long for {longer} of {len(times)}"
        f" {_name_asked(a, b)} (p = {p:.2g})"
    )


def uneven(a: TaskAnswers, b: TaskAnswers) -> str | None:
    """Return a warning if more answers of B than of A are late throughout the run.

    Late means more than LATE times the median of the same side. One slow worker among several
    causes that without moving a median.

    This is the sign test over PARTS parts of the run: in a part, more prompts are late only at B,
    or only at A, or neither. A pause, which makes all requests in flight late, falls into one part.
    """

    both = sorted(
        (prompt for prompt in a.latency_s if prompt in b.latency_s), key=lambda p: b.started_s[p]
    )
    of_a, of_b = (_late([answers.latency_s[prompt] for prompt in both]) for answers in (a, b))
    surplus = [0] * PARTS
    for place in range(len(both)):
        surplus[place * PARTS // len(both)] += (place in of_b) - (place in of_a)
    more = sum(one > 0 for one in surplus)
    p = mcnemar(more, sum(one < 0 for one in surplus)).p_mid
    if p > ALPHA:
        return None
    return (
        f"uneven: {len(of_b)} of {len(both)}{_name_first(a, b)} answers of B took more than"
        f" {LATE:g} times their median, and {len(of_a)} of A; more in {more} of {PARTS} parts of"
        f" the run (p = {p:.2g}):"
        " one of several servers of B may be slow"
    )


def _name_first(a: TaskAnswers, b: TaskAnswers) -> str:
    """Return " first" if a side answered prompts several times: only first answers are compared."""
    return " first" if max(len(a.lines), len(b.lines)) > 1 else ""


def _name_asked(a: TaskAnswers, b: TaskAnswers) -> str:
    """Return the units of a count: prompts, each by its first answer."""
    return "prompts (first answers)" if _name_first(a, b) else "prompts"


def _late(times: list[float]) -> set[int]:
    """Return the positions of the times beyond LATE times the median."""
    limit = LATE * statistics.median(times) if times else 0.0
    return {place for place, time in enumerate(times) if time > limit}


def more_failures(a: TaskAnswers, b: TaskAnswers) -> str | None:
    """Return a warning if more prompts had failed requests at B than at A, beyond chance.

    A failed request counts even if a retry succeeded. McNemar's test of the prompts for which
    requests failed on only one side.
    """

    only_b = [prompt for prompt in b.failed if prompt not in a.failed]
    p = mcnemar(len(only_b), sum(prompt not in b.failed for prompt in a.failed)).p_mid
    if p > ALPHA:
        return None
    kinds = Counter(b.failed.values()).most_common()
    told = ", ".join(f"{count} {kind}" for kind, count in kinds)
    return (
        f"more_failures: requests for {len(b.failed)} of {b.planned} {_name_asked(a, b)} failed at"
        f" B ({told}) and for {len(a.failed)} at A (p = {p:.2g}): prompts that a retry answered"
        " count as answered"
    )
