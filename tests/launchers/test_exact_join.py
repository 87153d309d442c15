"""Test which worker served which answer on a saturated deployment of 2 + 2 servers.

The join is exact on main and almost impossible by times.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serve_eval.evaluation.endpoint.launch import launch
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution.matching import METRICS, TIMES, TRACES
from serve_eval.launchers._standin.options import Flavour
from serve_eval.schema import Endpoint, Plan, Report

pytestmark = pytest.mark.slow

KEY = "sk-a-key-of-the-front-door"
N = 400
IN_FLIGHT = 64
OPTIONS = {
    "perf_metrics": True,
    "context_servers": {"num_instances": 2},
    "generation_servers": {"num_instances": 2},
    "ready_timeout_s": 60.0,
}


def run(
    plan: Plan, out: Path, seen: Callable[[Endpoint], Endpoint] = lambda one: one
) -> tuple[Report, Endpoint]:
    """Return the report of a run and its endpoint, which `seen` may change before the run."""

    async def story() -> tuple[Report, Endpoint]:
        async with launch(plan, prepare(plan), out.parent) as endpoint:
            known = seen(endpoint)
            return (
                await evaluate(
                    plan, out, environ=os.environ, launching=lambda *_: nullcontext(known)
                ),
                known,
            )

    return asyncio.run(story())


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "served.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_every_request_of_a_saturated_deployment_is_joined_on_main(
    standin: Callable[..., None],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    flavour: Flavour,
    stream: bool,
) -> None:
    standin(flavour)
    plan = plan_of("trtllm_disaggregated", OPTIONS, limit=N, concurrency=IN_FLIGHT, stream=stream)
    report, endpoint = run(plan, tmp_path / "run")
    assert report.tasks[0].result.scored == N
    told = report.tasks[0].attribution
    joined = 0 if told is None else told.joined
    print(f"{flavour}, {'streams' if stream else 'whole answers'}: {joined} of {N} joined")
    if flavour == "v12":
        assert told is None or told.how == TIMES
        return
    assert told is not None
    assert (told.how, told.joined) == (METRICS, N)
    servers = endpoint.info.servers
    assert isinstance(servers, Mapping)
    by_name = {url.removeprefix("http://"): name for name, url in servers.items()}
    found = lines(tmp_path / "run")
    assert Counter(by_name[one["context"]] for one in found) == {
        "context_0": N / 2,
        "context_1": N / 2,
    }
    assert {by_name[one["generation"]] for one in found} == {"generation_0", "generation_1"}
    assert all(one["kv_transfer_s"] > 0 for one in found)
    assert not any("perf metrics" in line for line in report.warnings)


def test_traces_join_what_the_answers_do_not_tell_and_hold_no_key(
    standin: Callable[..., None],
    plan_of: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only the orchestrator's traces are used; the file is private."""
    standin("main")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    silent = {**OPTIONS, "orchestrator": {"return_perf_metrics": False}}
    report, endpoint = run(
        plan_of("trtllm_disaggregated", silent, limit=40, concurrency=16), tmp_path / "run"
    )
    told = report.tasks[0].attribution
    assert told is not None
    assert (told.how, told.joined) == (TRACES, 40)
    folder = Path(endpoint.info.log_dir) / "request_traces"  # type: ignore[arg-type]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.rglob("*.jsonl"))
    assert {path.name.partition("-")[0] for path in files} == {"requests", "responses"}
    texts = [path.read_text() for path in files]
    assert not any(KEY in text for text in texts)
    assert sum(text.count(f"Bearer {'*' * len(KEY)}") for text in texts) >= 40


def test_a_run_that_goes_on_joins_what_the_killed_session_left(
    standin: Callable[..., None], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    standin("main")
    plan = plan_of("trtllm_disaggregated", OPTIONS, limit=20, concurrency=16)
    run(plan, tmp_path / "run")
    # A killed session leaves no such file; it is written later.
    (tmp_path / "run/served.jsonl").unlink()
    report, _ = run(replace(plan, repeats=2), tmp_path / "run")
    told = report.tasks[0].attribution
    assert told is not None
    assert (told.how, told.joined, told.planned) == (METRICS, 40, 40)


def test_a_request_that_was_tried_again_is_joined_by_its_last_attempt(
    standin: Callable[..., None], plan_of: Callable[..., Plan], tmp_path: Path
) -> None:
    """A worker refuses its first requests, and some streams break."""
    faults = [
        {"refuse_first": 5, "when": {"gpus": "2"}},
        {"drop_stream": 2, "share": 0.3, "when": {"gpus": "3"}},
    ]
    standin("main", faults)
    options = {**OPTIONS, "gpus": [0, 1, 2, 3]}
    plan = plan_of("trtllm_disaggregated", options, limit=60, concurrency=16, stream=True)
    report, _ = run(plan, tmp_path / "run")
    told, result = report.tasks[0].attribution, report.tasks[0].result
    assert told is not None
    assert result.scored == told.joined == 60
    assert sum(len(one["attempts"]) > 1 for one in _results(tmp_path / "run")) >= 5


def _results(out: Path) -> list[dict[str, Any]]:
    text = (out / "samples/gsm8k.jsonl").read_text()
    return [json.loads(line)["response"] for line in text.splitlines() if '"response":{' in line]
