"""Test the one line that says how a command ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from serve_eval.report.ci import escape_line
from serve_eval.report.one_line import MOST, OneLine, describe_drop, lead, write_line
from serve_eval.report.task_line import split_change
from serve_eval.report.text import clean

ANY = st.text(max_size=700)


def test_the_line_has_all_that_a_night_needs() -> None:
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
def test_a_drop_is_positive_and_so_is_a_gain(
    change: float, interval: tuple[float, float] | None, points: bool, said: tuple[str, ...]
) -> None:
    assert split_change(change, interval, points=points) == said


@given(ANY, ANY, ANY, ANY, ANY, ANY, ANY, st.booleans())
def test_it_is_one_plain_line_whatever_its_parts_hold(
    outcome: str, about: str, figures: str, counts: str, cause: str, others: str, place: str,
    sure: bool,
) -> None:  # fmt: skip
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
def test_markdown_shows_the_line_as_it_is(text: str) -> None:
    line = write_line(OneLine(outcome="FAIL", about=text))
    [_, inline, _] = MarkdownIt("gfm-like", {"linkify": False}).parse(escape_line(line))
    children = inline.children or ()
    assert {one.type for one in children} <= {"text", "text_special"}
    assert "".join(one.content for one in children) == line


def test_an_ordinary_line_is_the_same_in_the_source_of_the_summary() -> None:
    line = "FAIL word_problems org/m-8b: 52.1 against 59.3 (drop 7.2 [4.4, 10.0]); generation_1"
    assert escape_line(line) == line


def test_the_worst_speaks_for_all() -> None:
    lines = [OneLine(outcome=one, about=one) for one in ("PASS", "FAIL", "PASS")]
    led = lead(lines, [7, 0, 7], "tasks")
    assert [one.others for one in led] == ["", "of 3 tasks: 1 FAIL, 2 PASS", ""]
    assert lead(lines[:1], [0], "tasks") == lines[:1]


COUNTS = "of 41 tests: 1 FAIL, 12 ERROR, 20 PASS, 1 XPASS, 1 XFAIL, 6 SKIPPED"


@pytest.mark.parametrize("times", [0, 1, 9])
def test_causes_and_names_are_shortened_before_counts(times: int) -> None:
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


def test_a_long_name_of_a_test_stands_whole_where_there_is_room() -> None:
    test = "tests/accuracy/test_llama.py::TestLlama3_1_8BInstruct::test_fp8_prefix_cache[tp2-ep4]"
    line = write_line(OneLine(outcome="FAIL", about=f"gsm8k m ({test})", cause=99 * "why so "))
    assert line.startswith(f"FAIL gsm8k m ({test}); ")
    assert len(line) <= MOST
