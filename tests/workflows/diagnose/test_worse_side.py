"""Test that diagnose explains and accuses the side of a comparison that lost score, and no other.

Both sides are real servers, asked by compare.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.workflows.diagnose.evidence import TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding
from serve_eval.workflows.diagnose.paired_answers import drop_sound, find_worse
from tests.workflows.diagnose.server import Asked, Said, sound
from tests.workflows.diagnose.test_between import SAMPLES, _diagnose, _only, _rules
from tests.workflows.diagnose.test_pure import healthy


def _endless(asked: Asked) -> Said:
    """Answer wrongly, at length, and never come to an end."""
    return Said(text=f"so it is {asked.number} " + "and so on " * 20, finish="length", tokens=64)


def _rambling(asked: Asked) -> Said:
    if asked.chance("bad") < 0.5:
        return Said(text=f"it may be {asked.number} or perhaps another one, who knows", tokens=40)
    return Said(text=f"the answer is {asked.target}", tokens=20)


def _right(asked: Asked) -> Said:
    return Said(text=f"the answer is {asked.target}", tokens=20)


def test_the_answers_of_the_sound_side_are_not_too_short(tmp_path: Path) -> None:
    """Fails if the side with the shorter answers is named: "A gives shorter answers"."""
    found = _diagnose(_right, _rambling, tmp_path)
    told = _only(found, "lengths").told
    assert told.startswith("B gives longer answers: ")
    assert "; longer in " in told
    assert not any(f"{verb} A" in line for line in _lines(found) for verb in ("attribute", "look"))


def test_where_answers_do_not_end_the_others_are_not_short(tmp_path: Path) -> None:
    found = _diagnose(_right, _endless, tmp_path)
    assert "cuts" in _rules(found)
    assert "lengths" not in _rules(found)
    assert _only(found, "cuts").told.startswith(f"B cuts {SAMPLES} of {SAMPLES} answers")
    assert found.runs[0].findings == ()


def test_a_sound_side_that_is_cut_now_and_then_is_not_explained(tmp_path: Path) -> None:
    """A answers at length, which B's short wrong answers do not show."""

    def lengthy(asked: Asked) -> Said:
        cut = asked.chance("cut") < 0.3
        return Said(text="so", finish="length", tokens=64) if cut else sound(asked, 1.0)

    found = _diagnose(lengthy, lambda asked: Said(text=f"{asked.number}", tokens=2), tmp_path)
    assert found.runs[0].findings == ()
    assert not any(one.told.startswith("A ") for one in found.between)


def _lines(found: object) -> list[str]:
    return [change for one in found.between for change in one.change]  # type: ignore[attr-defined]


def _task(lost: set[int]) -> TaskEvidence:
    [task] = healthy(random.Random(1), 60).tasks
    asked = tuple(replace(one, id=f"{i}", bad=i in lost) for i, one in enumerate(task.asked))
    return replace(task, asked=asked)


@pytest.mark.parametrize(
    ("a", "b", "worse"),
    [
        (set(), set(), None),
        (set(), set(range(5)), None),  # p = .06
        (set(), set(range(6)), 1),
        (set(range(6)), set(), 0),
        (set(range(20)), set(range(20)), None),
    ],
)
def test_the_worse_side_has_clearly_more_losses(
    a: set[int], b: set[int], worse: int | None
) -> None:
    assert find_worse(_task(a), _task(b)) == worse


def test_findings_that_both_sides_have_are_kept() -> None:
    a, b = (
        replace(healthy(random.Random(1), 60), tasks=(_task(lost),))
        for lost in (set(), set(range(30)))
    )
    name = a.tasks[0].name
    cut, failed, looping = (
        Finding(rule=rule, told="", change=(), count=1, of=1, task=name)
        for rule in ("truncated", "protocol", "looping")
    )
    assert drop_sound(((cut, failed, looping), (cut,)), (a, b)) == [(cut, failed), (cut,)]
