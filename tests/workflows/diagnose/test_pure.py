"""Parts of diagnose that need no run: statements in texts, and false alarms on healthy runs."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.schema import Attempt, FailureKind, Limits, Outcome, Plan, Response, Spec, Usage
from serve_eval.storage.records.scores import ScoreRecord
from serve_eval.storage.sessions import SessionRecord
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.extraction import states
from serve_eval.workflows.diagnose.finding import (
    MIXED,
    PLACE,
    Finding,
    list_leading,
    order_findings,
)
from serve_eval.workflows.diagnose.run_rules import findings
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
