"""Answers of two sides show disagreement with themselves only if both are drawn alike."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serve_eval.evidence.agreement.self_flips import find_drawn
from serve_eval.workflows.compare.exact import Second, keep_like


@pytest.mark.parametrize(
    ("temperature", "seed", "repeats", "expected"),
    [
        ("0.8", "5", True, "other_seeds"),
        ("0.8", "5", False, "same"),
        ("0.8", "null", True, "seedless"),
        ("0.8", "null", False, "seedless"),
        ("null", "null", True, "seedless"),
        ("0", "5", True, "same"),  # no seed is sent
        ("0.0", "null", True, "same"),
        ("0.0", "null", False, "same"),
    ],
)
def test_a_side_disagrees_with_itself_only_in_the_same_draw(
    temperature: str, seed: str, repeats: bool, expected: str
) -> None:
    protocol = {"temperature": temperature, "seed": seed}
    answers: Any = SimpleNamespace(task=SimpleNamespace(fingerprint=protocol))
    assert find_drawn(answers, repeats=repeats) == expected


@pytest.mark.parametrize(
    ("a", "b", "kept"),
    [
        ("same", "same", "AB"),
        ("seedless", "seedless", "AB"),
        ("other_seeds", "other_seeds", ""),
        ("other_seeds", "same", "B"),
        ("seedless", "other_seeds", "A"),
        ("seedless", "same", ""),
        (None, "same", "B"),
        (None, None, ""),
    ],
)
def test_only_answers_drawn_alike_are_compared(a: Any, b: Any, kept: str) -> None:
    twice = {
        name: Second(None, drawn=drawn) for name, drawn in (("A", a), ("B", b)) if drawn is not None
    }
    assert "".join(keep_like(twice)) == kept
