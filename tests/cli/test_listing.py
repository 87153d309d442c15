from __future__ import annotations

import pytest

from serve_eval.cli.listing import listing
from serve_eval.plugins import registry
from serve_eval.verdicts.references import find_shipped_dir


def test_the_list_has_every_task(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("tasks")
    told = capfd.readouterr().out
    assert all(f"\n  {name}:" in told for name in registry.names("serve_eval.tasks"))
    assert "\n  cases:NAME: " in told


def test_the_list_has_every_scorer_and_says_where_options_are(
    capfd: pytest.CaptureFixture[str],
) -> None:
    listing("scorers")
    told = capfd.readouterr().out
    assert all(f"\n  {name}: " in told for name in registry.names(registry.SCORERS))
    assert "\n  words: The answer has certain words" in told
    assert "whole_words" not in told
    assert "\n  options of one: serve-eval list scorers NAME\n" in told


def test_every_published_reference_has_a_task() -> None:
    files = {file.stem for file in find_shipped_dir().glob("*.yaml")}
    named = {"SlimPajama-6B", "acceptance_length", "gpqa_diamond"}  # their tasks have other names
    assert not files - named - set(registry.names("serve_eval.tasks"))
