"""Judge which arms changed answers, and make the document of the check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evidence import answer_pairs
from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.evidence.self_flips import self_flips
from serve_eval.report.ci_result import CiCase, CiState, CiSuite
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    name_state,
    rank_outcome,
)
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.schema import Invariant, Invariants, Plan
from serve_eval.shell_words import quote_path
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage.report_file import read_report
from serve_eval.storage.story_files import INVARIANTS
from serve_eval.storage.story_results import read_pressure
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, went_through
from serve_eval.workflows.invariants.arms import BASE, COLD, Arm
from serve_eval.workflows.invariants.by_turn import (
    compare_turns,
    cut_to_first_change,
    describe_turns,
    join_p,
    name_turn,
)
from serve_eval.workflows.invariants.cache_use import (
    describe_pressure,
    describe_use,
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
            if one is not None and any(p.conversations for p in arm.prepared or ()):
                one = replace(one, turns=compare_turns(answers))
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
        *cut_to_first_change(answers),
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
    if one.turns and one.arm == COLD:
        return join_p(one.changed.p, one.turns)
    if one.fell is None or one.rose is None:
        return one.changed.p
    return min(1.0, 2.0 * mcnemar(max(one.fell, one.rose), min(one.fell, one.rose)).p_mid)


DIFFERS, NOT_TESTED = "DIFFERS", "NOT TESTED"
"""Outcomes of changes that accuse nobody: numerics differ, or equal answers show nothing."""
COLUMNS = ("outcome", "change", "task", "asked", "changed", "itself", "same", "p")
CAPTION = (
    "changed: prompts whose answer changes with the change; itself: without it; same: identical"
    " answers; p: corrected for all changes and tasks"
)
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS", NOTHING_SCORED: "ERROR"}
_STATES = {"FAIL": CiState.FAILURE, "PASS": CiState.PASSED}


def make_document(found: Invariants, out_dir: Path) -> Document:
    """Return the document of a check: the changes that changed answers, then the others."""
    conclusions = [_make_conclusion(found, one) for one in found.results] or [
        Conclusion(
            "changes",
            "ERROR",
            cause="no prompt was answered in all passes of a change",
        )
    ]
    outcome = _OUTCOMES[found.exit_code]
    table = _tabulate(found, conclusions)
    return Document(
        "invariants",
        f"serve-eval check invariants {found.base_url}",
        found,
        outcome="INCONCLUSIVE" if found.rehearsal and outcome != "ERROR" else outcome,
        conclusions=conclusions,
        noun="changes",
        overview=table,
        endpoint=found.base_url,
        statements=[
            Statement("not tried", f"{name}: {why}", depth=Depth.MORE)
            for name, why in found.skipped.items()
        ],
        blocks=[] if len(found.results) != 1 else [Block(table, depth=Depth.FIRST)],
        commands=list(_list_next(found, out_dir))[:3],
        suites=_list_suites(found, conclusions),
        result=out_dir / INVARIANTS.result,
    )


def _name_outcome(found: Invariants, one: Invariant) -> str:
    if found.rehearsal:
        return "NOT JUDGED"
    if one.broken:
        return "FAIL"
    if one.fell is not None and one.changed.more:
        return DIFFERS
    return "PASS" if one.not_tested is None else NOT_TESTED


def _name(found: Invariants, one: Invariant) -> str:
    """Return the name of a change, with its task if there are several."""
    several = len({other.task for other in found.results}) > 1
    return f"{one.arm}, {one.task}" if several else one.arm


def _make_conclusion(found: Invariants, one: Invariant) -> Conclusion:
    """Return what a change did to the answers to a task."""
    outcome = _name_outcome(found, one)
    changed = one.changed
    figures = f"{changed.other} of {changed.prompts} answers changed, {changed.own} by themselves"
    if one.fell is not None and outcome == "FAIL":
        figures = (
            f"{one.fell} of {changed.prompts} scores fell with many in flight, {one.rose} rose"
        )
    return Conclusion(
        _name(found, one),
        outcome,
        figures=f"{figures}, p {one.p_holm:.2g}",
        cause=_explain(one) if outcome in ("FAIL", NOT_TESTED) else "",
        statements=list(_describe(one, outcome)),
    )


def _explain(one: Invariant) -> str:
    """Return the change that is broken, or why it was not tested."""
    if not one.broken:
        return one.not_tested or ""
    turn = name_turn(one.turns)
    return f"answers change when asked {one.what}" + (f"; they begin with {turn}" if turn else "")


def _describe(one: Invariant, outcome: str) -> Iterator[Statement]:
    """Yield what the change is, and what the server reports about it."""
    depth = Depth.FIRST if outcome == "FAIL" else Depth.MORE
    if outcome != "FAIL":
        yield Statement("change", one.what, depth=Depth.MORE)
    if one.cache is not None:
        yield Statement("cache", describe_use(one.cache), depth=depth)
    if one.turns:
        yield Statement("turns", describe_turns(one.turns), depth=depth)
    if one.pressure is not None and one.not_tested is None:
        fate, whole = (describe_pressure(one.pressure, broken=x) for x in (False, one.broken))
        yield Statement("cache", fate, depth=depth)
        if answers := whole.removeprefix(fate).removeprefix("; "):
            yield Statement("answers", answers, depth=depth)
    if one.fell is not None:
        yield Statement("scores", _describe_scores(one), depth=Depth.MORE)
    if outcome == DIFFERS:
        told = (
            f"{one.changed.other} answers change, {one.changed.own} do without the change: batch"
            " size changes numerics, so a sound server may differ here"
        )
        yield Statement("note", told)


def _describe_scores(one: Invariant) -> str:
    return (
        f"with many requests in flight, {one.fell} prompts have worse scores and {one.rose} better"
        " ones"
    )


def _list_next(found: Invariants, out_dir: Path) -> Iterator[str]:
    """Yield commands that show the samples whose scores a broken change turned."""
    broken = [one for one in found.results if one.broken and not found.rehearsal]
    for one in sorted(broken, key=lambda one: one.p_holm):
        if one.arm.startswith("chunked_"):
            continue
        places = [quote_path(out_dir / name) for name in (one.arm, BASE)]
        yield f"serve-eval show {places[0]} --against {places[1]}"


def _tabulate(found: Invariants, conclusions: Sequence[Conclusion]) -> DataTable:
    """Return a row for each change and task, the broken ones first."""
    pairs = zip(found.results, conclusions, strict=False)
    rows = sorted(pairs, key=lambda pair: rank_outcome(pair[1].outcome))
    several = len({one.task for one in found.results}) > 1
    kept = [i for i, name in enumerate(COLUMNS) if several or name != "task"]
    cells = [_list_cells(one, told.outcome) for one, told in rows]
    return DataTable(
        "Changes",
        columns=[DataColumn(COLUMNS[i], number=i > 2) for i in kept],
        rows=[[row[i] for i in kept] for row in cells],
        caption=CAPTION,
    )


def _list_cells(one: Invariant, outcome: str) -> list[DataCell]:
    agreed, changed = one.agreement, one.changed
    identical = f"{agreed.identical / agreed.prompts:.1%}" if agreed.prompts else "-"
    numbers = (changed.prompts, changed.other, changed.own)
    return [
        DataCell(outcome, state=name_state(outcome)),
        DataCell(one.arm),
        DataCell(one.task),
        *(DataCell(str(number), order=float(number)) for number in numbers),
        DataCell(identical),
        DataCell(f"{one.p_holm:.2g}", order=one.p_holm),
    ]


def _list_suites(found: Invariants, conclusions: Sequence[Conclusion]) -> list[CiSuite]:
    """Return a case for each change and task; one that shows nothing is skipped."""
    pairs = list(zip(found.results, conclusions, strict=False))
    cases = [
        CiCase(
            one.task,
            one.arm,
            state=_STATES.get(told.outcome, CiState.SKIPPED),
            message=told.figures if told.outcome == "FAIL" else told.cause,
            details=[told.figures, *(f"{row.label}: {row.text}" for row in told.statements)],
        )
        for one, told in pairs
    ]
    cases += [
        CiCase("not tried", name, state=CiState.SKIPPED, message=why)
        for name, why in found.skipped.items()
    ]
    host, seconds = found.base_url, found.wall_s
    suite = CiSuite("serve-eval check invariants", cases, host=host, seconds=seconds)
    return [suite] if cases else []
