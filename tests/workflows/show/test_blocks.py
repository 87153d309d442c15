from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from serve_eval.report.layout import wrap
from serve_eval.workflows.show.blocks import shorten

WORDS = st.lists(st.text("abc日\n", min_size=0, max_size=30), max_size=20).map(" ".join)


@settings(max_examples=40)
@given(WORDS, st.integers(4, 40))
def test_wrapped_lines_keep_every_word_whole_and_fit(text: str, width: int) -> None:
    lines = [line.plain for line in wrap(Text(text), width)]
    assert " ".join(lines).split() == text.split()
    assert all(cell_len(line) <= width or len(line.split()) == 1 for line in lines)


def test_of_a_long_text_the_beginning_and_the_end_are_kept() -> None:
    lines = [Text(str(number)) for number in range(20)]
    assert [line.plain for line in shorten(lines, 6)] == [
        *("0", "1"),
        "… 14 lines left out: --whole",
        *("16", "17", "18", "19"),
    ]
    assert shorten(lines, None) == shorten(lines, 19) == lines
