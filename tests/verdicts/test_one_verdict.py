"""run, suite and compare say the same of the same answers, for one task and for several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Report, Spec, SuiteRun, Verdict, VerdictOutcome
from serve_eval.workflows.compare.verdict import compare_folders
from serve_eval.workflows.references.register import register
from serve_eval.workflows.suite.judgement import EndedRun, judge

pytestmark = pytest.mark.usefixtures("simulated_here")

TASKS = (
    Spec(name="gsm8k", options={"num_samples": 200}),
    Spec(name="mmlu", options={"num_samples": 150}),
)
STATES = ((0.0, 0.02), (0.03, 0.1), (0.06, 0.05), (0.1, 0.0), (0.4, 0.02))
"""Share of the answers that are damaged, and of those that change without a reason."""


@pytest.mark.parametrize("tasks", [TASKS[:1], TASKS], ids=["one task", "two tasks"])
def test_run_suite_and_compare_have_one_verdict(
    data_root: Path, tmp_path: Path, tasks: tuple[Spec, ...]
) -> None:
    alone = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": 0.8, "seed": 3}),
        tasks=tasks,
        dataset_roots=(str(data_root),),
        no_reference=True,
    )
    a, names, seen = tmp_path / "a", [spec.name for spec in tasks], set()
    _run(alone, a)
    register([a], tmp_path / "refs")
    plan = replace(alone, no_reference=False, references_dir=str(tmp_path / "refs"))
    for number, (damage, flips) in enumerate(STATES):
        b = tmp_path / str(number)
        report = _run(plan, b, run=1, damage=damage, flip_rate=flips)
        by_run = {task.result.task: task.verdict for task in report.tasks}
        compared = compare_folders(a, b, Spec(name="paired"))
        by_pair = {task.task: task.verdict for task in compared.tasks}
        assert _facts(by_run, names) == _facts(by_pair, names)
        run = SuiteRun(name="b", plan=report.plan)
        suite = judge([EndedRun(run=run, report=report)], (), date(2026, 1, 1))
        assert [one.outcome for one in suite.rows] == [by_run[name].outcome for name in names]
        assert suite.exit_code == compared.exit_code == report.exit_code
        assert {by_run[name].rule for name in names} == {"paired"}
        seen |= {by_run[name].outcome for name in names}
    assert {VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE} <= seen


def _run(plan: Plan, folder: Path, **more: float) -> Report:
    options = {**plan.launcher.options, **more}
    return asyncio.run(
        evaluate(replace(plan, launcher=Spec(name="simulated", options=options)), folder)
    )


def _facts(found: Mapping[str, Verdict], names: Sequence[str]) -> list[tuple[object, ...]]:
    """Return what decides, by task: the outcome, the figures of the pairs, and the correction."""
    facts: list[tuple[object, ...]] = []
    for name in names:
        verdict = found[name]
        pairs = verdict.paired
        assert pairs is not None
        figures = (pairs.p, pairs.difference, pairs.lower, pairs.margin, verdict.p_holm)
        facts.append(
            (
                *(verdict.outcome, verdict.rule, verdict.tests, pairs.finding),
                *(None if one is None else round(one, 9) for one in figures),
            )
        )
    return facts
