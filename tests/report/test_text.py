from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.report.text import clean


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
def test_control_sequences_are_removed(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@given(st.text())
def test_nothing_that_controls_a_terminal_is_left(text: str) -> None:
    assert not [
        c
        for c in clean(text)
        if c == "\x1b" or (ord(c) < 32 and c not in "\t\n") or 0x7F <= ord(c) <= 0x9F
    ]
