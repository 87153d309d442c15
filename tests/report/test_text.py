"""Test stories as text on a terminal and as pages, where foreign texts stay texts."""

import base64
import hashlib
import io
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from serve_eval.report.ci import escape_line
from serve_eval.report.ci_result import MOST, OneLine, describe_drop, lead, write_line
from serve_eval.report.document import make_page
from serve_eval.report.lines import p_text
from serve_eval.report.page.content import DataTable, ScriptData
from serve_eval.report.page.writer import render_page
from serve_eval.report.summary.figures import write_number
from serve_eval.report.task_line import split_change
from serve_eval.report.text import clean, fit_tables, reveal, say, wrap
from serve_eval.workflows.suite.page_blocks import read_number
from tests.page.test_hostile_texts import HOSTILE, make_content
from tests.report.document.made.many_runs import make_suite_documents
from tests.report.document.stories import HOSTILE as STORY_PAGES_HOSTILE
from tests.report.document.stories import STORIES, make_documents, make_story_page

ANY = st.text(max_size=700)


def test_the_line_has_all_that_a_night_needs():
    drop, *ends = split_change(-7.2, (-10.0, -4.4), points=True)
    line = OneLine(
        outcome="FAIL",
        about="gsm8k llama-8b",
        figures=describe_drop("52.1", "59.3", drop, ends),
        counts="500 asked, 0 failed, 12 repaired",
        cause="generation_1: 31 of 60 wrong (p = .0075)",
        place="outputs/night",
    )
    assert write_line(line) == (
        "FAIL gsm8k llama-8b: 52.1 against 59.3 (drop 7.2 [4.4, 10.0]); 500 asked, 0 failed,"
        " 12 repaired; likely: generation_1: 31 of 60 wrong (p = .0075); outputs/night"
    )


@pytest.mark.parametrize(
    ("change", "interval", "points", "said"),
    [
        (-7.2, (-10.0, -4.4), True, ("drop 7.2", "4.4", "10.0")),
        (1.5, (-5.3, 8.4), True, ("gain 1.5", "-5.3", "8.4")),
        (0.0, (-1.9, 1.9), True, ("drop 0.0", "-1.9", "1.9")),
        (-0.25, None, False, ("worse by 0.2500",)),
        (0.25, None, False, ("better by 0.2500",)),
    ],
)
def test_a_drop_is_positive_and_so_is_a_gain(change, interval, points, said):
    assert split_change(change, interval, points=points) == said


@given(ANY, ANY, ANY, ANY, ANY, ANY, ANY, st.booleans())
def test_it_is_one_plain_line_whatever_its_parts_hold(
    outcome, about, figures, counts, cause, others, place,
    sure,
):  # fmt: skip
    line = write_line(
        OneLine(
            outcome=outcome, about=about, figures=figures, counts=counts, cause=cause, sure=sure,
            others=others, place=place,
        )
    )  # fmt: skip
    assert len(line) <= MOST
    assert len(line.splitlines()) <= 1
    assert clean(line) == line
    assert all(character == " " or not character.isspace() for character in line)
    line.encode()


@given(st.text(st.sampled_from(list("ab1 _*`[]()<>~#!\\|&$@:;-+.\n")), max_size=60))
def test_markdown_shows_the_line_as_it_is(text):
    line = write_line(OneLine(outcome="FAIL", about=text))
    [_, inline, _] = MarkdownIt("gfm-like", {"linkify": False}).parse(escape_line(line))
    children = inline.children or ()
    assert {one.type for one in children} <= {"text", "text_special"}
    assert "".join(one.content for one in children) == line


def test_an_ordinary_line_is_the_same_in_the_source_of_the_summary():
    line = "FAIL word_problems org/m-8b: 52.1 against 59.3 (drop 7.2 [4.4, 10.0]); generation_1"
    assert escape_line(line) == line


def test_the_worst_speaks_for_all():
    lines = [OneLine(outcome=one, about=one) for one in ("PASS", "FAIL", "PASS")]
    led = lead(lines, [7, 0, 7], "tasks")
    assert [one.others for one in led] == ["", "of 3 tasks: 1 FAIL, 2 PASS", ""]
    assert lead(lines[:1], [0], "tasks") == lines[:1]


COUNTS = "of 41 tests: 1 FAIL, 12 ERROR, 20 PASS, 1 XPASS, 1 XFAIL, 6 SKIPPED"


@pytest.mark.parametrize("times", [0, 1, 9])
def test_causes_and_names_are_shortened_before_counts(times):
    long = times * "a long and winding word "
    line = write_line(
        OneLine(
            outcome="INCONCLUSIVE",
            about=f"gsm8k llama-8b (tests/accuracy/test_llama.py::TestLlama::test_fp8) {long}",
            figures=f"52.1 against 59.3 (drop 7.2 [4.4, 10.0]) {long}",
            counts="14,042 asked, 14042 failed, 14042 repaired; A: 14042 failed, 14042 repaired",
            cause=f"generation_1: 31 of 60 wrong {long}",
            others=COUNTS,
            place=f"/runs/{long}/20261128_220927",
        )
    )
    assert len(line) <= MOST
    assert f"; {COUNTS}; " in line
    assert "; 14,042 asked, 14042 failed, 14042 repaired; A: 14042 failed, 14042 repaired;" in line
    assert line.startswith("INCONCLUSIVE gsm8k llama-8b (tests/accuracy/test_llama")
    assert line.endswith("/20261128_220927")


def test_a_long_name_of_a_test_stands_whole_where_there_is_room():
    test = "tests/accuracy/test_llama.py::TestLlama3_1_8BInstruct::test_fp8_prefix_cache[tp2-ep4]"
    line = write_line(OneLine(outcome="FAIL", about=f"gsm8k m ({test})", cause=99 * "why so "))
    assert line.startswith(f"FAIL gsm8k m ({test}); ")
    assert len(line) <= MOST


LONG = "alone: generation server http://node:8001/v1: 52 of 52 wrong, the others 0 of 48"


def _print(text, *, terminal):
    console = Console(file=io.StringIO(), record=True, width=40, force_terminal=terminal)
    say(console, text)
    return console.export_text().splitlines()


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            LONG,
            [
                "alone: generation server",
                "  http://node:8001/v1: 52 of 52 wrong,",
                "  the others 0 of 48",
            ],
        ),
        (
            f"   {LONG}",
            [
                "   alone: generation server",
                "     http://node:8001/v1: 52 of 52",
                "     wrong, the others 0 of 48",
            ],
        ),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_a_long_line_goes_on_below_its_beginning(text, lines):
    assert _print(text, terminal=True) == lines
    assert _print(text, terminal=False) == [text]


def test_a_command_stays_whole():
    command = (
        f"   change: serve-eval check workers {'long/' * 12}OUT for its servers, also in pairs"
    )
    assert _print(command, terminal=True) == [command]


WORDS = st.lists(st.text("abc日\n", min_size=0, max_size=30), max_size=20).map(" ".join)


@settings(max_examples=40)
@given(WORDS, st.integers(4, 40))
def test_wrapped_lines_keep_every_word_whole_and_fit(text, width):
    lines = [line.plain for line in wrap(Text(text), width)]
    assert " ".join(lines).split() == text.split()
    assert all(cell_len(line) <= width or len(line.split()) == 1 for line in lines)


NAMES = ("task", "n", "A", "B", "verdict")
ROWS = (
    ("lm_eval:a_task_of_a_long_name", "14042", "100.000", "99.125", "INCONCLUSIVE"),
    ("gsm8k", "80", "7.500", "8.250", "PASS"),
)


@pytest.mark.parametrize(("width", "lines"), [(120, 3), (48, 10)])
def test_a_table_that_does_not_fit_is_turned_and_never_cut(width, lines):
    out = io.StringIO()
    cells = [[Text(cell) for cell in row] for row in ROWS]
    Console(file=out, width=width).print(*fit_tables(NAMES, cells, width), sep="\n\n")
    assert set(out.getvalue().split()) == {*NAMES, *(cell for row in ROWS for cell in row)}
    assert len(out.getvalue().splitlines()) == lines


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\x08\x08b\r\x00", "ab"),
        ("\x9b31mx", "31mx"),
        ("\u202eevil", "evil"),
        ("\x1bc", ""),
        ("日本語 ü", "日本語 ü"),
    ],
)
def test_control_sequences_are_removed(text, cleaned):
    assert clean(text) == cleaned


@given(st.text())
def test_nothing_that_controls_a_terminal_is_left(text):
    assert not [
        c
        for c in clean(text)
        if c == "\x1b" or (ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) <= 0x9F
    ]


@pytest.mark.parametrize(
    ("p", "text"),
    [(1.0, "1.0000"), (0.0049, "0.0049"), (0.0001, "0.0001"), (9e-5, "< .0001"), (0.0, "< .0001")],
)
def test_a_tiny_p_is_given_as_a_bound(p, text):
    assert p_text(p) == text


@pytest.mark.parametrize(
    ("value", "decimals", "text"),
    [
        (1.8, 3, "1.800"),
        (0.0, 3, "0.000"),
        (1e-05, 4, "1e-05"),
        (-0.0004, 3, "-0.0004"),
        (0.0006, 3, "0.001"),
        (0.004, 2, "0.004"),
    ],
)
def test_a_small_number_keeps_its_size(value, decimals, text):
    assert write_number(value, decimals) == text


@given(st.floats(allow_nan=False, allow_infinity=False), st.integers(0, 6))
def test_only_zero_is_written_as_zero(value, decimals):
    assert (float(write_number(value, decimals)) == 0.0) == (value == 0.0)


ASSETS = files("serve_eval.report.page") / "assets"


class _Outline(HTMLParser):
    """The elements of a page with their attributes' names, and its texts."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.elements = []
        self.texts = []
        self.values = []

    def handle_starttag(self, tag, attrs):
        self.elements.append(f"{tag} {[name for name, _ in attrs]}")
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data):
        self.texts.append(data)


def _outline(content):
    found = _Outline()
    found.feed(render_page(content))
    return found


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_is_the_same_elements_whatever_it_says(name):
    plain, hostile = _outline(make_content("plain")), _outline(make_content(HOSTILE[name]))
    assert hostile.elements == plain.elements
    shown = reveal(HOSTILE[name].encode(errors="backslashreplace").decode())
    whole = [text.replace(shown, "plain") for text in hostile.texts]
    assert whole == plain.texts
    assert [value.replace(shown, "plain") for value in hostile.values] == plain.values
    assert plain.texts.count("plain") > 15
    assert plain.values.count("plain") > 2


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else():
    page = render_page(make_content("x"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)
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


def _list_scripts():
    return sorted(Path(str(ASSETS)).glob("scripts/*.js"))


def test_no_script_makes_markup_of_texts_or_reaches_the_network():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function"
        r"|setHTML|createContextualFragment|DOMParser|srcdoc|fetch\(|XMLHttpRequest|WebSocket"
        r"|EventSource|sendBeacon|import\(|https?://"
    )
    assert len(_list_scripts()) > 8
    for script in _list_scripts():
        assert forbidden.findall(script.read_text()) == [], script.name


def test_no_template_marks_a_text_as_markup_but_a_drawing():
    templates = list(Path(str(ASSETS)).glob("*.jinja"))
    assert len(templates) == 2
    texts = "".join(one.read_text() for one in templates)
    assert re.findall(r"\{\{[^}]*safe[^}]*\}\}", texts) == ["{{ picture.svg | safe }}"]
    assert "autoescape" not in texts


def test_a_page_holds_only_the_scripts_that_its_sections_name():
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
def contents(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVE_EVAL_NO_PICTURES", "1")
        folder = tmp_path_factory.mktemp("stories")
        yield {
            "suite": make_page(make_suite_documents(STORY_PAGES_HOSTILE, folder)["FAIL"]),
            "load": make_page(make_documents("load", STORY_PAGES_HOSTILE)["FAIL"]),
            "verify": make_page(make_documents("verify", STORY_PAGES_HOSTILE)["two servers"]),
            "smoke": make_page(make_documents("smoke", STORY_PAGES_HOSTILE)["FAIL"]),
            "watch": make_page(make_documents("watch", STORY_PAGES_HOSTILE)["ALARM"]),
            "drift": make_page(make_documents("drift", STORY_PAGES_HOSTILE)["ALARM"]),
            "view": make_page(make_documents("view", STORY_PAGES_HOSTILE)["FAIL"]),
            "tools": make_page(make_documents("tools", STORY_PAGES_HOSTILE)["FAIL"]),
        }


@pytest.mark.parametrize("story", FIRST)
def test_the_verdict_comes_first_and_the_figures_are_those_given(story, contents):
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
def test_foreign_text_is_shown_as_text(story):
    page = render_page(make_story_page(story))
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "window.hit" in page
    assert not re.search(r"[\x1b\u202e\ud800]", page)


def test_runs_without_a_result_and_then_the_worst_ones_come_first_with_links(
    contents,
):
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
def test_attributes_with_a_number_and_a_unit_are_numbers(value, found):
    assert read_number(value) == found
