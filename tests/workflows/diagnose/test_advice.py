"""The commands among the advice of a diagnosis run as they stand, and ask no server that ended."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.schema import Spec
from serve_eval.workflows.diagnose.breakdown import describe_verify, name_good
from serve_eval.workflows.diagnose.causes import is_command
from serve_eval.workflows.diagnose.evidence import Evidence
from tests.workflows.diagnose.test_pure import healthy


@pytest.mark.parametrize(
    ("advice", "whole"),
    [
        ("serve-eval show 'my runs/a' test-1", True),
        ("serve-eval judge --rescore a --set t.filter=flexible-extract", True),
        ("serve-eval verify http://a:8000/v1 http://b:8000/v1", True),
        ("serve-eval verify GOOD http://b:8000/v1", False),
        ("serve-eval smoke URL", False),
        ("serve-eval check invariants http://b:8000/v1, rows cold and warm", False),
        ("serve-eval serve simulated --detach; then: serve-eval verify GOOD URL", False),
        ("serve-eval show a --task t --capsule ID", False),
        ("the same serve-eval compare command with -o c", False),
        ("--set t.max_tokens=64", False),
        ("read the server's log", False),
        ("", False),
    ],
)
def test_a_command_has_no_words_of_advice_and_nothing_to_replace(advice: str, whole: bool) -> None:
    assert is_command(advice) is whole


def _make_run(launcher: str) -> Evidence:
    run = healthy(random.Random(1), 20)
    plan = replace(run.plan, launcher=Spec(name=launcher))
    return replace(run, plan=plan, folder=Path("out"))


def test_a_server_that_ended_with_its_run_is_not_asked() -> None:
    """Fails if a launched run counts as one of an endpoint that the user keeps."""
    gone, there = _make_run("simulated"), _make_run("external")
    assert (gone.address, name_good(gone), is_command(gone.attribute)) == ("URL", "GOOD", False)
    assert is_command(there.attribute)
    assert not is_command(describe_verify(gone, "http://a:8000/v1"))
    assert describe_verify(gone, "http://a:8000/v1").startswith("serve-eval serve simulated ")
