import asyncio
import random
from array import array
from dataclasses import replace
from itertools import pairwise

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.evaluation.ask_tasks import DegradationAlarm
from serve_eval.evaluation.results import degradation
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.degradation import (
    ALPHA,
    EMPTY,
    FIRST,
    LONGER,
    REPETITIVE,
    SHORTER,
    VALUE,
    Course,
    Lookout,
    degradations,
    describe,
    describe_so_far,
)
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Attempt, Failure, FailureKind, Metric, Response, Sample, Spec, Usage
from serve_eval.verdicts.below_reference import RIGHT, estimate_expected


def _course(n=400, **given):
    """Return a healthy course with these measures replaced."""
    drawn = random.Random(1)
    values = given.get("values", [float(drawn.random() < 0.9) for _ in range(n)])
    lengths = given.get("lengths", [drawn.randint(20, 200) for _ in range(n)])
    return Course(
        started_s=array("d", range(n)),
        ended_s=array("d", (i + 5.0 * (i % 7) for i in range(n))),
        values=array("d", values),
        lengths=array("i", map(int, lengths)),
        empty=bytes(map(int, given.get("empty", [0.0] * n))),
        repetitive=bytes(map(int, given.get("repetitive", [0.0] * n))),
        places=array("q", range(n)),
    )


def test_nothing_is_said_of_a_healthy_run():
    assert degradations(_course(), Metric(), 400) == ()


@pytest.mark.parametrize("before", [1.0, 0.5])
def test_a_fall_from_nothing_but_one_score_is_seen(before):
    fallen = _course(values=[before] * 100 + [0.0, before] * 150)
    assert [one.measure for one in degradations(fallen, Metric(), 400)] == [VALUE]


def _answers(seed, n=400, at=100, before=0.8, after=0.8, runs=3):
    """Return a course whose share of right answers falls, and the expected scores.

    The expected scores come from runs of the healthy endpoint. Two runs of it disagree on 3.4 % of
    the prompts: one in ten is right with a random probability.
    """
    random = numpy.random.default_rng(seed)
    chance = (random.random(n) < before).astype(float)
    unsteady = random.random(n) < 0.1
    chance[unsteady] = random.random(int(unsteady.sum()))
    of_reference = [(random.random(n) < chance).astype(float).tolist() for _ in range(runs)]
    right = random.random(n) < chance
    right[at:] &= random.random(n - at) < after / before
    known = estimate_expected(of_reference, lo=0.0, hi=1.0, higher_is_better=True)
    assert known is not None
    return _course(n, values=right.astype(float).tolist()), known


@pytest.mark.parametrize(
    ("after", "soon", "ever", "soon_alone", "ever_alone"),
    [(0.6, 15, 50, 10, 35), (0.5, 40, 59, 25, 59)],
)
def test_a_fall_is_noticed_more_often_and_sooner_against_the_reference(
    after, soon, ever, soon_alone, ever_alone
):
    """Let 60 runs fall from 80 % at request 100 of 400.

    By scores alone, hardly half as many are noticed.
    """
    noticed = {True: [], False: []}
    for seed in range(60):
        course, known = _answers(seed, after=after)
        for with_it in noticed:
            found = degradations(course, Metric(), 400, known if with_it else None)
            noticed[with_it] += [
                one.noticed for one in found if one.measure == VALUE and one.noticed > 100
            ]
    assert len(noticed[True]) >= ever
    assert sum(at <= 140 for at in noticed[True]) >= soon
    assert len(noticed[False]) <= ever_alone
    assert sum(at <= 140 for at in noticed[False]) <= soon_alone


@pytest.mark.parametrize("runs", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_sound_runs_are_accused_against_the_reference_no_more_often_than_alone(runs):
    accused = 0
    for seed in range(300):
        course, known = _answers(seed, runs=runs)
        accused += any(one.measure == VALUE for one in degradations(course, Metric(), 400, known))
    assert accused <= 2  # 2.4 are allowed
    assert ALPHA[VALUE] == 0.008


def test_numbers_are_those_of_the_run_although_only_some_requests_are_looked_at():
    """Every other prompt is one that the reference had wrong.

    Its score is no evidence, however far it falls.
    """
    values = [float(i < 200) if i % 2 == 0 else float(i < 100) for i in range(400)]
    known = estimate_expected(
        [[float(i % 2 == 0) for i in range(400)]], lo=0.0, hi=1.0, higher_is_better=True
    )
    course = _course(values=values)
    [one] = degradations(course, Metric(), 400, known)
    assert (one.since, one.before, one.after, one.of) == (201, 0.0, 1.0, 400)
    assert 201 < one.noticed <= 221
    assert one.started_s == 200.0
    assert (one.course.at[0], one.course.at[-1], one.course.window) == (19, 399, 10)
    assert (one.course.by_start[0], one.course.by_start[-1]) == (0.0, 1.0)
    assert (
        describe(one)
        == f"degrading from request 201 of 400 on, in the order of their starts: 0.0% {RIGHT}"
        f" before, 100.0% from there on (detected at request {one.noticed})"
    )
    [alone] = degradations(course, Metric(), 400)
    assert alone.since == 102
    assert "bad scores" in describe(alone)


def test_the_limit_is_that_of_the_requests_that_are_looked_at():
    """Count only prompts that the reference had right.

    If it had 100 of 2000 right, four wrong ones in a row suffice; if all 2000 count, they do not.
    """
    right = [float(place % 20 == 0) for place in range(2000)]
    known = estimate_expected([right], lo=0.0, hi=1.0, higher_is_better=True)
    values = [score * (place < 1920) for place, score in enumerate(right)]
    [one] = degradations(_course(2000, values=values, lengths=[9.0] * 2000), Metric(), 2000, known)
    assert (one.since, one.after) == (1921, 1.0)


def _beginning(course, k):
    cut = {name: getattr(course, name)[:k] for name in Course.__slots__}
    return Course(**cut)


def _part(course, start, end):
    return Course(**{name: getattr(course, name)[start:end] for name in Course.__slots__})


@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.4, 0.8]), st.booleans(), st.integers(1, 60))
@settings(max_examples=15, deadline=None)
def test_what_is_found_part_by_part_is_what_is_found_in_the_whole_so_far(seed, fall, against, step):
    n, drawn = 300, random.Random(seed)
    worse = [i >= n // 2 and drawn.random() < fall for i in range(n)]
    course = _course(
        n,
        values=[float(drawn.random() < 0.9 and not bad) for bad in worse],
        lengths=[drawn.randint(20, 99) * (1 + 2 * bad) for bad in worse],
        empty=[float(drawn.random() < 0.02 + 0.3 * bad) for bad in worse],
        repetitive=[float(drawn.random() < 0.02 + 0.2 * bad) for bad in worse],
    )
    known = estimate_expected(
        [[float(drawn.random() < 0.9) for _ in range(n)]], lo=0.0, hi=1.0, higher_is_better=True
    )
    known = known if against else None
    lookout, found, start = Lookout(Metric(), n, known), set(), 0
    for end in [*range(FIRST, n, step), n]:
        found |= lookout.extend(_part(course, start, end), found)
        start = end
        assert found == {
            one.measure for one in degradations(_beginning(course, end), Metric(), n, known)
        }


@pytest.mark.parametrize(("wrong", "alarms_of_one", "alarms_of_sixteen"), [(3, 1, 0), (8, 1, 1)])
def test_shards_share_the_probability_of_a_false_alarm(wrong, alarms_of_one, alarms_of_sixteen):
    n = 200
    course = _course(n, values=[1.0] * 150 + [0.0] * wrong + [1.0] * (50 - wrong))
    for courses, expected in ((1, alarms_of_one), (16, alarms_of_sixteen)):
        lookout = Lookout(Metric(), n, courses=courses)
        assert len(degradations(course, Metric(), n, courses=courses)) == expected, courses
        assert len(lookout.extend(course)) == expected
        tally, lines = _answered(course), []
        asyncio.run(DegradationAlarm(tally, range(n), lines.append, courses=courses).look())
        assert len(lines) == expected


def _answered(course):
    """Return the tally of a task whose answers have the scores of a course."""
    samples = [Sample(id=str(i), prompt="?", target="1") for i in course.places]
    tally = ScoreAccumulator(build_task(Spec(name="gsm8k")), samples)
    for i, value in enumerate(course.values):
        attempt = Attempt(start_s=i, end_s=i + 1, failure=None, status=200, request_id="r")
        text = f"#### {1 if value else 2}"
        usage = Usage(completion_tokens=course.lengths[i])
        tally.add(i, Response(text=text, finish_reason="stop", attempts=(attempt,), usage=usage))
    return tally


def test_each_beginning_is_searched_once(monkeypatch):
    searched = []

    def spied(bad, over, since=0):
        searched.append((since, len(bad)))
        return

    monkeypatch.setattr(degradation, "passes", spied)
    lookout = Lookout(Metric(), 400)
    for start, end in pairwise([0, 60, 61, 200, 400]):
        lookout.extend(_part(_course(), start, end))
    assert searched == [pair for pair in ((0, 60), (60, 61), (61, 200), (200, 400)) for _ in ALPHA]


def test_what_is_known_to_have_turned_worse_is_not_looked_at_again():
    course, lookout = _course(values=[1.0] * 100 + [0.0] * 300), Lookout(Metric(), 400)
    assert lookout.extend(_part(course, 0, 200)) == {VALUE}
    assert lookout.extend(_part(course, 200, 400), {VALUE}) == set()


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 0.8]),
    st.sampled_from([60, 100]),
    st.booleans(),
)
@settings(max_examples=8)
def test_what_is_seen_at_a_beginning_is_seen_in_the_end_too_and_the_other_way_round(
    seed, fall, n, against
):
    drawn = random.Random(seed)
    values = [drawn.random() * (1.0 - fall * (i >= n // 2)) for i in range(n)]
    course = _course(
        n, values=values, lengths=[drawn.randint(1, 99) * (1 + (i > n / 2)) for i in range(n)]
    )
    known = estimate_expected(
        [[drawn.choice([0.0, 0.6, 1.0]) for _ in range(n)]], lo=0.0, hi=1.0, higher_is_better=True
    )
    known = known if against else None
    whole = {one.measure: one.noticed for one in degradations(course, Metric(), n, known)}
    looks = [degradations(_beginning(course, k), Metric(), n, known) for k in range(FIRST, n + 1)]
    first = {}
    for k, found in zip(range(FIRST, n + 1), looks, strict=True):
        for one in found:
            first.setdefault(one.measure, max(k, one.noticed))
    assert first == {measure: max(FIRST, noticed) for measure, noticed in whole.items()}


def test_the_picture_of_a_course_is_its_running_share_by_starts_and_by_ends():
    [one] = degradations(_course(values=[1.0] * 300 + [0.0, 1.0] * 50), Metric(), 400)
    course = one.course
    assert course.window == 20
    assert (course.at[0], course.at[-1], len(course.at)) == (20, 400, 200)
    assert (course.by_start[0], course.by_start[-1]) == (0.0, 0.5)
    assert course.by_end[0] == 0.0
    assert course.by_start != course.by_end
    assert "request 400 of 1000" in describe_so_far(one, 1000)


@pytest.mark.parametrize(
    ("given", "measure"),
    [
        ({"values": [1.0] * 300 + [0.0, 1.0] * 50}, VALUE),
        (
            {
                "values": (
                    [0.4 + i % 7 / 10 for i in range(300)] + [0.1 + i % 7 / 20 for i in range(100)]
                )
            },
            VALUE,
        ),
        (
            {"values": [0.0, 0.0, 0.5, 1.0, 0.0] * 60 + [0.0] * 100},
            VALUE,
        ),  # most of them have the lowest score anyway
        ({"empty": [0.0] * 300 + [1.0] * 100}, EMPTY),
        ({"repetitive": [0.0] * 300 + [0.0, 1.0] * 50}, REPETITIVE),
        ({"lengths": [50.0 + i % 9 for i in range(300)] + [500.0] * 100}, LONGER),
        ({"lengths": [50.0 + i % 9 for i in range(300)] + [3.0] * 100}, SHORTER),
    ],
)
def test_each_measure_is_found_with_the_request_from_which_on(given, measure):
    found = {one.measure: one for one in degradations(_course(**given), Metric(), 400)}
    assert set(found) == {measure}
    assert abs(found[measure].since - 301) <= 3
    assert found[measure].started_s == found[measure].since - 1
    assert f"degrading from request {found[measure].since} of 400 on" in describe(found[measure])


def test_where_lower_is_better_a_rise_is_the_decline():
    rising = [1.0] * 300 + [0.0, 5.0, 5.0] * 33 + [5.0]
    lower = Metric(name="loss", higher_is_better=False, hi=None)
    assert [one.measure for one in degradations(_course(values=rising), lower, 400)] == [VALUE]
    assert degradations(_course(values=rising[::-1]), lower, 400) == ()


def test_a_tally_tells_the_course_in_the_order_of_the_run_up_to_the_first_gap():
    """A sample keeps its place if it is asked again after a failure or an interruption."""
    task = build_task(Spec(name="gsm8k"))
    samples = [Sample(id=str(i), prompt="?", target="1") for i in range(5)]
    accumulator = ScoreAccumulator(replace(task, name="course"), samples)

    def answer(text, start_s, tokens):
        attempt = Attempt(
            start_s=start_s, end_s=start_s + 1, failure=None, status=200, request_id="r"
        )
        return Response(
            text=text,
            finish_reason="stop",
            usage=Usage(completion_tokens=tokens),
            attempts=(attempt,),
        )

    accumulator.add(2, answer("#### 1", 30.0, 5))
    accumulator.add(0, answer("wait, " * 200, 20.0, 900))
    accumulator.add(1, answer("", 10.0, 0))
    accumulator.add(3, Failure(kind=FailureKind.TIMEOUT, message="late"))
    course = accumulator.course([1, 2, 3, 0, 4])
    assert list(course.started_s) == [10.0, 30.0, 20.0]
    assert list(course.ended_s) == [11.0, 31.0, 21.0]
    assert list(accumulator.course([2, 4, 1]).started_s) == [30.0]
    assert list(course.values) == [0.0, 1.0, 0.0]
    assert list(course.lengths) == [0, 5, 900]
    assert (list(course.empty), list(course.repetitive)) == ([1, 0, 0], [0, 0, 1])
    assert list(course.places) == [1, 2, 0]
