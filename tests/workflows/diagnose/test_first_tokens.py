"""Test that the first tokens that a comparison asked for lead its diagnosis."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.schema import Comparison, DivergencePlaces, VerdictOutcome
from serve_eval.storage.story_files import COMPARE
from serve_eval.workflows.diagnose.causes import find_leads
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.story import diagnose
from tests.workflows.diagnose.server import Asked, Said, sound
from tests.workflows.diagnose.test_between import _diagnose

READING = (
    "the first token already differs in 12 of 15 flips: look at the prompt and its KV cache"
    " (template, prefix, transfer)"
)


def _loop(asked: Asked) -> Said:
    if asked.chance("loop") < 0.5:
        return Said(text="so it is " + "and so " * 30, finish="length", tokens=64)
    return sound(asked)


@pytest.mark.parametrize("failed", [True, False])
def test_the_first_token_that_differs_leads_a_red_comparison(tmp_path: Path, failed: bool) -> None:
    """Fails if symptoms come first: B's answers are cut, which more of them show."""
    _diagnose(sound, _loop, tmp_path)
    done = COMPARE.find(tmp_path / "out", Comparison)
    assert done is not None
    [task] = done.tasks
    assert task.verdict.outcome is VerdictOutcome.FAIL
    outcome = VerdictOutcome.FAIL if failed else VerdictOutcome.PASS
    task = replace(
        task,
        places=DivergencePlaces(counts={}, confident={}, reading=READING),
        verdict=replace(task.verdict, outcome=outcome),
    )
    COMPARE.write(tmp_path / "out", replace(done, tasks=(task,)))
    found = diagnose(tmp_path / "out")
    rules = [one.rule for one in found.between]
    assert ("first_difference" in rules) is failed
    assert "cuts" in rules
    if failed:
        assert rules[0] == "first_difference"
        assert found.between[0].told == READING
        assert f"likely: {READING}" in found.verdict[0]
        leads = find_leads(read_folder(tmp_path / "out"))
        assert leads.causes == {"word_problems": READING}
