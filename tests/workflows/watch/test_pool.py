"""Test which plans can be watched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from serve_eval.errors import PlanError
from serve_eval.plan import resolve
from serve_eval.schema import Plan
from serve_eval.workflows.watch.pool import PROMPTS, of_plan

JUDGED = {
    "judge": {
        "judges": [{"name": "j", "base_url": "http://127.0.0.1:9/v1", "model": "j"}],
        "metrics": ["correctness"],
    }
}


def _plan(**settings: Any) -> Plan:
    return resolve.resolve({}, {"model": "m", **settings}, {}).plan


def _cases(folder: Path, scorer: Any) -> str:
    cases = [{"case": "a", "input": {"prompt": "Hello?"}, "expected": "Hi"}]
    (folder / "cases.yaml").write_text(yaml.safe_dump({"c": {"scorer": scorer, "cases": cases}}))
    return str(folder / "cases.yaml")


@pytest.mark.parametrize(
    ("tasks", "why"),
    [
        (["word_problems", "passkey_short"], "a watch takes one task, not 2"),
        (["word_problems_perplexity"], r"scores .* have no lower or no upper limit"),
    ],
)
def test_what_cannot_be_watched_says_why(tasks: list[str], why: str) -> None:
    with pytest.raises(PlanError, match=why):
        of_plan(_plan(tasks=tasks))


def test_answers_that_need_a_judge_cannot_be_watched_and_others_can(tmp_path: Path) -> None:
    assert len(of_plan(_plan(cases=[_cases(tmp_path, "exact")])).samples) == 1
    with pytest.raises(PlanError, match="its answers are executed or need a judge"):
        of_plan(_plan(cases=[_cases(tmp_path, JUDGED)]))


@pytest.mark.parametrize(("limit", "count"), [(None, PROMPTS), (7, 7)])
def test_a_pool_has_the_limit_of_its_plan(limit: int | None, count: int) -> None:
    more = {} if limit is None else {"limit": limit}
    pool = of_plan(_plan(tasks=["word_problems"], **more))
    assert len(pool.samples) == len(pool.prompt_tokens()) == count
