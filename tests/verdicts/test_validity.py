"""Test which results may be judged, and answers below their reference.

Scores are in memory or in the files of a reference.
"""

import math
import random
from array import array
from dataclasses import replace

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.protocol.sampling_fields import sample_key
from serve_eval.schema import (
    AccuracySpec,
    Dataset,
    EarlyStop,
    Hypothesis,
    Metric,
    Outcome,
    PairedComparison,
    Reference,
    ReferenceRuns,
    Sample,
    Stability,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.intervals import subtract, wilson
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.below_reference import (
    GRADED,
    LEAST,
    RIGHT,
    estimate_expected,
    of_reference,
)
from serve_eval.verdicts.exit_code import exit_code
from serve_eval.verdicts.many_tests import correct
from serve_eval.verdicts.reference_noise import (
    describe_few,
    describe_one_draw,
    find_interval,
    hold_n,
)
from serve_eval.verdicts.reference_samples import LEVELS, SampleScores
from serve_eval.verdicts.rules.classic import judge
from serve_eval.verdicts.validity import objections, remarks
from tests.made_results import make_result

RESULT = make_result(1000, 70.0, task="mmlu")


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
def test_a_result_may_lack_the_allowed_share_and_no_answer_more(failed, share, name):
    told = objections(replace(RESULT, scored=1000 - failed, failed=failed), share)
    assert [reason.partition(":")[0] for reason in told] == ([] if name is None else [name])


def test_missing_answers_without_bounds_are_an_objection():
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
def test_what_concerns_more_answers_than_a_limit_is_told(fields, said):
    told = remarks(replace(RESULT, **fields), max_tokens=256)
    assert len(told) == len(said)
    assert all(line.startswith(start) for line, start in zip(told, said, strict=True))


def test_each_way_of_cutting_has_its_own_advice():
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


def _paired(p, finding=None, *, rule="paired"):
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
def test_a_fail_must_be_proven_among_all_tasks(p, outcomes):
    found = correct([_paired(one) for one in p], "run")
    assert [one.outcome for one in found] == outcomes
    if len(p) > 1:
        assert [one.p_holm for one in found] == holm(p)
        assert {one.tests for one in found} == {len(p)}


def test_what_the_correction_takes_back_is_explained():
    first, small, _ = correct(
        [_paired(0.04), _paired(0.04, "SMALL_DROP"), _paired(0.9, "PASS")], "comparison"
    )
    assert first.paired.finding == "INCONCLUSIVE"
    assert first.reasons == (
        "margin_not_excluded: not proven after correction for the 3 tests of the comparison: p"
        " 0.0400 becomes 0.1200 (Holm)",
    )
    assert small.outcome is PASS
    assert small.paired.finding == "PASS"
    assert not any(one.startswith("small_drop") for one in small.warnings)


def test_rules_that_do_not_prove_a_drop_neither_count_nor_change():
    classic = _paired(0.001, rule="classic")
    alone = [_paired(0.04), classic, replace(classic, paired=None)]
    assert correct(alone, "run") == alone


def test_a_task_that_stopped_early_counts_with_the_alpha_of_its_looks():
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
def test_no_verdict_becomes_worse_and_no_fail_stands_above_alpha(p):
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
def test_the_first_that_holds(outcomes, code, strict):
    verdicts = [
        Verdict(task="t", outcome=VerdictOutcome(o), rule="classic", evaluated=1.0)
        for o in outcomes
    ]
    assert exit_code(verdicts) == code
    assert exit_code(verdicts, strict=True) == strict


NAN = math.nan
FILLED = [1.0] * LEAST
"""Prompts that every run had right, enough for the rule to judge."""


@pytest.mark.parametrize(
    ("of_runs", "score", "bad"),
    [
        ([1, 1, 1], 1.0, False),
        ([1, 1, 1], 0.0, True),
        ([1, 1, 0], 0.0, True),
        ([1, 0, 0], 0.0, None),
        ([1, 0], 0.0, None),  # as often wrong as right
        ([0, 0, 0], 0.0, None),
        ([0, 0, 0], 1.0, None),
        ([1, NAN, 1], 0.0, None),
    ],
)
def test_of_right_and_wrong_answers_only_prompts_that_most_runs_had_right_are_looked_at(
    of_runs, score, bad
):
    found = estimate_expected(
        [[one, *FILLED] for one in of_runs], lo=0.0, hi=1.0, higher_is_better=True
    )
    assert found.bad(0, score) is bad
    assert found.counted == RIGHT


@pytest.mark.parametrize(
    ("of_runs", "score", "bad"),
    [
        ([0.6, 0.6, 0.6], 0.6, False),
        ([0.6, 0.6, 0.6], 0.59, True),
        ([0.6, 0.6, 0.6], 0.6 - 0.5 / LEVELS, False),  # this close to a stored score is equal
        ([0.5, 0.7], 0.41, False),  # 0.6 less the 0.2 by which they differ
        ([0.5, 0.7], 0.39, True),
        ([0.0, 0.1], 0.0, None),  # no score is that low
        ([0.0, 0.0], 0.0, None),
    ],
)
def test_a_graded_answer_is_bad_below_the_mean_by_more_than_the_runs_differ(of_runs, score, bad):
    found = estimate_expected(
        [[one, 0.5, *FILLED] for one in of_runs], lo=0.0, hi=1.0, higher_is_better=True
    )
    assert found.bad(0, score) is bad
    assert found.counted == GRADED


def test_where_lower_is_better_higher_scores_are_bad():
    found = estimate_expected([[3.0] * LEAST], lo=None, hi=None, higher_is_better=False)
    assert (found.bad(0, 2.9), found.bad(0, 3.0), found.bad(0, 3.1)) == (False, False, True)
    rates = estimate_expected([[0.0] * LEAST], lo=0.0, hi=1.0, higher_is_better=False)
    assert (rates.bad(0, 0.0), rates.bad(0, 1.0), rates.counted) == (False, True, RIGHT)


def test_too_few_prompts_to_look_at_are_none():
    assert (
        estimate_expected(
            [[1.0] * (LEAST - 1) + [0.0] * 500], lo=0.0, hi=1.0, higher_is_better=True
        )
        is None
    )
    assert estimate_expected([[]], lo=0.0, hi=1.0, higher_is_better=True) is None
    assert estimate_expected([], lo=0.0, hi=1.0, higher_is_better=True) is None


@given(
    st.lists(st.tuples(*[st.sampled_from([0.0, 0.5, 1.0])] * 3), min_size=30, max_size=60),
    st.integers(1, 3),
)
def test_one_by_one_and_all_at_once_agree_also_of_repeats(rows, repeats):
    found = estimate_expected(list(zip(*rows, strict=True)), lo=0.0, hi=1.0, higher_is_better=True)
    if found is None:
        return
    n = repeats * len(rows)
    places = random.Random(n).sample(range(n), n)
    scores = numpy.array([place % 3 / 2 for place in places])
    bad, kept = found.among(places, scores)
    one_by_one = {
        i: told
        for i, place in enumerate(places)
        if (told := found.bad(place, scores[i])) is not None
    }
    assert dict(zip(kept.tolist(), bad.tolist(), strict=True)) == one_by_one
    assert len(kept) == found.count_looks(n)


def _registered(folder, samples, runs):
    keys = b"".join(sample_key(sample) for sample in samples)
    stored = SampleScores(
        task="t", lo=0.0, hi=1.0, keys=keys, runs=tuple(array("d", run) for run in runs)
    )
    digest = reference_samples.write(folder / "t.json", stored)
    of_runs = ReferenceRuns(
        values=(80.0,), n=len(samples), sigma=40.0, samples="t.json", sha256=digest
    )
    return Reference(
        task="t",
        model="m",
        spec=AccuracySpec(),
        value=80.0,
        runs=of_runs,
        file=str(folder / "t.yaml"),
        line=1,
    )


def test_a_subset_in_another_order_is_read_out_of_the_references_file(tmp_path):
    samples = [Sample(id=str(i), prompt=f"{i}?", target="1") for i in range(60)]
    reference = _registered(tmp_path, samples, [[float(i >= 10) for i in range(60)]] * 3)
    asked = Dataset(samples=samples[49:4:-1], files=(), total=60)
    found = of_reference(Metric(), asked, reference)
    # samples 49 and 5
    assert (found.bad(0, 0.0), found.bad(len(asked.samples) - 1, 0.0)) == (True, None)
    assert found.count_looks(len(asked.samples)) == 40
    assert found.group(0) == 3
    unknown = Dataset(
        samples=[*samples, Sample(id="new", prompt="?", target="1")], files=(), total=61
    )
    assert of_reference(Metric(), unknown, reference) is None
    assert of_reference(Metric(), asked, replace(reference, runs=None)) is None
    assert of_reference(Metric(), asked, None) is None
    (tmp_path / "t.json").unlink()
    assert of_reference(Metric(), asked, reference) is None


def _reference(value, n):
    runs = None
    if n is not None:
        runs = ReferenceRuns(values=(value,), n=n, sigma=0.0, samples="s.json", sha256="0")
    return Reference(task="t", model="m", spec=AccuracySpec(), value=value, runs=runs)


def _result(right, planned):
    value = 100.0 * right / planned
    low, high = wilson(right, planned, 0.05)
    return make_result(
        planned, value, metric=Metric(name="accuracy"), interval=(100.0 * low, 100.0 * high)
    )


def test_a_sound_endpoint_does_not_fail_a_reference_of_ten_samples():
    reference = _reference(90.0, 10)
    held, notes = hold_n(Hypothesis(num_samples=500), reference, 500)
    assert judge(_result(419, 500), reference, held).outcome is VerdictOutcome.PASS
    assert held.num_samples == 10
    assert notes == (
        "the reference has 10 of these 500 samples: its own value is uncertain by ±31.0 points,"
        " and the run is judged with n = 10",
    )
    # What the smaller number can show still fails.
    assert judge(_result(200, 500), reference, held).outcome is VerdictOutcome.FAIL


@pytest.mark.parametrize("n", [None, 4104, 4096, 14042])
def test_a_reference_of_all_samples_or_of_an_unknown_number_changes_nothing(n):
    given = Hypothesis(num_samples=4096)
    assert hold_n(given, _reference(70.0, n), 4104) == (given, ())


@given(st.integers(1, 10**5), st.integers(1, 10**5), st.floats(0.1, 50.0, allow_subnormal=False))
def test_the_smaller_number_errs_towards_pass(asked, known, sigma):
    held, _ = hold_n(Hypothesis(num_samples=asked, sigma=sigma), _reference(50.0, known), asked)
    assert held.num_samples is not None
    exact = math.sqrt(sigma**2 / asked + sigma**2 / known)
    assert math.sqrt(2.0 * sigma**2 / held.num_samples) >= exact * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("a", "n", "b", "m", "low", "high"),
    [  # Newcombe 1998, table II, method 10
        (56, 70, 48, 80, 0.0524, 0.3339),
        (9, 10, 3, 10, 0.1705, 0.8090),
        (10, 10, 0, 20, 0.6791, 1.0),
        (10, 10, 0, 10, 0.6075, 1.0),
    ],
)
def test_the_interval_of_a_difference_is_that_of_the_published_examples(a, n, b, m, low, high):
    found = subtract(a / n, wilson(a, n, 0.05), b / m, wilson(b, m, 0.05))
    assert found == pytest.approx((low, high), abs=5e-5)


def test_a_constant_is_exact_and_a_reference_of_few_samples_widens_the_interval():
    run = _result(419, 500)
    assert run.value is not None
    assert run.interval is not None
    assert find_interval(run, _reference(90.0, None)) is None
    exact = subtract(run.value, run.interval, 90.0, None)
    assert exact == (run.interval[0] - 90.0, run.interval[1] - 90.0)
    ends = find_interval(run, _reference(90.0, 10))
    assert ends == pytest.approx((59.6, 98.2), abs=0.1)
    low, high = subtract(run.value, run.interval, 90.0, ends)
    assert low < exact[0]
    assert high > 0.0  # no drop is proven
    # A reference of more prompts than the run's is that of the run's own.
    assert find_interval(run, _reference(90.0, 5000)) == find_interval(run, _reference(90.0, 500))


def test_a_value_that_is_no_mean_and_has_no_interval_gives_none():
    run, reference = replace(_result(419, 500), aggregation="pass@5"), _reference(90.0, 10)
    assert find_interval(replace(run, interval=None), reference) is None
    low, high = find_interval(run, reference)
    assert low < 90.0 < high


@pytest.mark.parametrize(
    ("prompts", "identical", "temperature", "why"),
    [
        (110, 110, 1.0, "the server may ignore or repeat its seed, or keep its replies"),
        (110, 110, None, "the server may ignore or repeat its seed, or keep its replies"),
        (110, 110, 0, "at temperature 0 a server may choose alike each time"),
        (110, 109, 1.0, None),
        (110, None, 1.0, None),
        (0, 0, 1.0, None),
    ],
)
def test_repeats_are_one_draw_if_all_answers_to_each_prompt_are_the_same(
    prompts, identical, temperature, why
):
    stability = Stability(
        **dict.fromkeys(("flip_rate", "mixed", "cochran_q", "p", "majority")),
        repeats=3,
        prompts=prompts,
        sd=0.0,
        df=0,
        pass_at={},
        identical=identical,
        temperature=temperature,
    )
    told = describe_one_draw(stability)
    assert (told is None) is (why is None)
    assert told is None or f"to each of {prompts} prompts are the same text: {why};" in told


def test_a_warning_names_the_drop_that_few_samples_detect():
    said = describe_few(10, 500, Hypothesis(num_samples=500))
    assert said == "10 of 500 samples: detects only drops of 55.6 points or more"
    strict = Hypothesis(num_samples=20, sigma=0.0, alpha=0.5)
    assert describe_few(5, 20, strict) == "5 of 20 samples"
    assert describe_few(500, 500, Hypothesis()) is None
    assert describe_few(3, None, Hypothesis()) is None
