"""Test that healthy runs are hardly ever accused, by the levels of all rules together."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.schema import Attempt, FailureKind, Limits, Outcome, Plan, Response, Spec, Usage
from serve_eval.storage.scores import ScoreRecord
from serve_eval.storage.sessions import SessionRecord
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.extraction import states
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    MIXED,
    PLACE,
    AskedSample,
    Finding,
    list_leading,
    order_findings,
)
from serve_eval.workflows.diagnose.run_rules import (
    OF_A_RUN,
    OF_A_TASK,
    TESTS,
    findings,
    sum_comparison_levels,
    sum_levels,
)
from serve_eval.workflows.diagnose.unanswered import _time_limit


@pytest.mark.parametrize(
    ("text", "target", "told"),
    [
        ("All in all, the answer is 42.", "42", True),
        ("so \\boxed{42} it is, as 43 would be odd", "42", True),
        ("12 + 30 = 42", "42", True),
        ("That makes $1,042.", "1042", True),
        ("42 is what I had first, but it must be 43", "42", False),
        ("12 + 30 = 142", "42", False),
        ("It is 42.5", "42", False),
        ("Answer: (B)", "B", True),
        ("The answer is **B**.", "B", True),
        ("I would say B", "B", False),
        ("A bee", "A", False),
        ("The capital is Paris.", "paris", True),
        ("", "42", False),
        ("anything", "", False),
        ("x" * 60, "x" * 60, False),
    ],
)
def test_what_a_text_states(text: str, target: str, told: bool) -> None:
    assert states(text, target) is told


def healthy(rng: random.Random, n: int) -> Evidence:
    """Return a run whose wrong answers are independent of finish reason, time and load."""
    asked = []
    prints = {
        "task": "t",
        "max_tokens": "128",
        "stop": '["\\n\\n"]',
        "apply_chat_template": "false",
    }
    accuracy, cut, stopped, late = (
        rng.uniform(*span) for span in ((0.4, 0.95), (0.0, 0.6), (0.0, 0.6), (0.0, 0.3))
    )
    ends = [0.0] * 16
    for i in range(n):
        right = rng.random() < accuracy
        worker = min(range(16), key=ends.__getitem__)
        start = ends[worker] + (rng.expovariate(5.0) if rng.random() < late else 0.001)
        ends[worker] = start + rng.expovariate(4.0)
        length = rng.random() < cut
        response = Response(
            text=f"so it is {17 if right else 18}",
            finish_reason="length" if length else "stop",
            stop_reason="\n\n" if not length and rng.random() < stopped else None,
            usage=Usage(prompt_tokens=9, completion_tokens=128 if length else 40),
            attempts=(
                Attempt(
                    start_s=1e9 + start,
                    end_s=1e9 + ends[worker],
                    failure=None,
                    status=200,
                    request_id="r",
                ),
            ),
        )
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        parts = {
            "strict-match": float(right),
            "flexible-extract": float(right or rng.random() < 0.02),
        }
        line = ScoreRecord(
            id=str(i), outcome=outcome, value=float(right), target="17", answer=None, parts=parts
        )
        asked.append(
            AskedSample(
                id=str(i),
                response=response,
                failure=None,
                attempts=response.attempts,
                line=line,
                bad=not right,
            )
        )
    return Evidence(
        folder=Path("run"),
        plan=Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),)),
        sessions=[SessionRecord(limits=Limits(order="random", concurrency=16))],
        report=None,
        tasks=(TaskEvidence(name="t", fingerprint=prints, asked=tuple(asked), report=None),),
        logs=(),
    )


def test_healthy_runs_are_hardly_ever_accused() -> None:
    """Three rules compare shares at .001 each, so on average less than one of 250 runs is accused.

    The chance of eight or more is below one in a million.
    """
    rng = random.Random("healthy")
    runs = (healthy(rng, rng.choice((60, 150, 400))) for _ in range(250))
    accused = [
        found for run in runs if (found := {one.rule for one in findings(run)} - {"unfinished"})
    ]
    assert len(accused) < 8, accused


def test_repeats_of_a_prompt_are_no_further_witnesses() -> None:
    """A server that repeats its answers repeats each coincidence of a prompt eight times."""
    rng = random.Random(2)
    accused = 0
    for _ in range(100):
        run = healthy(rng, 60)
        [task] = run.tasks
        asked = tuple(
            replace(one, id=one.id if n == 1 else f"{one.id}#{n}")
            for one in task.asked
            for n in range(1, 9)
        )
        found = findings(replace(run, tasks=(replace(task, asked=asked, repeats=8),)))
        accused += any(one.rule != "unfinished" for one in found)
    assert accused <= 2


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        ((2.0, 2.01, 2.02, 2.03), 2.015),
        ((2.0, 2.0, 2.0, 2.9), 2.0),  # a busy machine
        ((2.0, 2.0, 2.9, 2.9), None),
        ((1.5, 2.0, 2.0, 2.0), None),  # a limit never ends early
        ((0.9, 0.9, 0.9), None),
        ((2.0, 2.0), None),
    ],
)
def test_errors_after_the_same_time_show_a_time_limit(
    times: tuple[float, ...], limit: float | None
) -> None:
    asked = [
        AskedSample(
            id=str(i),
            response=None,
            failure=None,
            attempts=(
                Attempt(
                    start_s=1e9,
                    end_s=1e9 + time,
                    failure=FailureKind.DISCONNECTED,
                    status=None,
                    request_id="r",
                ),
            ),
        )
        for i, time in enumerate(times)
    ]
    assert _time_limit(asked) == (None if limit is None else pytest.approx(limit))


def _find(rule: str, explains: int | None) -> Finding:
    told, lost = f"{rule} did it", 0 if explains is None else 103
    return Finding(rule=rule, told=told, change=(), count=4, of=500, explains=explains, lost=lost)


def test_a_finding_that_explains_nothing_comes_last_and_leads_nowhere() -> None:
    found = [
        _find("repaired", 0),
        _find("even_loss", None),
        _find("truncated", 9),
        _find(PLACE, None),
        _find(MIXED, None),
    ]
    rules = [one.rule for one in order_findings(found)]
    assert rules == [MIXED, PLACE, "truncated", "even_loss", "repaired"]
    assert [one.rule for one in list_leading(found)] == rules[:-1]
    assert list_leading(found[:1]) == []


TEXT = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()


BUDGET = 0.01


def test_all_rules_together_keep_to_one_budget() -> None:
    said = " ".join(TEXT.split())
    assert sum_levels() == pytest.approx(BUDGET)
    assert sum_comparison_levels() == pytest.approx(BUDGET)
    assert f"with a probability of .{round(1000 * BUDGET):03d} at most" in said
    equal = [rule for rule, level in {**OF_A_TASK, **OF_A_RUN}.items() if level == ALPHA]
    listed = re.search(r"at most: (.*?) have \.001 each", said)
    assert listed is not None
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(equal)
    repeated = sum(OF_A_TASK[rule] for rule in ("worker", "slow_worker", "drift"))
    assert f"and the repeated alarms .00{round(1000 * repeated)}" in said
    for rule in ("slice", "unlike"):
        assert f"`{rule}` .00{round(10000 * OF_A_RUN[rule]):02d}" in said


def test_the_tasks_of_a_run_and_the_sides_of_a_comparison_share_the_levels() -> None:
    """Each further answer of as many in one direction halves the one-sided p."""
    for share, apart in ((1.0, 11), (0.5, 12), (0.25, 13)):
        for count, said in ((apart - 1, False), (apart, True)):
            run = healthy_with_parts(count)
            [task] = run.tasks
            shared = replace(run, share=share, tasks=(replace(task, share=share),))
            assert any(one.rule == "extractors" for one in findings(shared)) is said


def test_every_rule_of_the_table_that_tests_has_its_level_in_the_sum() -> None:
    table = TEXT.split("## The rules")[1].split("\n\n")[1]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in table.splitlines()[2:]
    ]
    assert {rule for rule, _, speaks, _ in rows if "test" in speaks} == TESTS


@pytest.mark.parametrize(("apart", "said"), [(10, False), (11, True)])
def test_extractors_are_tested_in_both_directions_at_half_the_level(apart: int, said: bool) -> None:
    """Ten of ten in one direction have a one-sided p of .00098; eleven have .00049."""
    run = healthy_with_parts(apart)
    assert any(one.rule == "extractors" for one in findings(run)) is said


def healthy_with_parts(apart: int) -> Evidence:
    """Return a run of 60 answers; `apart` of them are right by the flexible extractor only.

    Both extractors find the others right.
    """
    run = healthy(random.Random(3), 60)
    [task] = run.tasks
    asked = tuple(
        replace(
            one,
            bad=i < apart,
            line=ScoreRecord(
                id=one.id,
                outcome=Outcome.WRONG if i < apart else Outcome.CORRECT,
                value=float(i >= apart),
                target="17",
                parts={"strict-match": float(i >= apart), "flexible-extract": 1.0},
            ),
            response=(
                None
                if one.response is None
                else msgspec.structs.replace(one.response, finish_reason="stop")
            ),
        )
        for i, one in enumerate(task.asked)
    )
    return replace(run, tasks=(replace(task, asked=asked),))
