"""Test that attribute accuses no sound worker that thinks, and says when it cannot judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command import serve_eval
from tests.thinking.commands import ENOUGH, FEW, write_sums
from tests.thinking.flavours import flavour_in_thread


def _attribute(folder: Path, forms: tuple[str, str], max_tokens: int, **faults: int) -> int:
    """Return the exit code of attribute for a server of each form; the faults are the second's."""
    cases = write_sums(folder, max_tokens)
    with flavour_in_thread(forms[0]) as one, flavour_in_thread(forms[1], **faults) as other:
        words = ["--model", "M", "--no-reference", "-o", folder / "run"]
        serve_eval("run", "--base-url", one, "--cases", cases, *words)
        workers = ["--worker", one, "--worker", other]
        done = serve_eval("attribute", folder / "run", *workers, "--samples", "20")
    return done.returncode


def _warnings(folder: Path) -> str:
    return "; ".join(json.loads((folder / "run/attribution.json").read_text())["warnings"])


@pytest.mark.parametrize("forms", [("field_long", "opened_long"), ("inline", "inline")])
def test_attribute_judges_no_worker_whose_answers_ended_within_thoughts(
    forms: tuple[str, str], tmp_path: Path
) -> None:
    """Two replicas, of which one has a reasoning parser, differ in the form of thoughts alone."""
    assert _attribute(tmp_path, forms, FEW) == 5
    assert "40 of 40 answers were cut within the model's thoughts" in _warnings(tmp_path)


def test_attribute_finds_a_damaged_worker_that_thinks(tmp_path: Path) -> None:
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH, corrupt_after=0) == 1


def test_attribute_calls_workers_with_whole_thoughts_sound(tmp_path: Path) -> None:
    assert _attribute(tmp_path, ("field", "opened"), ENOUGH) == 0
    assert _warnings(tmp_path) == ""
