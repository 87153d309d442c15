"""Convert the recipes of folders that SERVE_EVAL_RECIPES names, separated by colons.

They are those of other projects, which this repository does not have: clones of NVIDIA/srt-slurm
and SemiAnalysisAI/InferenceX. `make test-recipes RECIPES=...` runs this test.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.recipes.conversion import convert, list_lines

FOLDERS = [Path(one) for one in os.environ.get("SERVE_EVAL_RECIPES", "").split(":") if one]


@pytest.mark.skipif(not FOLDERS, reason="SERVE_EVAL_RECIPES names no folder")
@pytest.mark.parametrize("folder", FOLDERS, ids=str)
def test_each_recipe_for_trtllm_becomes_a_plan_that_a_dry_run_takes(folder: Path) -> None:
    found = convert(folder)
    assert found.failed == {}
    assert found.plans
    assert all("recipe for" in reason for reason in found.refused), found.refused


def test_the_examples_are_counted() -> None:
    lines = list(list_lines(Path(__file__).parent / "examples"))
    assert lines[0].endswith(": 20 plans, 0 refused by a dry run")
    assert "      1 files not converted: a recipe for SGLang, which no launcher starts" in lines
