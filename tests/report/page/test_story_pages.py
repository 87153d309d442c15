"""The pages of stories: the verdict first, figures as given, and foreign text as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import unescape

import pytest

from serve_eval.report.document import make_page
from serve_eval.report.page.content import DataTable, PageContent
from serve_eval.report.page.writer import render_page
from serve_eval.workflows.suite.page_blocks import read_number
from tests.page.stories import HOSTILE, make_story_page
from tests.report.document.made import drift, load, smoke, suite, tools, verify, view, watch
from tests.report.document.stories import STORIES

FIRST = {
    "suite": ("fail", "FAIL", "3 runs, 3 tasks: 1 FAIL, 1 FAIL (waived), 1 PASS"),
    "load": ("fail", "FAIL", "60.5 at 64 in flight against 81.0 at 1 (drop 19.7 [14.2, 26.0])"),
    "verify": (
        "fail",
        "ANOTHER MODEL, PRECISION OR CACHE",
        "2 servers: 1 ANOTHER MODEL, PRECISION OR CACHE, 1 IDENTICAL",
    ),
    "smoke": ("fail", "FAIL", "1 failed (json), 1 passed, 1 known, 1 unsupported"),
    "watch": ("fail", "ALARM", "accuracy"),
    "tools": ("fail", "FAIL", "30 of 40 answers have no error"),
    "view": ("fail", "FAIL", "3 series and checks: 2 failed, 1 passed; 1 ended without a result"),
    "drift": ("fail", "ALARM", "after 20 runs of 1319 samples; S "),
}
FIGURES = {
    "suite": ["60.5 FAIL", "50.2 FAIL (waived)", "80.0 PASS", "waived until 2027-01-31"],
    "load": ["60.5 (53-67)", "41", "2e-09", "500, 900", "BROKEN", "1: 81.0 (75.0 to 86.0)"],
    "verify": ["1.25", "noise 0.002, floor 0.08 nat", "floor at 0.08 nat"],
    "smoke": ["HTTP 200", "0.20", "# json"],
    "watch": ["80.0%, alarm if below 76.0%", "accuracy fell", "66.7%", "p99 0.4 s"],
    "tools": ["10 of 40", "75.0 (60-86)", "0.750", "1,000 prompt tokens", "auto-1: ", "lacks"],
    "view": [
        "34.7 below reference 83.8",
        "fails since 2026-10-06 02:00, 3 times",
        "Verdicts of the last 8 nights",
    ],
    "drift": ["80.000", "gsm8k: value of each run", "20 runs from 2026-10-01 12:00", "ALARM"],
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, PageContent]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVE_EVAL_NO_PICTURES", "1")
        folder = tmp_path_factory.mktemp("stories")
        yield {
            "suite": make_page(suite.make_documents(HOSTILE, folder)["FAIL"]),
            "load": make_page(load.make_documents(HOSTILE)["FAIL"]),
            "verify": make_page(verify.make_documents(HOSTILE)["two servers"]),
            "smoke": make_page(smoke.make_documents(HOSTILE)["FAIL"]),
            "watch": make_page(watch.make_documents(HOSTILE)["ALARM"]),
            "drift": make_page(drift.make_documents(HOSTILE)["ALARM"]),
            "view": make_page(view.make_documents(HOSTILE)["FAIL"]),
            "tools": make_page(tools.make_documents(HOSTILE)["FAIL"]),
        }


@pytest.mark.parametrize("story", FIRST)
def test_the_verdict_comes_first_and_the_figures_are_those_given(
    story: str, contents: Mapping[str, PageContent]
) -> None:
    state, badge, headline = FIRST[story]
    content = contents[story]
    assert (content.state, content.badge) == (state, badge)
    assert headline in content.headline
    page = unescape(render_page(content))
    text = " ".join(
        re.sub(r"<[^>]+>", " ", page[page.index("<main") : page.index("</main>")]).split()
    )
    assert text.index(badge) < 60
    for figure in FIGURES[story]:
        assert figure in text, figure


@pytest.mark.parametrize("story", STORIES)
def test_foreign_text_is_shown_as_text(story: str) -> None:
    page = render_page(make_story_page(story))
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "window.hit" in page
    assert not re.search(r"[\x1b\u202e\ud800]", page)


def test_runs_without_a_result_and_then_the_worst_ones_come_first_with_links(
    contents: Mapping[str, PageContent],
) -> None:
    matrix = next(s for s in contents["suite"].sections if isinstance(s, DataTable))
    assert [row[0].text for row in matrix.rows] == ["<b>run", "a-7b", "b-70b"]
    # Only one run has a page.
    assert [row[0].href for row in matrix.rows] == ["", "runs/a-7b/report.html", ""]
    assert [cell.state for cell in matrix.rows[1][1:]] == ["fail", "warn"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (8, (8.0, "")),
        ("70B", (70.0, "B")),
        ("4-bit", (4.0, "-bit")),
        ("1.5 B", (1.5, "B")),
        (True, None),
        ("fp8", None),
        ("7B-8B", None),
    ],
)
def test_attributes_with_a_number_and_a_unit_are_numbers(
    value: bool | int | str, found: tuple[float, str] | None
) -> None:
    assert read_number(value) == found
