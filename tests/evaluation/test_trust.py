"""Test what a plan may do whose folder another user saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from serve_eval.cli.suite import _suite
from serve_eval.evaluation.storage.reports.suite_files import write_suite
from serve_eval.evaluation.storage.run_folder import open_folder
from serve_eval.evaluation.trust import to_read
from serve_eval.schema import Plan, Spec, Suite, SuiteRun


def _plan(*, allow_hub: bool) -> Plan:
    launcher = Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"})
    tasks = (Spec(name="word_problems"),)
    return Plan(model="m", launcher=launcher, tasks=tasks, allow_hub=allow_hub)


@pytest.mark.parametrize("allowed", [False, True])
def test_a_command_that_reads_a_folder_uses_the_hub_only_where_this_user_allowed_it(
    tmp_path: Path, allowed: bool
) -> None:
    plan = _plan(allow_hub=allowed)
    with open_folder(tmp_path / "own", plan, {"word_problems": {}}, own=True):
        pass
    shutil.copytree(tmp_path / "own", tmp_path / "copied")
    found = {name: to_read(tmp_path / name, ()).allow_hub for name in ("own", "copied")}
    assert found == {"own": allowed, "copied": False}


@pytest.mark.parametrize("allowed", [False, True])
def test_a_command_that_shows_a_suite_uses_the_hub_only_where_this_user_allowed_it(
    tmp_path: Path, allowed: bool
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    write_suite(own, Suite(name="s", runs=(SuiteRun(name="one", plan=_plan(allow_hub=allowed)),)))
    shutil.copytree(own, tmp_path / "copied")
    found = {
        name: _suite(None, tmp_path / name, allow_code_execution=False, follow=False)
        .runs[0]
        .plan.allow_hub
        for name in ("own", "copied")
    }
    assert found == {"own": allowed, "copied": False}
