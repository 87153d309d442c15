"""Test the pictures, also of whole runs: their figures, their order and foreign text."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.page.chosen import draw_answers
from serve_eval.report.pictures import (
    IntervalRow,
    RulerRow,
    ScatterPoint,
    TrendBand,
    TrendPoint,
    bound_mean,
    draw_against,
    draw_attribute,
    draw_boxes,
    draw_change,
    draw_distribution,
    draw_intervals,
    draw_lengths,
    draw_load,
    draw_order,
    draw_test,
    draw_trend,
    make_ruler,
)
from serve_eval.report.pictures.distribution import find_test, trace_curve
from serve_eval.report.pictures.picture import draw_all, shorten, shorten_all
from serve_eval.report.samples.sample_index import DrawnAnswer, SampleIndex
from serve_eval.report.samples.samples import SampleSource
from serve_eval.schema import (
    Attempt,
    Degradation,
    Failure,
    FailureKind,
    LoadPoint,
    LoadTask,
    Metric,
    Outcome,
    PairedComparison,
    Response,
    Usage,
    Verdict,
    VerdictOutcome,
)
from serve_eval.schema.plan import Spec
from serve_eval.storage.journal import Record
from serve_eval.storage.scores import ScoreRecord, encode
from tests.made_results import make_result, make_task_report
from tests.report.document.stories import HOSTILE

HOSTILE_PICTURES = "</text></svg><script>alert(1)</script>\x1b[31m\u202e\ud800\x00 & \"' x{{1}}"
T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)
RESULT = make_result(4104, 66.1, task=HOSTILE_PICTURES)
VERDICT = Verdict(
    task=HOSTILE_PICTURES,
    outcome=VerdictOutcome.FAIL,
    rule="paired",
    evaluated=66.1,
    reference=68.17,
    threshold=66.352676,
    theta=2.747193,
    alpha=0.05,
    beta=0.2,
    sigma=50.0,
    num_samples=4104,
)
PAIRED = PairedComparison(
    reference_runs=1,
    pairs=4104,
    missing=0,
    method="mcnemar",
    difference=-0.41,
    se=0.28,
    df=None,
    down=70,
    up=53,
    flip_rate=0.03,
    p=0.06,
    p_exact=0.07,
    alpha=0.05,
    margin=1.8,
    lower=-0.87,
    upper=0.04,
    noninferior=True,
    equivalent=True,
    finding="PASS",
    interval=(-0.97, 0.14),
)
ALARM = Degradation(
    measure="value", since=900, noticed=1000, of=1339, before=0.2, after=0.6, started_s=0.0
)
LOAD = LoadTask(
    task=HOSTILE_PICTURES,
    points=(
        LoadPoint(
            load=1,
            outcome="lowest",
            scored=200,
            failed=0,
            value=81.0,
            interval=(75.0, 86.0),
            ttft_s={"p50": 0.02, "p99": 0.04},
            right_per_s=2.0,
        ),
        LoadPoint(load=64, outcome="worse", scored=180, failed=20, value=60.5, interval=None),
    ),
    q=None,
    df=0,
    q_p=None,
    time=None,
    broken=(64,),
    failing=(),
    words=HOSTILE_PICTURES,
)
POINTS = [
    ScatterPoint(name=HOSTILE_PICTURES, x=70.0, y=60.0),
    ScatterPoint(name="b", x=50.0, y=55.0),
    ScatterPoint(name="c", x=7.0, y=7.0),
]
TREND = [
    TrendPoint(at=T0 + timedelta(days=i), value=80.0 - i, verdict=verdict, alarm=i > 1)
    for i, verdict in enumerate(("PASS", HOSTILE_PICTURES, "FAIL"))
]
DRAWN = {
    "test": lambda: draw_test(RESULT, VERDICT),
    "change": lambda: draw_change(HOSTILE_PICTURES, PAIRED, Metric()),
    "intervals": lambda: draw_intervals(
        HOSTILE_PICTURES,
        [IntervalRow(name=HOSTILE_PICTURES, value=61.3, interval=(52.1, 69.7), before=74.0)],
        Metric(),
    ),
    "order": lambda: draw_order(
        HOSTILE_PICTURES, ["correct"] * 60 + ["wrong"] * 30 + [None] * 10, [ALARM]
    ),
    "distribution": lambda: draw_distribution(
        HOSTILE_PICTURES, {HOSTILE_PICTURES: [0.5, 1.0, 400.0]}, "s", {HOSTILE_PICTURES: 3.0}
    ),
    "lengths": lambda: draw_lengths(
        HOSTILE_PICTURES, [("correct", 4), ("wrong", 8), ("empty", 0)], "tokens"
    ),
    "boxes": lambda: draw_boxes(HOSTILE_PICTURES, {HOSTILE_PICTURES: [1.0, 2.0, 3.0]}, "points"),
    "against": lambda: draw_against(HOSTILE_PICTURES, POINTS, (HOSTILE_PICTURES, "B")),
    "attribute": lambda: draw_attribute(HOSTILE_PICTURES, POINTS, (HOSTILE_PICTURES, "value")),
    "trend": lambda: draw_trend(
        HOSTILE_PICTURES, TREND, "points", TrendBand(reference=80.2, threshold=78.1)
    ),
    "load": lambda: draw_load(LOAD),
}
FIGURES = {
    "test": ["value is 66.1", "reference 68.2", "below 66.4 fails", "0.05", "worse by 2.7", "0.2"],
    "change": ["-0.4", "-1.0 to +0.1", "4,104 prompts", "margin is 1.8"],
    "intervals": ["61.3 (52.1 to 69.7), reference 74.0"],
    "order": [
        "100 requests: 60 right, 30 wrong, 10 failed",
        "request 900 of 1,339",
        "20.0% to 60.0%",
    ],
    "distribution": ["3 values", "p50 1 s", "largest 400 s", "at 3 s"],
    "lengths": ["right: 1 value, median 4", "wrong: 1 value, median 8", "unreadable: 1 value"],
    "boxes": ["3 values, median 2, middle half 1 to 3"],
    "against": ["3 points: 1 lower in B", "1 higher", "70 to 60"],
    "attribute": ["70, 60", "b: 50, 55", "c: 7, 7"],
    "trend": ["3 runs", "first has 80", "last 78", "Reference 80.2, threshold 78.1", "1 alarm"],
    "load": ["load 1: 81.0 (75.0 to 86.0), TTFT 20 ms, 2.0 right", "60.5, 20 failed, broken"],
}
ALLOWED = {"svg", "title", "desc", "g", "path", "text", "line", "rect", "defs", "clipPath", "tspan"}


@pytest.fixture(scope="module")
def pictures():
    made = {name: one for name, draw in DRAWN.items() if (one := draw()) is not None}
    assert len(made) == len(DRAWN)
    return dict(zip(made, draw_all(list(made.values()), pytest.fail), strict=True))


@pytest.mark.parametrize("name", DRAWN)
def test_the_description_has_the_figures_that_were_given(name, pictures):
    for figure in FIGURES[name]:
        assert figure in pictures[name].description


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_has_no_colour_script_or_address_and_shows_foreign_text_as_text(name, pictures):
    picture = pictures[name]
    svg = picture.svg
    assert svg is not None
    root = ElementTree.fromstring(svg)
    tags = {one.tag.partition("}")[2] for one in root.iter()}
    assert tags <= ALLOWED
    assert root.get("role") == "img"
    shown = "".join(root.itertext())
    assert picture.description in shown
    assert not re.search(r"[\x00-\x08\x1b\u202e\ud800-\udfff]", svg)
    for one in root.iter():
        for key, value in one.attrib.items():
            assert not key.startswith("on"), key
            assert key.rpartition("}")[2] not in ("href", "src", "style"), key
            if key in ("fill", "stroke"):
                assert value in ("none", "transparent") or value.startswith("var(--"), value
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgba?\(|hsl", svg)
    assert "http" not in svg.replace("http://www.w3.org/", "")


def test_ids_are_unique_over_all_pictures_and_point_to_elements_of_their_own(
    pictures,
):
    ids = []
    for picture in pictures.values():
        assert picture.svg is not None
        own = re.findall(r'\bid="([^"]+)"', picture.svg)
        used = re.findall(r"url\(#([^)]+)\)", picture.svg)
        used += re.findall(r'aria-labelledby="([^"]+)"', picture.svg)[0].split()
        assert {*used} <= {*own}
        ids += own
    assert len(ids) == len({*ids})


@pytest.mark.parametrize("name", [name for name in DRAWN if name != "test"])
def test_a_ruler_has_round_ends_around_all_that_it_shows(name, pictures):
    ruler = pictures[name].ruler
    assert ruler.rows
    for row in ruler.rows:
        assert all(ruler.low <= x <= ruler.high for x in row.places), row
    assert all(len(f"{end:g}") <= 6 for end in (ruler.low, ruler.high))


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=5))
def test_a_ruler_of_any_values_places_them_in_their_order(values):
    ruler = make_ruler([RulerRow(label="a", text="a", value=x) for x in values])
    assert ruler.low < ruler.high
    places = [ruler.place(x) for x in sorted(values)]
    assert places == sorted(places)
    assert all(0.0 <= place <= 100.0 for place in places)
    assert (ruler.place(ruler.low), ruler.place(ruler.high)) == (0.0, 100.0)


def test_a_ruler_is_not_much_longer_than_what_it_shows():
    def ends(*values):
        ruler = make_ruler([RulerRow(label="a", text="a", value=x) for x in values])
        return ruler.low, ruler.high

    assert ends(61.3, 52.1, 74.0) == (50.0, 75.0)
    assert ends(0.002, 0.0049) == pytest.approx((0.002, 0.005))
    assert ends(7.0) == (6.0, 8.0)
    assert ends(0.0)[0] < 0.0 < ends(0.0)[1]


def _list_lengths(spec):
    """Yield each mark of a specification whose length or height shows a number, with its channel.

    A bar does on its axis with numbers, an area and a rectangle upwards.
    """
    for key in ("layer", "vconcat", "hconcat", "concat"):
        for part in spec.get(key, ()):
            shared = {**spec.get("encoding", {}), **part.get("encoding", {})}
            yield from _list_lengths({**part, "encoding": shared})
    mark = spec.get("mark")
    kind = mark if isinstance(mark, str) else (mark or {}).get("type")
    for axis in ("x", "y"):
        channel = spec.get("encoding", {}).get(axis, {})
        binned = channel.get("bin") == "binned" or (kind in ("area", "rect") and axis == "x")
        if kind in ("bar", "area", "rect") and channel.get("type") == "quantitative" and not binned:
            yield kind, channel


def _begins_at_zero(channel):
    scale = channel.get("scale", {})
    if "domain" in scale:
        return float(scale["domain"][0]) == 0.0
    return bool(scale.get("zero", True))


@pytest.mark.parametrize("name", DRAWN)
def test_no_bar_has_an_axis_that_begins_elsewhere_than_at_zero(name, pictures):
    spec = pictures[name].spec
    assert spec is not None
    lengths = list(_list_lengths(spec))
    # The band of a trend is an area between two levels, whose heights show nothing.
    wrong = [kind for kind, channel in lengths if not _begins_at_zero(channel)]
    assert wrong == (["area"] if name == "trend" else [])
    assert bool(lengths) == (name in ("test", "order", "distribution", "trend"))


def test_a_bar_that_begins_elsewhere_is_found():
    y = {"field": "v", "type": "quantitative", "scale": {"zero": False}}
    for mark in ("bar", {"type": "bar"}):
        layer = {"layer": [{"mark": mark}], "encoding": {"y": y}}
        [(_, channel)] = _list_lengths({"vconcat": [layer]})
        assert not _begins_at_zero(channel)


@pytest.mark.parametrize("better", [True, False])
def test_the_areas_of_the_test_lie_on_their_sides_of_the_threshold(better):
    sign = 1.0 if better else -1.0
    result = replace(RESULT, metric=Metric(higher_is_better=better))
    test = find_test(result, VERDICT if better else replace(VERDICT, threshold=70.0))
    failing = [row["x"] for row in trace_curve(test, test.reference, "", failing=True)]
    passing = [row["x"] for row in trace_curve(test, test.worse, "", failing=False)]
    limit = round(test.threshold, 4)
    assert failing
    assert passing
    assert all(sign * (float(str(x)) - limit) <= 0.0 for x in failing)
    assert all(sign * (float(str(x)) - limit) >= 0.0 for x in passing)
    assert test.worse == 68.17 - sign * 2.747193


def test_a_mean_of_bounded_scores_has_wilsons_interval():
    assert bound_mean(50.0, 100, Metric()) == pytest.approx((40.3832, 59.6168), abs=1e-3)
    low, high = bound_mean(5.0, 100, Metric(lo=0.0, hi=10.0, scale=1.0)) or (0.0, 0.0)
    assert (low, high) == pytest.approx((4.03832, 5.96168), abs=1e-4)
    assert bound_mean(50.0, 100, Metric(hi=None)) is None


def test_what_has_no_figures_has_no_picture():
    assert draw_test(RESULT, replace(VERDICT, threshold=None)) is None
    assert draw_change("t", replace(PAIRED, interval=None), Metric()) is None
    assert draw_intervals("t", [], Metric()) is None
    assert draw_order("t", []) is None
    assert draw_distribution("t", {"a": []}, "s") is None
    assert draw_boxes("t", {"a": []}, "s") is None
    assert draw_against("t", [], ("A", "B")) is None
    assert draw_trend("t", [], "points") is None
    assert draw_load(replace(LOAD, points=())) is None


def test_a_single_value_and_equal_values_can_be_drawn():
    assert draw_distribution("t", {"a": [0.0], "b": [-1.0, -1.0]}, "s") is not None
    assert draw_trend("t", TREND[:1], "points") is not None
    assert draw_against("t", [ScatterPoint(name="a", x=1.0, y=1.0)], ("A", "B")) is not None


def test_labels_stay_different_and_short():
    assert shorten("a" * 50) == "a" * 29 + "..."
    assert shorten_all(["a" * 50, "a" * 51, "b", "b", ""]) == [
        "a" * 29 + "...",
        "a" * 29 + "... (2)",
        "b",
        "b (2)",
        "(no name)",
    ]


def _attempt(start_s, failure=None):
    return Attempt(
        start_s=start_s, end_s=start_s + 1.0, failure=failure, status=None, request_id="r"
    )


@pytest.fixture
def run(tmp_path):
    lost = Failure(
        kind=FailureKind.TIMEOUT,
        message="",
        attempts=(_attempt(1.0, FailureKind.TIMEOUT), _attempt(9.0, FailureKind.TIMEOUT)),
    )
    records = [
        Record(
            id="late",
            response=Response(
                text="ab",
                finish_reason="stop",
                latency_s=2.0,
                ttft_s=0.5,
                usage=Usage(completion_tokens=7),
                attempts=(_attempt(5.0),),
            ),
        ),
        Record(id="lost", failure=lost),
        Record(
            id="early",
            response=Response(
                text="abc", finish_reason="stop", reasoning="de", attempts=(_attempt(0.5),)
            ),
        ),
    ]
    (tmp_path / "samples").mkdir()
    (tmp_path / "scores").mkdir()
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in records)
    (tmp_path / "samples/t.jsonl").write_bytes(lines)
    score = ScoreRecord(id="late", outcome=Outcome.WRONG, value=0.0, target="x")
    (tmp_path / "scores/t.jsonl").write_bytes(encode(score) + b"\n")
    return tmp_path


def test_answers_are_read_in_the_order_of_their_first_attempts(run):
    index = SampleIndex(SampleSource(run=run, task="t"))
    assert index.drawn == [
        DrawnAnswer(outcome=None, started_s=0.5, latency_s=0.0, characters=5),
        DrawnAnswer(outcome=None, started_s=1.0),
        DrawnAnswer(
            outcome="wrong", started_s=5.0, latency_s=2.0, ttft_s=0.5, tokens=7, characters=2
        ),
    ]
    assert (index.answers, index.requests) == (3, 3)
    assert SampleIndex(SampleSource(run=run, task="none")).drawn == []


def test_times_that_no_answer_has_and_few_answers_have_no_picture():
    answers = [
        DrawnAnswer(outcome="correct", started_s=float(i), latency_s=1.0, characters=3)
        for i in range(20)
    ]
    drawn = [picture.title for picture in draw_answers(_task(), answers, 20)]
    assert len(drawn) == 3
    assert [title.rpartition(": ")[2] for title in drawn] == [
        "outcomes in the order of starts",
        "latency",
        "length of answers by outcome",
    ]
    assert list(draw_answers(_task(), answers[:19], 19)) == []


def _task():
    result = make_result(20, 100.0, task=HOSTILE, bounds=None)
    return make_task_report(
        result,
        Verdict(task="t", outcome=VerdictOutcome.PASS, rule="none", evaluated=100.0),
        spec=Spec(name="t"),
    )
