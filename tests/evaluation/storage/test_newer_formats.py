"""Test that files of a newer serve-eval are refused.

Covers comparisons, checks and attributions; the error names the version.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.reports import (
    attribution_file,
    comparison_files,
    invariants_files,
    load_files,
)
from serve_eval.schema import Plan, Spec

READERS = {
    "diagnose": ("compare.json", comparison_files.COMPARISON_SCHEMA, comparison_files.locate_runs),
    "compare": (
        "compare.json",
        comparison_files.COMPARISON_SCHEMA,
        comparison_files.read_comparison_plan,
    ),
    "flips": (
        "comparison.json",
        comparison_files.COMPARISON_SCHEMA,
        comparison_files.find_comparison,
    ),
    "checks": (
        "invariants_plan.json",
        invariants_files.INVARIANTS_SCHEMA,
        invariants_files.read_invariants_plan,
    ),
    "loads": (
        "load_plan.json",
        load_files.LOAD_SCHEMA,
        load_files.read_load_plan,
    ),
    "attribute": (
        "attribution.json",
        attribution_file.ATTRIBUTION_SCHEMA,
        attribution_file.check_attribution,
    ),
}
LENIENT = (comparison_files.find_comparison, attribution_file.check_attribution)
"""Functions that treat a damaged file as missing."""
SIDES = {"a": {"run": "/one"}, "b": {"launcher": {"name": "simulated"}}}


@pytest.mark.parametrize("more", [SIDES, {"all": "else"}], ids=["alike", "of other fields"])
@pytest.mark.parametrize("reader", READERS)
def test_a_newer_file_is_refused(reader: str, more: dict[str, Any], tmp_path: Path) -> None:
    name, known, read = READERS[reader]
    text = json.dumps({"schema_version": known + 4, **more})
    (tmp_path / name).write_text(text)
    said = (
        f"{re.escape(str(tmp_path / name))} has format {known + 4}, but .* reads formats up to"
        f" {known}$"
    )
    with pytest.raises(RunFolderError, match=said) as caught:
        read(tmp_path)
    assert "or a newer one" in caught.value.hint
    assert (tmp_path / name).read_text() == text


def test_what_this_version_writes_it_reads(tmp_path: Path) -> None:
    comparison_files.write_comparison_plan(tmp_path, SIDES)
    assert (
        json.loads((tmp_path / "compare.json").read_text())["schema_version"]
        == comparison_files.COMPARISON_SCHEMA
    )
    assert comparison_files.read_comparison_plan(tmp_path) == SIDES
    assert comparison_files.locate_runs(tmp_path) == [("A", Path("/one")), ("B", tmp_path / "b")]
    plan = Plan(model="m", launcher=Spec(name="simulated"), tasks=(Spec(name="gsm8k"),))
    invariants_files.write_invariants_plan(tmp_path, plan)
    assert invariants_files.read_invariants_plan(tmp_path) == plan
    asked = load_files.LoadPlan(plan=plan, loads=(1, 64), bisect=True)
    load_files.write_load_plan(tmp_path, asked)
    assert load_files.read_load_plan(tmp_path) == asked


def test_a_file_without_a_version_is_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "compare.json").write_text(json.dumps(SIDES))
    assert comparison_files.read_comparison_plan(tmp_path) == SIDES
    assert len(comparison_files.locate_runs(tmp_path)) == 2


@pytest.mark.parametrize("content", ["{", '{"schema_version": "five"}', "[]"])
def test_a_damaged_file_is_told_as_such(content: str, tmp_path: Path) -> None:
    for name in (
        "compare.json",
        "comparison.json",
        "invariants_plan.json",
        "load_plan.json",
        "attribution.json",
    ):
        (tmp_path / name).write_text(content)
    for _, _, read in READERS.values():
        if read in LENIENT:
            assert read(tmp_path) is None
            continue
        with pytest.raises(RunFolderError, match="cannot be read"):
            read(tmp_path)
