"""Judge which arms changed answers, with tests corrected for all arms and tasks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evidence.agreement import answer_pairs
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.evidence.agreement.self_flips import self_flips
from serve_eval.schema import Invariant, Invariants, Plan
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage.reports.invariants_files import read_pressure
from serve_eval.storage.reports.report_file import read_report
from serve_eval.storage.story_files import INVARIANTS
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, went_through
from serve_eval.workflows.invariants.arms import BASE, COLD, Arm
from serve_eval.workflows.invariants.cache_use import (
    use_of_cache,
    use_under_pressure,
    why_not_pressed,
    why_not_tested,
)

ALPHA = 0.01
"""Chance of accusing a sound endpoint of anything, over all arms and tasks."""


def judge_arms(
    out_dir: Path,
    plan: Plan,
    arms: Sequence[Arm],
    skipped: Mapping[str, str],
    unsalted: Mapping[str, str | None],
) -> Invariants:
    """Test every arm against the passes that it is compared with, task by task.

    An arm that is not broken holds, except the cold one and those under pressure on a server whose
    cache they did not test.
    `unsalted` is, by task, the reason why the prompts of that arm had no salt (None: they had).
    """
    log = read_pressure(out_dir)
    levels = {level.name: level for level in log.levels}
    reports = {arm.name: read_report(out_dir / arm.name) for arm in arms}
    found = []
    for arm in arms:
        if arm.against is None:
            continue
        for name in (task.result.task for task in reports[arm.name].tasks):

            def collect_answers(one: str, task: str = name) -> TaskAnswers:
                return answer_pairs.read_task(out_dir / one, reports[one], task)

            pair = None if arm.pair is None else collect_answers(arm.pair)
            answers = [collect_answers(other) for other in (*arm.against, arm.name)]
            one = _test_arm(arm, name, answers, pair)
            if one is not None and arm.name == COLD:
                one = replace(one, cache=use_of_cache(answers[-1], answers[0], unsalted[name]))
            elif one is not None and (level := levels.get(arm.name)) is not None:
                one = replace(one, pressure=use_under_pressure(answers, log, level.filled))
            if one is not None:
                found.append(replace(one, not_tested=_why_unfinished(answers)))
    corrected = holm([_p(one) for one in found])
    results = tuple(map(_conclude, found, corrected))
    unfinished = bool(found) and all(one.not_tested for one in found)
    broken = any(result.broken for result in results)
    rehearsal = any(report.rehearsal for report in reports.values())
    code = FAIL if broken else PASS if results and not unfinished else NOTHING_SCORED
    return Invariants(
        schema_version=INVARIANTS.version,
        model=plan.model,
        base_url=reports[BASE].endpoint.base_url,
        alpha=ALPHA,
        results=results,
        skipped=skipped,
        rehearsal=rehearsal,
        exit_code=went_through(code) if rehearsal else code,
        started_at=reports[BASE].started_at,
        wall_s=0.0,
    )


def _conclude(one: Invariant, p: float) -> Invariant:
    """Return an arm with its corrected p, and with the reason if it proves nothing."""
    broken = p <= ALPHA
    why = None if broken else one.not_tested
    if broken or why is not None:
        pass
    elif one.cache is not None:
        why = why_not_tested(one.cache)
    elif one.pressure is not None:
        why = why_not_pressed(one.pressure)
    return replace(one, p_holm=p, broken=broken, not_tested=why)


def _why_unfinished(answers: Sequence[TaskAnswers]) -> str | None:
    """Return that most answers were cut within thoughts, so that they show nothing; else None."""
    results = [one.task.result for one in answers]
    cut, scored = sum(one.cut_in_thoughts for one in results), sum(one.scored for one in results)
    if 2 * cut < scored:
        return None
    return (
        f"{cut} of {scored} answers were cut within the model's thoughts: raise max_tokens, or"
        " switch thinking off"
    )


def _test_arm(
    arm: Arm, task: str, answers: Sequence[TaskAnswers], pair: TaskAnswers | None
) -> Invariant | None:
    """Test one arm for one task, without the correction for multiple tests.

    `answers` are the two passes to compare with, and the arm's own. Returns None if no prompt was
    answered in all of them.
    """
    changed = self_flips(
        arm.name,
        *answers,
        other_run=-1,
        differ=answer_pairs.another_answer,
        exchangeable=arm.exchangeable,
        alpha=ALPHA,
    )
    if changed is None:
        return None
    lower, higher = (
        (None, None)
        if pair is None
        else _fell_and_rose((answers[2], pair), (answers[0], answers[1]))
    )
    return Invariant(
        task=task,
        arm=arm.name,
        what=arm.what,
        changed=changed,
        agreement=answer_pairs.agreement(answers[0], answers[2], b_run=-1),
        p_holm=1.0,
        broken=False,
        fell=lower,
        rose=higher,
    )


def _fell_and_rose(
    before: tuple[TaskAnswers, TaskAnswers], after: tuple[TaskAnswers, TaskAnswers]
) -> tuple[int, int]:
    """Count the prompts whose score sum over two passes fell and rose from `before` to `after`."""
    sign = 1.0 if before[0].task.result.metric.higher_is_better else -1.0
    passes = [answers.lines[0] for answers in (*before, *after)]
    prompts = [p for p in passes[0] if all(p in lines for lines in passes)]
    changes = []
    for prompt in prompts:
        one, other, first, second = (lines[prompt].value for lines in passes)
        # Exactly 0 where the passes are equal.
        changes.append(sign * ((first - one) + (second - other)))
    return sum(change < 0.0 for change in changes), sum(change > 0.0 for change in changes)


def _p(one: Invariant) -> float:
    """Return the p value of the accusation.

    It is that of more changed answers or, if scores are judged, of more changes in one direction
    (two-sided).
    """
    if one.fell is None or one.rose is None:
        return one.changed.p
    return min(1.0, 2.0 * mcnemar(max(one.fell, one.rose), min(one.fell, one.rose)).p_mid)
