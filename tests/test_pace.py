"""Test long steps of our own by a clock that the test moves.

The speed of the machine does not matter.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest

from serve_eval import pace
from serve_eval.cli._streams import LongSteps
from serve_eval.errors import DatasetError, PlanError
from serve_eval.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


Told = list[tuple[str, bool]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    said: Told = []
    monkeypatch.setattr(pace, "EVERY", 1)
    with pace.notify_to(lambda line, last: said.append((line, last))):
        yield said


def test_a_step_of_less_than_a_second_says_nothing(told: Told) -> None:
    clock = Clock()
    step = Pace("a.yaml", 3, "lines", clock=clock)
    clock.now += 0.9
    step.at(3)
    step.end()
    assert told == []


def test_a_longer_step_says_how_far_it_is_and_that_it_is_over(told: Told) -> None:
    clock = Clock()
    step = Pace("a.yaml", 30, "lines", clock=clock)
    for line in (10, 20, 30):
        clock.now += 2
        step.at(line)
    step.end()
    assert told == [
        ("a.yaml: 10 of 30 lines, 2 s", False),
        ("a.yaml: 20 of 30 lines, 4 s", False),
        ("a.yaml: 30 of 30 lines, 6 s", False),
        ("a.yaml: 30 of 30 lines, 6 s", True),
    ]


def test_a_step_that_takes_too_long_ends_and_says_what_to_do(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    step = Pace("a.yaml", 30, "lines", DatasetError, clock=clock)
    clock.now += pace.LIMIT_S
    with pytest.raises(
        DatasetError, match=r"^a\.yaml: took longer than 300 s; it had done 7 of 30 lines$"
    ) as caught:
        step.at(7)
    assert "SERVE_EVAL_READING_TIMEOUT=600" in caught.value.hint
    monkeypatch.setenv(pace.VARIABLE, "5.5")
    step = Pace("a.yaml", 30, "lines", clock=clock)
    clock.now += 5
    step.at(7)
    clock.now += 1
    with pytest.raises(PlanError, match=r"longer than 5\.5 s"):
        step.at(8)


@pytest.mark.parametrize("given", ["soon", "0", "-1", "nan"])
def test_a_limit_that_is_none_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pace.VARIABLE, given)
    with pytest.raises(
        PlanError, match=f"SERVE_EVAL_READING_TIMEOUT={given}: not a number of seconds"
    ):
        Pace("a.yaml", 1, "lines")


class _Stream(io.StringIO):
    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def _shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    stream, clock = _Stream(terminal=terminal), Clock()
    monkeypatch.setattr(sys, "stderr", stream)
    steps = LongSteps(clock)
    for number in range(8):
        steps(f"line {number}\x1b[2J", False)
        clock.now += 1
    steps("over", True)
    return stream.getvalue()


def test_a_terminal_has_one_line_which_goes_and_a_file_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_terminal = _shown(monkeypatch, terminal=True)
    assert on_terminal.count("\r") == 9
    assert "\n" not in on_terminal
    assert on_terminal.endswith("\r\x1b[K")
    assert "2J" not in on_terminal
    assert _shown(monkeypatch, terminal=False) == "line 0\nline 5\nover\n"
