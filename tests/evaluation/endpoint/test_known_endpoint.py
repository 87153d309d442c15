"""Test runs over HTTP against an endpoint with known probabilities.

The report must have the values that the same answers give in process.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers.simulated import probability
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Limits, Plan, Response, Spec
from serve_eval.schema.media import prompt_sha256, uniform
from serve_eval.stats.classic import Decision, classic_test, decide
from serve_eval.stats.intervals import bound_missing
from serve_eval.stats.judgement import judge
from serve_eval.stats.pairs import pair
from serve_eval.workflows.references.register import register

ACCURACY, FLIP_RATE, SEED = 0.8, 0.1, 5
SIZES = {"gsm8k": 300, "mmlu": 4 * 57}
DAMAGE = (0.0, 0.06, 0.12)
"""Share of right answers that each candidate turns wrong."""
FAILURES = {4: 0.01, 5: 0.01, 6: 0.04}
"""Share of requests that fail, by candidate. The last one loses too many for a verdict."""


@pytest.fixture
def plan(data_root: Path) -> Plan:
    return Plan(
        model="my-org/my-model",
        launcher=Spec(
            name="simulated", options={"accuracy": ACCURACY, "flip_rate": FLIP_RATE, "seed": SEED}
        ),
        tasks=tuple(Spec(name=name, options={"num_samples": n}) for name, n in SIZES.items()),
        dataset_roots=(str(data_root),),
        limits=Limits(max_attempts=1),
        no_reference=True,
    )


def _report(plan: Plan, folder: Path, **options: object) -> dict[str, Any]:
    launcher = Spec(name="simulated", options={**plan.launcher.options, **options})
    asyncio.run(evaluate(replace(plan, launcher=launcher), folder))
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def _scores(
    p: PreparedTask, run: int, damage: float = 0.0, failure_rate: float = 0.0
) -> list[float]:
    """Return the score of each prompt under the declared probabilities; NaN if it fails."""
    chance = probability(ACCURACY, FLIP_RATE, SEED)
    scores = []
    for sample in p.dataset.samples:
        key = prompt_sha256(sample.prompt)
        right = uniform(f"{SEED}:{run}:{key}") < chance(p.task.name, sample.id) * (1.0 - damage)
        answer = p.task.answers(sample)[0 if right else 1]
        failed = uniform(f"{SEED}:fail:{key}") < failure_rate
        scores.append(
            math.nan
            if failed
            else p.task.score(sample, Response(text=answer, finish_reason="stop")).value
        )
    return scores


def _record(n: int, reference: Sequence[list[float]], scores: list[float]) -> dict[str, Any]:
    """Return the numbers and the verdicts that follow from the scores, in points."""
    known = [score for score in scores if not math.isnan(score)]
    missing = n - len(known)
    low, high = bound_missing(math.fsum(known), len(known), n, 0.0, 1.0)
    ends = 100 * low, 100 * high
    mean = math.fsum(100 * (math.fsum(run) / n) for run in reference) / len(reference)
    test = classic_test(n, mean, 50.0, 0.05, 0.2)
    decision = decide(ends, test.threshold)
    undecided = decision is Decision.UNDECIDED or missing > 0.02 * n
    pairs = pair(reference, scores, lo=0.0, hi=1.0, higher_is_better=True)
    told = judge(pairs, margin=abs(test.threshold - mean) / 100)
    return {
        "outcome": "INCONCLUSIVE" if undecided else decision.value,
        "evaluated": 100 * (math.fsum(known) / len(known)),
        "bounds": list(ends),
        "reference": mean,
        "threshold": test.threshold,
        "theta": test.theta,
        "paired": {
            "pairs": n,
            "missing": missing,
            "method": told.test.method.value,
            "difference": 100 * told.test.mean,
            "down": pairs.down,
            "up": pairs.up,
            "p": told.test.p,
            "p_exact": told.test.p_exact,
            "lower": 100 * told.bounds.lower,
            "upper": 100 * told.bounds.upper,
            "noninferior": told.noninferior.holds,
            "equivalent": told.equivalent.holds,
            "finding": told.finding.value,
            "reasons": [reason.value for reason in told.reasons],
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize(("runs", "method"), [(1, "mcnemar_midp"), (3, "permutation")])
def test_ten_runs_are_judged_as_their_answers_are_in_process(
    plan: Plan, tmp_path: Path, runs: int, method: str
) -> None:
    prepared = prepare(plan)
    for run in range(runs):
        _report(plan, tmp_path / f"reference{run}", run=run)
    register([tmp_path / f"reference{run}" for run in range(runs)], tmp_path / "refs")
    judged = replace(
        plan, no_reference=False, references_dir=str(tmp_path / "refs"), rule_named=True
    )
    outcomes, findings = set(), set()
    for i in range(10):
        number, damage, rate = 10 + i, DAMAGE[i % 3], FAILURES.get(i, 0.0)
        report = _report(judged, tmp_path / f"run{i}", run=number, damage=damage, failure_rate=rate)
        for p, told in zip(prepared, report["tasks"], strict=True):
            verdict = told["verdict"]
            reference = [_scores(p, run) for run in range(runs)]
            expected = _record(len(p.dataset.samples), reference, _scores(p, number, damage, rate))
            assert verdict["paired"]["method"] == method
            paired = expected.pop("paired")
            assert {name: verdict["paired"][name] for name in paired} == paired
            assert {name: verdict[name] for name in expected} == expected
            outcomes.add(verdict["outcome"])
            findings.add(verdict["paired"]["finding"])
    assert outcomes == {"PASS", "FAIL", "INCONCLUSIVE"}
    assert {"PASS", "FAIL", "INCONCLUSIVE"} <= findings
