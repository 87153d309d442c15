"""Test the figures and pictures of repeats and of the course of a run."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

from serve_eval.report.lines import count_turned, describe_agreement, describe_repeats
from serve_eval.report.page.tables import tabulate_questions
from serve_eval.report.pictures.outcomes import draw_questions
from serve_eval.report.run.page_blocks import HEIGHT, WIDTH, picture
from serve_eval.report.samples.details import sort_questions
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import Cut, Degradation, Metric, Outcome, RunningShare, Stability
from serve_eval.storage.scores import ScoreRecord
from serve_eval.verdicts.validity import describe_bound
from tests.made_results import make_result

STABILITY = Stability(
    repeats=16,
    prompts=30,
    sd=1.2,
    flip_rate=0.12,
    mixed=0.3,
    cochran_q=12.0,
    df=15,
    p=0.6,
    pass_at={"1": 78.96, "2": 85.0, "3": 88.0, "4": 90.0, "8": 92.0, "16": 93.333},
    majority=86.667,
    se=5.123,
    se_runs=0.297,
    pass_bounds={"16": (93.333, 93.333)},
    answered=480,
    asked=480,
    voted=30,
    tied=2,
)
RESULT = make_result(
    480,
    78.958,
    task="aime",
    truncated=3,
    outcomes={Outcome.CORRECT: 379, Outcome.WRONG: 91, Outcome.UNPARSED: 10},
    stability=STABILITY,
    cut={"max_tokens": 3, "stop_string": 1},
)


@pytest.mark.parametrize(
    ("fields", "told", "line"),
    [
        (
            {},
            {},
            "avg@16 = 78.96 ± 5.1 (SE by question; ± .30 over runs), pass@16 = 93.3,"
            " maj@16 = 86.7, unanswered 2.1 %, cut 4 of 480",
        ),
        (
            {"cut": {}, "truncated": 0, "outcomes": {}},
            {"se": 12.3, "se_runs": 0.0, "majority": None},
            "avg@16 = 78.96 ± 12 (SE by question; ± 0 over runs), pass@16 = 93.3, unanswered 0 %,"
            " cut 0 of 480",
        ),
        (
            {"failed": 5, "scored": 475, "bounds": (78.0, 79.04)},
            {"pass_bounds": {"16": (90.0, 93.333)}, "se": 0.96, "se_runs": 0.004, "voted": 29},
            "avg@16 = 78.96 (78.0 to 79.0) ± .96 (SE by question; ± .00 over runs), pass@16 = 93.3"
            " (90.0 to 93.3), maj@16 = 86.7 of 29 prompts, unanswered 3.1 %, cut 4 of 480",
        ),
        (
            {"metric": Metric(name="words", lo=None, hi=None, scale=1.0), "value": 1.23456},
            {"se": None, "pass_at": {}, "majority": None},
            "value of 16 repeats = 1.235 (sd of one: 1.2), unanswered 2.1 %, cut 4 of 480",
        ),
    ],
)
def test_the_line_has_what_people_publish(fields, told, line):
    result = replace(RESULT, **fields, stability=replace(STABILITY, **told))
    assert describe_repeats(result) == line


def test_the_bound_of_cut_answers_says_if_missing_ones_are_right_in_it_too():
    cut = replace(RESULT, cut_value=79.8, cut_bounds=(79.8, 79.8))
    assert describe_bound(cut, "{:.1f}".format) == "79.8 if the 4 cut answers were right"
    lacking = replace(cut, failed=12, scored=468, bounds=(77.0, 79.5), cut_bounds=(77.8, 80.3))
    said = describe_bound(lacking, "{:.1f}".format)
    assert said == "80.3 if the 4 cut answers and the 12 missing were right"


@pytest.mark.parametrize(
    ("runs", "pairs", "said"),
    [
        ((1, 1), 100, "7 turned wrong, 5 turned right"),
        ((2, 2), 200, "7 turned wrong, 5 turned right of 200 pairs of answers"),
        (
            (4, 1),
            100,
            "7 turned wrong, 5 turned right of 100 pairs of answers, the first of 4 repeats",
        ),
        ((2, 2), None, "7 turned wrong, 5 turned right, of the first answers"),
    ],
)
def test_what_turned_says_of_how_many_answers(runs, pairs, said):
    numbers = {"reference_runs": runs[0], "candidate_runs": runs[1], "answer_pairs": pairs}
    found = SimpleNamespace(down=7, up=5, **numbers)
    assert count_turned(found) == said


def test_the_agreement_has_pass_at_fewer_answers_and_ties():
    said = describe_agreement(STABILITY)
    assert "two repeats disagree on 12.0% of the prompts" in said
    assert "pass@2 85.00, pass@4 90.00, pass@8 92.00, pass@16" in said
    assert "pass@3" not in said
    assert said.endswith("2 of 30 prompts tied: the mean of the leading answers counts")


def _line(name, outcome, answer=None, **more):
    value = float(outcome is Outcome.CORRECT)
    return ScoreRecord(id=name, outcome=outcome, value=value, answer=answer, target="7", **more)


def test_questions_are_sorted_by_their_share_of_right_repeats():
    right, wrong = Outcome.CORRECT, Outcome.WRONG
    lines = [
        *(_line("b", right, "7"), _line("b#2", wrong, "8"), _line("b#3", wrong, "9")),
        *(_line("a", wrong, "8"), _line("a#2", Outcome.UNPARSED, cut=Cut.WINDOW)),
        *(_line("c", right, "7"), _line("c#2", right, "7"), _line("c#3", wrong, "1")),
        _line("c#3", right, "7"),  # the last line of a sample counts
    ]
    found = sort_questions(SampleSource(run=Path(), task="t", repeated=True), lines, 3)
    assert [(one.id, one.right, one.answered, one.cut) for one in found] == [
        ("c", 3, 3, 0), ("b", 1, 3, 0), ("a", 0, 2, 1),
    ]  # fmt: skip
    assert [len(one.different) for one in found] == [1, 3, 1]
    [table] = tabulate_questions("t", found)
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["c", "3", "100.0", "-", "-", "-", "-", "1"],
        ["b", "1", "33.3", "2", "-", "-", "-", "3"],
        ["a", "0", "0.0", "1", "1", "1", "1", "1"],
    ]
    [picture] = draw_questions("t", found)
    assert picture.description == (
        "3 questions, each asked 3 times: 1 always right, 1 sometimes right, 1 never right."
    )
    shares = picture.spec["data"]["values"]
    assert [one["high"] for one in shares if one["kind"] == "right"] == [1.0, 0.3333]
    assert {one["kind"] for one in shares if one["first"] == 2} == {"wrong", "unreadable", "failed"}


def test_a_run_without_repeats_has_no_questions():
    assert [*tabulate_questions("t", []), *draw_questions("t", [])] == []


FOUND = Degradation(
    measure="value",
    since=97,
    noticed=110,
    of=400,
    before=0.05,
    after=0.5,
    started_s=0.0,
    course=RunningShare(
        window=20, at=(20, 200, 400), by_start=(0.05, 0.5, 0.6), by_end=(0.1, 0.4, 0.6)
    ),
)


def test_the_picture_is_well_formed_with_both_orders_the_onset_and_their_places():
    root = ElementTree.fromstring(picture("<gsm8k> & more", FOUND))
    texts = [node.text for node in root.iter("text")]
    assert "<gsm8k> & more: bad scores among the latest 20 requests" in texts
    assert "degrading from request 97 on (dashed: noticed)" in texts
    lines = [node.get("points", "").split() for node in root.iter("polyline")]
    by_end, by_start = [[tuple(map(float, point.split(","))) for point in line] for line in lines]
    assert len(by_start) == len(by_end) == 3
    for x, y in by_start + by_end:
        assert 0 < x < WIDTH
        assert 0 < y < HEIGHT
    assert by_start[-1] == by_end[-1] == max(by_start)
    onset = next(
        float(node.get("d", "")[1:].split(",")[0])
        for node in root.iter("path")
        if node.get("stroke-width")
    )
    assert by_start[0][0] < onset < by_start[1][0]


def test_a_picture_against_a_reference_says_what_is_counted():
    root = ElementTree.fromstring(
        picture("gsm8k", replace(FOUND, counted="wrong where the reference was right"))
    )
    title = "gsm8k: wrong where the reference was right among the latest 20 counted requests"
    assert title in [node.text for node in root.iter("text")]


def test_a_report_without_a_course_has_no_picture():
    assert picture("gsm8k", replace(FOUND, course=None)) == ""
