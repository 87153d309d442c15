"""Test reading the lines of a growing log."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.launchers._logs import lines as growing_log
from serve_eval.launchers._logs.lines import Line, LogLines, clean


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (path := tmp_path / "server.log").touch()
    return path


def add(log: Path, data: bytes) -> None:
    with log.open("ab") as file:
        file.write(data)


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_only_what_was_added_is_read_and_a_partial_line_waits(log: Path) -> None:
    add(log, b"of an earlier launch\n")
    lines = LogLines(log, start=log.stat().st_size)
    assert lines.read() == []
    add(log, b"one\ntw")
    assert texts(lines.read()) == ["one"]
    add(log, b"o\r\n")
    assert [text for text in texts(lines.read()) if text] == ["two"]
    add(log, b"three")
    assert texts(lines.read()) == []
    assert texts(lines.rest()) == ["three"]
    add(log, b" and its end\nfour\n")
    assert texts(lines.read()) == ["four"]


def test_a_progress_bar_ends_its_lines_by_carriage_returns(log: Path) -> None:
    add(log, b"Loading: 10%\rLoading: 20%\rLoading: 30%")
    assert texts(LogLines(log).read()) == ["Loading: 10%", "Loading: 20%"]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"3: ValueError: no", Line("3", "ValueError: no")),
        (b"12: ", Line("12", "")),
        (b"[1,2]<stderr>:ValueError: no", Line("1,2", "ValueError: no")),
        (b"[TRT-LLM] [RANK 5] [E] no", Line("5", "[TRT-LLM] [RANK 5] [E] no")),
        (b"08:13:00 WARNING", Line("", "08:13:00 WARNING")),
        (b"\x1b[31mValueError\x1b[0m: no\x1b[K", Line("", "ValueError: no")),
        (b"0: \x1b[1mno\x1b[0m", Line("0", "no")),
        (b"caf\xc3\xa9 \xff\xfe", Line("", "caf\u00e9 \ufffd\ufffd")),
        (b"a\0b   ", Line("", "ab")),
    ],
)
def test_a_line_loses_its_label_and_its_colours(raw: bytes, line: Line) -> None:
    assert clean(raw) == line


def test_a_log_that_was_cut_is_read_from_its_beginning(log: Path) -> None:
    add(log, b"one\ntwo\nthr")
    lines = LogLines(log)
    lines.read()
    log.write_bytes(b"new\n")
    assert texts(lines.read()) == ["new"]


def test_a_log_that_is_gone_or_not_there_yet_holds_no_line(log: Path) -> None:
    log.unlink()
    lines = LogLines(log)
    assert lines.read() == []
    add(log, b"one\n")
    assert texts(lines.read()) == ["one"]


def test_memory_is_bounded_for_a_line_without_an_end(log: Path) -> None:
    lines = LogLines(log)
    for _ in range(40):
        add(log, b"x" * 50_000)
        assert lines.read() == []
        assert len(lines._partial) <= growing_log.LONGEST_LINE
    add(log, b"\nafter\n")
    found = texts(lines.read())
    assert [len(found[0]), found[1]] == [growing_log.LONGEST_LINE, "after"]


def test_of_a_log_that_grows_too_fast_the_end_is_read(log: Path) -> None:
    add(log, b"first\n" + b"y" * 99 + b"\n")
    add(log, (b"z" * 99 + b"\n") * (growing_log.MOST_AT_ONCE // 100) + b"last\n")
    lines = LogLines(log)
    found = texts(lines.read())
    assert found[-1] == "last"
    assert set(found[:-1]) == {"z" * 99}
    assert lines.read() == []
