"""Test what a plan may do whose folder another user saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serve_eval.evaluation.storage.run_folder import open_folder
from serve_eval.evaluation.trust import to_read
from serve_eval.schema import Plan, Spec


@pytest.mark.parametrize("allowed", [False, True])
def test_a_command_that_reads_a_folder_uses_the_hub_only_where_this_user_allowed_it(
    tmp_path: Path, allowed: bool
) -> None:
    launcher = Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    plan = Plan(
        model="m", launcher=launcher, tasks=(Spec(name="word_problems"),), allow_hub=allowed
    )
    with open_folder(tmp_path / "own", plan, {"word_problems": {}}, own=True):
        pass
    shutil.copytree(tmp_path / "own", tmp_path / "copied")
    found = {name: to_read(tmp_path / name, ()).allow_hub for name in ("own", "copied")}
    assert found == {"own": allowed, "copied": False}
