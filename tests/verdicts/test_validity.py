"""Test which results may be judged, and what is said of their answers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serve_eval.schema import Metric, Outcome, TaskResult
from serve_eval.verdicts.validity import objections, remarks

RESULT = TaskResult(
    task="mmlu",
    metric=Metric(),
    planned=1000,
    scored=1000,
    failed=0,
    truncated=0,
    stopped_in_reasoning=0,
    outcomes={},
    failures={},
    value=70.0,
    bounds=(70.0, 70.0),
    parts={},
    breakdown={},
)


@pytest.mark.parametrize(
    ("failed", "share", "name"),
    [
        (20, 0.02, None),
        (21, 0.02, "too_many_missing"),
        (500, 0.5, None),
        (501, 0.5, "too_many_missing"),
        (0, 0.0, None),
        (1, 0.0, "too_many_missing"),
        (1000, 1.0, "nothing_scored"),
    ],
)
def test_a_result_may_lack_the_allowed_share_and_no_answer_more(
    failed: int, share: float, name: str | None
) -> None:
    told = objections(replace(RESULT, scored=1000 - failed, failed=failed), share)
    assert [reason.partition(":")[0] for reason in told] == ([] if name is None else [name])


def test_missing_answers_without_bounds_are_an_objection() -> None:
    told = objections(replace(RESULT, scored=999, failed=1, bounds=None))
    assert told[0].startswith("missing_results: 1 answers are missing")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"cut": {"max_tokens": 10}}, ()),
        ({"cut": {"max_tokens": 11}}, ("11 of 1000 answers were cut at max_tokens=256",)),
        (
            {"cut": {"max_tokens": 6, "window": 5}},
            (
                "6 of 1000 answers were cut at max_tokens=256: raise it",
                "5 of 1000 answers were cut by the server's window",
            ),
        ),
        ({"truncated": 1000}, ()),
        ({"outcomes": {Outcome.UNPARSED: 50}}, ()),
        (
            {"outcomes": {Outcome.UNPARSED: 51}},
            ("no result could be extracted from 51 of 1000 answers",),
        ),
        ({"cut": {"max_tokens": 11}, "scored": 0, "failed": 1000}, ()),
    ],
)
def test_what_concerns_more_answers_than_a_limit_is_told(
    fields: dict[str, object], said: tuple[str, ...]
) -> None:
    told = remarks(replace(RESULT, **fields), max_tokens=256)
    assert len(told) == len(said)
    assert all(line.startswith(start) for line, start in zip(told, said, strict=True))


def test_each_way_of_cutting_has_its_own_advice() -> None:
    cut = {"max_tokens": 9, "window": 8, "stop_string": 7}
    result = replace(RESULT, cut=cut, window_tokens=100, stopped_in_reasoning=3)
    limit, window, stop, thoughts = remarks(result, max_tokens=256, stop=("Q:",))
    assert "raise it on both sides (--max-tokens 512" in limit
    assert "window after 100 tokens or fewer" in window
    assert "more max_tokens do not help" in window
    assert stop.startswith("4 of 1000 answers were cut by a stop string ('Q:')")
    assert "--set mmlu.stop=[]" in stop
    assert thoughts.startswith("3 of 1000 answers ended within the model's reasoning")
