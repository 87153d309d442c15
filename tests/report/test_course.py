from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from serve_eval.report.run.page_blocks import HEIGHT, WIDTH, picture
from serve_eval.schema import Degradation, RunningShare

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


def test_the_picture_is_well_formed_with_both_orders_the_onset_and_their_places() -> None:
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


def test_a_picture_against_a_reference_says_what_is_counted() -> None:
    root = ElementTree.fromstring(
        picture("gsm8k", replace(FOUND, counted="wrong where the reference was right"))
    )
    title = "gsm8k: wrong where the reference was right among the latest 20 counted requests"
    assert title in [node.text for node in root.iter("text")]


def test_a_report_without_a_course_has_no_picture() -> None:
    assert picture("gsm8k", replace(FOUND, course=None)) == ""
