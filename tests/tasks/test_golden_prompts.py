"""Test that every task asks what it asked when its references were measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tasks.golden_prompts import (
    FILE,
    NAMES,
    OPTIONS,
    Asked,
    asked,
    find_untried,
    label,
    variants,
)

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
SAME_OF_MADE_DATA = ('mmlu none_cells="none"',)
"""Variants without effect on made data: none of its cells is None, unlike in the real set."""
LABELS = {label(*variant): variant for variant in variants()}


def told(name: str, was: str, now: Asked) -> str:
    return (
        f"{name} asks something else than before. If that is on purpose, its references no longer"
        " hold: raise the task's version and run make golden-prompts.\nfirst request before:"
        f" {was}\nfirst request now:    {now.first}"
    )


@pytest.mark.parametrize("name", LABELS)
def test_a_task_asks_what_it_asked(name: str, data_root: Path) -> None:
    assert name in GOLDEN["made"], "a new task or option: run make task-pages"
    now, was = asked(*LABELS[name], data_root), GOLDEN["made"][name]
    assert (now.sha256, now.requests) == (was["sha256"], was["requests"]), told(
        name, was["first"], now
    )


@pytest.mark.parametrize("name", GOLDEN["real"])
def test_a_task_asks_of_the_real_set_what_it_asked(name: str, shared: Path) -> None:
    now = asked(*LABELS[name], shared / "data")
    assert now.sha256 == GOLDEN["real"][name], told(name, "(a real set, not kept)", now)


def test_every_option_is_asked_or_known_to_change_nothing() -> None:
    assert not OPTIONS.keys() - set(NAMES)
    for name in NAMES:
        assert find_untried(name) == [], (
            f"{name}: list these options in OPTIONS of golden_prompts.py"
        )


def test_every_option_changes_what_is_asked() -> None:
    seen: dict[tuple[str, str], str] = {}
    for one, golden in GOLDEN["made"].items():
        first = seen.setdefault((LABELS[one][0], golden["sha256"]), one)
        assert first == one or one in SAME_OF_MADE_DATA, f"{one} asks what {first} asks"
