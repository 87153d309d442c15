"""Test a server that hangs during a run, and an orchestrator that retries without notice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from serve_eval.errors import EndpointError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Plan

ONE_AND_ONE = "trtllm_disaggregated"
SOON = {"stop_timeout_s": 0.5}
"""Short, because open requests keep a hung server from ending on its own."""
FAULT_AT = 26
"""The request that meets the fault: the questions about the server's sampling come first, then 20
samples."""


@pytest.mark.parametrize(
    ("flavour", "launcher", "where", "told"),
    [
        pytest.param(
            "v12",
            ONE_AND_ONE,
            {"gpus": "1"},
            ["generation_0 hangs", "context_0 answered", "orchestrator does"],
        ),
        *(
            pytest.param(flavour, launcher, where, told, marks=pytest.mark.slow)
            for flavour in ("v12", "main")
            for launcher, where, told in [
                (ONE_AND_ONE, {"gpus": "0"}, ["context_0 hangs", "generation_0 answered"]),
                (
                    ONE_AND_ONE,
                    {"command": "disaggregated"},
                    ["orchestrator hangs", "generation_0 answered"],
                ),
                ("trtllm", {}, ["trtllm hangs"]),
            ]
        ),
    ],
)
def test_a_server_that_hangs_ends_the_run_which_goes_on_later(
    flavour: str,
    launcher: str,
    where: dict[str, str],
    told: list[str],
    standin: Callable[..., None],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
) -> None:
    plan = plan_of(launcher, SOON, concurrency=4, stall_timeout_s=1.0)
    standin(flavour, {"hang_after": FAULT_AT, "when": where})
    with pytest.raises(EndpointError) as caught:
        asyncio.run(evaluate(plan, tmp_path / "run"))
    for words in [*told, "the log of", "Uvicorn running"]:
        assert words in str(caught.value)
    assert caught.value.exit_code == 4
    had = (tmp_path / "run/samples/gsm8k.jsonl").read_text().splitlines()
    assert 1 < len([line for line in had if '"response":' in line]) < 20
    lost = [line for line in had if '"failure":{' in line]
    assert all("the server ended while the request was in flight" in line for line in lost)
    standin(flavour)
    report = asyncio.run(evaluate(plan, tmp_path / "run"))
    assert (report.tasks[0].result.scored, report.tasks[0].traffic.retries) == (20, {})


@pytest.mark.parametrize(
    ("flavour", "options", "again"),
    [
        pytest.param("v12", {}, None, id="v12"),
        pytest.param("main", {}, None, id="main"),
        pytest.param("v12", {"orchestrator": {"max_retries": 1}}, 1, id="v12 told to"),
        pytest.param(
            "main", {"env": {"TRTLLM_DISAGG_NO_RETRY": None}}, 1, id="main without the variable"
        ),
    ],
)
@pytest.mark.slow
def test_what_an_orchestrator_asks_again_is_told(
    flavour: str,
    options: dict[str, Any],
    again: int | None,
    standin: Callable[..., None],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
) -> None:
    standin(flavour, {"lose": FAULT_AT, "when": {"gpus": "1"}})
    report = asyncio.run(evaluate(plan_of(ONE_AND_ONE, options), tmp_path / "run"))
    assert report.tasks[0].result.scored == 20
    assert report.endpoint.info.hidden_retries == {"context": 0, "generation": again or 0}
    found = [line for line in report.warnings if "retried requests to its servers" in line]
    assert len(found) == bool(again)
    assert sum(report.tasks[0].traffic.retries.values()) == (0 if again else 1)
    finished = asyncio.run(evaluate(plan_of(ONE_AND_ONE, options), tmp_path / "run"))
    assert finished.warnings[0].startswith("nothing was asked: ")
    assert finished.warnings[1:] == report.warnings
