"""Test pages of stories in one file, in which foreign texts stay texts."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest

from serve_eval.report.document import make_page
from serve_eval.report.page.content import DataTable, PageContent, ScriptData
from serve_eval.report.page.writer import render_page
from serve_eval.report.text import reveal
from serve_eval.workflows.suite.page_blocks import read_number
from tests.page.hostile import HOSTILE, make_content
from tests.report.document.made import drift, load, smoke, suite, tools, verify, view, watch
from tests.report.document.stories import HOSTILE as STORY_PAGES_HOSTILE
from tests.report.document.stories import STORIES, make_story_page

ASSETS = files("serve_eval.report.page") / "assets"


class _Outline(HTMLParser):
    """The elements of a page with their attributes' names, and its texts."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.values: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(f"{tag} {[name for name, _ in attrs]}")
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def _outline(content: PageContent) -> _Outline:
    found = _Outline()
    found.feed(render_page(content))
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_is_the_same_elements_whatever_it_says(name: str) -> None:
    plain, hostile = _outline(make_content("plain")), _outline(make_content(HOSTILE[name]))
    assert hostile.elements == plain.elements
    shown = reveal(HOSTILE[name].encode(errors="backslashreplace").decode())
    whole = [text.replace(shown, "plain") for text in hostile.texts]
    assert whole == plain.texts
    assert [value.replace(shown, "plain") for value in hostile.values] == plain.values
    assert plain.texts.count("plain") > 15
    assert plain.values.count("plain") > 2


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page = render_page(make_content("x"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in policy[1].replace("&#39;", "'").split("; "))
    [script] = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    [style] = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    for text, rule in ((script, "script-src"), (style, "style-src")):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(rule) == f"'sha256-{digest}'"
    assert rules == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    assert not re.findall(r"\bstyle=|\bon[a-z]+=\"", page)


def _list_scripts() -> list[Path]:
    return sorted(Path(str(ASSETS)).glob("scripts/*.js"))


def test_no_script_makes_markup_of_texts_or_reaches_the_network() -> None:
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        r"|setHTML|createContextualFragment|DOMParser|srcdoc|fetch\(|XMLHttpRequest|WebSocket"
        r"|EventSource|sendBeacon|import\(|https?://"
    )
    assert len(_list_scripts()) > 8
    for script in _list_scripts():
        assert forbidden.findall(script.read_text()) == [], script.name


def test_no_template_marks_a_text_as_markup_but_a_drawing() -> None:
    templates = list(Path(str(ASSETS)).glob("*.jinja"))
    assert len(templates) == 2
    texts = "".join(one.read_text() for one in templates)
    assert re.findall(r"\{\{[^}]*safe[^}]*\}\}", texts) == ["{{ picture.svg | safe }}"]
    assert "autoescape" not in texts


def test_a_page_holds_only_the_scripts_that_its_sections_name() -> None:
    content = make_content("x")
    assert "class Samples" not in render_page(content)
    section = ScriptData(
        title="t", name="samples", value={"x": "</script>"}, scripts=["samples.js"]
    )
    page = render_page(replace(content, sections=[section]))
    assert "class Samples" in page
    assert page.count("</script>") == 2


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
            "suite": make_page(suite.make_documents(STORY_PAGES_HOSTILE, folder)["FAIL"]),
            "load": make_page(load.make_documents(STORY_PAGES_HOSTILE)["FAIL"]),
            "verify": make_page(verify.make_documents(STORY_PAGES_HOSTILE)["two servers"]),
            "smoke": make_page(smoke.make_documents(STORY_PAGES_HOSTILE)["FAIL"]),
            "watch": make_page(watch.make_documents(STORY_PAGES_HOSTILE)["ALARM"]),
            "drift": make_page(drift.make_documents(STORY_PAGES_HOSTILE)["ALARM"]),
            "view": make_page(view.make_documents(STORY_PAGES_HOSTILE)["FAIL"]),
            "tools": make_page(tools.make_documents(STORY_PAGES_HOSTILE)["FAIL"]),
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
