"""Test which results may be judged, alone or together, and their exit code."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.schema import (
    EarlyStop,
    Hypothesis,
    Metric,
    Outcome,
    PairedComparison,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.exit_code import exit_code
from serve_eval.verdicts.many_tests import correct
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


ALPHA = Hypothesis().alpha
PASS, FAIL, INCONCLUSIVE = VerdictOutcome.PASS, VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE


def _paired(p: float, finding: str | None = None, *, rule: str = "paired") -> Verdict:
    """Return a verdict with this p, whose margin is not excluded."""
    found = finding or ("FAIL" if p <= ALPHA else "INCONCLUSIVE")
    warnings = ("small_drop: a drop is proven",) if found == "SMALL_DROP" else ()
    paired = PairedComparison(
        reference_runs=1,
        pairs=100,
        missing=0,
        method="mcnemar_midp",
        difference=-4.0,
        se=1.0,
        df=None,
        down=6,
        up=2,
        flip_rate=0.08,
        p=p,
        p_exact=p,
        alpha=ALPHA,
        margin=3.0,
        lower=-6.0,
        upper=-2.0,
        noninferior=False,
        equivalent=False,
        finding=found,
    )
    outcome = PASS if found in ("PASS", "SMALL_DROP") else VerdictOutcome(found)
    return Verdict(
        task="t", outcome=outcome, rule=rule, evaluated=80.0, paired=paired, warnings=warnings
    )


@pytest.mark.parametrize(
    ("p", "outcomes"),
    [
        ([0.04], [FAIL]),
        ([0.04, 0.5], [INCONCLUSIVE, INCONCLUSIVE]),
        ([0.02, 0.5], [FAIL, INCONCLUSIVE]),
        ([0.02, 0.04], [FAIL, FAIL]),
        ([0.02, 0.04, 0.5], [INCONCLUSIVE, INCONCLUSIVE, INCONCLUSIVE]),
        ([0.001, *[0.5] * 7], [FAIL, *[INCONCLUSIVE] * 7]),
    ],
)
def test_a_fail_must_be_proven_among_all_tasks(
    p: list[float], outcomes: list[VerdictOutcome]
) -> None:
    found = correct([_paired(one) for one in p], "run")
    assert [one.outcome for one in found] == outcomes
    if len(p) > 1:
        assert [one.p_holm for one in found] == holm(p)
        assert {one.tests for one in found} == {len(p)}


def test_what_the_correction_takes_back_is_explained() -> None:
    first, small, _ = correct(
        [_paired(0.04), _paired(0.04, "SMALL_DROP"), _paired(0.9, "PASS")], "comparison"
    )
    assert first.paired is not None
    assert first.paired.finding == "INCONCLUSIVE"
    assert first.reasons == (
        "margin_not_excluded: not proven after correction for the 3 tests of the comparison: p"
        " 0.0400 becomes 0.1200 (Holm)",
    )
    assert small.outcome is PASS
    assert small.paired is not None
    assert small.paired.finding == "PASS"
    assert not any(one.startswith("small_drop") for one in small.warnings)


def test_rules_that_do_not_prove_a_drop_neither_count_nor_change() -> None:
    classic = _paired(0.001, rule="classic")
    alone = [_paired(0.04), classic, replace(classic, paired=None)]
    assert correct(alone, "run") == alone


def test_a_task_that_stopped_early_counts_with_the_alpha_of_its_looks() -> None:
    early = EarlyStop(
        eps=0.01,
        order_seed=1,
        paired=True,
        planned=100,
        looked_at=40,
        missing=0,
        stopped=True,
        decision="FAIL",
        estimate=50.0,
        saved=60,
        log_wealth_pass=None,
        log_wealth_fail=None,
        rule="paired",
    )
    stopped = Verdict(task="t", outcome=FAIL, rule="paired", evaluated=None, early=early)
    passed = replace(stopped, outcome=PASS, early=replace(early, decision="PASS"))
    kept, other = correct([stopped, _paired(0.04)], "run")
    assert (kept, other.outcome) == (stopped, FAIL)
    kept, other = correct([passed, _paired(0.04)], "run")
    assert (kept, other.outcome) == (passed, INCONCLUSIVE)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_no_verdict_becomes_worse_and_no_fail_stands_above_alpha(p: list[float]) -> None:
    before = [_paired(one) for one in p]
    for old, new in zip(before, correct(before, "run"), strict=True):
        assert new.outcome in (old.outcome, INCONCLUSIVE)
        if new.outcome is FAIL and new.p_holm is not None:
            assert new.p_holm <= ALPHA


@pytest.mark.parametrize(
    ("outcomes", "code", "strict"),
    [
        (["PASS"], 0, 0),
        (["PASS", "FAIL", "ERROR"], 1, 1),
        (["PASS", "ERROR", "INCONCLUSIVE"], 4, 4),
        (["PASS", "INCONCLUSIVE"], 3, 1),
        (["NO REFERENCE", "PASS"], 3, 1),
        (["INTEGRATION TEST"], 0, 0),
        ([], 5, 5),
    ],
)
def test_the_first_that_holds(outcomes: list[str], code: int, strict: int) -> None:
    verdicts = [
        Verdict(task="t", outcome=VerdictOutcome(o), rule="classic", evaluated=1.0)
        for o in outcomes
    ]
    assert exit_code(verdicts) == code
    assert exit_code(verdicts, strict=True) == strict
