"""Test launchers with the stand-in: start, evaluate, judge and stop, in both generations.

Launchers and stand-in were written independently from the same facts about trtllm-serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan, Report, Spec, VerdictOutcome
from tests.standin.answers import write_answers

MODEL = "my-org/my-model"
TWICE = {"context_servers": {"num_instances": 2}, "generation_servers": {"num_instances": 2}}
CASES = [
    pytest.param("v12", "trtllm", {}),
    pytest.param("main", "trtllm", {}),
    pytest.param("v12", "trtllm_disaggregated", {}),
    pytest.param("main", "trtllm_disaggregated", {}),
    pytest.param("v12", "container", {"trtllm": {}}),
    pytest.param(
        "main",
        "container",
        {"trtllm_disaggregated": {"discovery": True, **TWICE}},
        marks=pytest.mark.slow,
    ),
    *(
        pytest.param(
            flavour,
            "trtllm_disaggregated",
            {"discovery": discovery, **many},
            marks=pytest.mark.slow,
        )
        for flavour in ("v12", "main")
        for discovery in (False, True)
        for many in ({}, TWICE)
    ),
]


@pytest.mark.parametrize(("flavour", "launcher", "options"), CASES)
def test_an_evaluation_of_servers_that_were_started_for_it(
    data_root: Path,
    tmp_path: Path,
    standin: Callable[..., None],
    request: pytest.FixtureRequest,
    flavour: str,
    launcher: str,
    options: dict[str, object],
) -> None:
    if launcher == "container":
        request.getfixturevalue("engine")
        options = {
            "image": "image:1",
            "pass_env": ["STANDIN_FLAVOUR", "STANDIN_ANSWERS"],
            **options,
        }
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/gsm8k.yaml").write_text(f"{MODEL}: [{{accuracy: 75}}]\n")
    plan = Plan(
        model=MODEL,
        launcher=Spec(name=launcher, options=options),
        tasks=(Spec(name="gsm8k", options={"num_samples": 80}),),
        dataset_roots=(str(data_root),),
        references_dir=str(tmp_path / "refs"),
    )
    answers = write_answers(plan, tmp_path / "answers.jsonl")
    standin(flavour, STANDIN_ANSWERS=str(answers))
    report: Report = asyncio.run(evaluate(plan, tmp_path / "out"))
    (task,) = report.tasks
    assert (task.result.scored, task.result.value, task.verdict.outcome) == (
        80,
        75.0,
        VerdictOutcome.PASS,
    )
