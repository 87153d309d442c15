from __future__ import annotations

import random
from array import array
from dataclasses import replace

import pytest

from serve_eval.degradation import EMPTY, LONGER, REPETITIVE, SHORTER, VALUE, Course, degradations, told
from serve_eval.protocol import build_task
from serve_eval.schema import Attempt, Metric, Response, Sample, Spec, Usage
from serve_eval.tally import Tally


def _course(n: int = 400, **given: list[float]) -> Course:
    """A healthy course with these measures in place of its own."""
    drawn = random.Random(1)
    values = given.get("values", [float(drawn.random() < 0.9) for _ in range(n)])
    lengths = given.get("lengths", [drawn.randint(20, 200) for _ in range(n)])
    return Course(
        started_s=array("d", range(n)),
        values=array("d", values),
        lengths=array("i", map(int, lengths)),
        empty=bytes(map(int, given.get("empty", [0.0] * n))),
        repetitive=bytes(map(int, given.get("repetitive", [0.0] * n))),
    )


def test_nothing_is_said_of_a_healthy_run() -> None:
    assert degradations(_course(), Metric()) == ()


@pytest.mark.parametrize(
    ("given", "measure"),
    [
        ({"values": [1.0] * 300 + [0.0, 1.0] * 50}, VALUE),
        ({"values": [0.4 + i % 7 / 10 for i in range(300)] + [0.1 + i % 7 / 20 for i in range(100)]}, VALUE),
        ({"values": [0.0, 0.0, 0.5, 1.0, 0.0] * 60 + [0.0] * 100}, VALUE),  # most of them have the lowest score anyway
        ({"empty": [0.0] * 300 + [1.0] * 100}, EMPTY),
        ({"repetitive": [0.0] * 300 + [0.0, 1.0] * 50}, REPETITIVE),
        ({"lengths": [50.0 + i % 9 for i in range(300)] + [500.0] * 100}, LONGER),
        ({"lengths": [50.0 + i % 9 for i in range(300)] + [3.0] * 100}, SHORTER),
    ],
)
def test_each_measure_is_found_with_the_request_from_which_on(given: dict[str, list[float]], measure: str) -> None:
    found = {one.measure: one for one in degradations(_course(**given), Metric())}
    assert set(found) == {measure}
    assert abs(found[measure].since - 301) <= 3
    assert found[measure].started_s == found[measure].since - 1
    assert f"degrading from request {found[measure].since} of 400 on" in told(found[measure])


def test_where_lower_is_better_a_rise_is_the_decline() -> None:
    rising = [1.0] * 300 + [0.0, 5.0, 5.0] * 33 + [5.0]
    lower = Metric(name="loss", higher_is_better=False, hi=None)
    assert [one.measure for one in degradations(_course(values=rising), lower)] == [VALUE]
    assert degradations(_course(values=rising[::-1]), lower) == ()


def test_a_tally_tells_the_course_by_the_starts_and_not_by_the_ends() -> None:
    task = build_task(Spec(name="gsm8k"))
    samples = [Sample(id=str(i), prompt="?", target="1") for i in range(3)]
    tally = Tally(replace(task, name="course"), samples)

    def answer(text: str, start_s: float, tokens: int) -> Response:
        attempt = Attempt(start_s=start_s, end_s=start_s + 1, failure=None, status=200, request_id="r")
        return Response(text=text, finish_reason="stop", usage=Usage(completion_tokens=tokens), attempts=(attempt,))

    tally.add(2, answer("#### 1", 30.0, 5))
    tally.add(0, answer("wait, " * 200, 20.0, 900))
    tally.add(1, answer("", 10.0, 0))
    course = tally.course()
    assert list(course.started_s) == [10.0, 20.0, 30.0]
    assert list(course.values) == [0.0, 0.0, 1.0]
    assert list(course.lengths) == [0, 900, 5]
    assert (list(course.empty), list(course.repetitive)) == ([1, 0, 0], [0, 1, 0])
