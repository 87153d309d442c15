"""Test attribution with the response headers and files of main's orchestrator."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution import trace_files
from serve_eval.evidence.attribution import trace_files as perf_files
from serve_eval.evidence.attribution.clock_offset import record
from serve_eval.evidence.attribution.matching import METRICS
from serve_eval.launchers._standin import metrics
from serve_eval.launchers._standin.options import Flavour
from serve_eval.plugins import registry
from serve_eval.schema import Attempt, Limits, Plan, Report, Spec
from serve_eval.storage.journal import Journal
from tests.standin.deployments import Deployed, deployed

N = 60


@pytest.fixture(scope="module")
def plan(data_root: Path) -> Plan:
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=32),
    )


def run(
    plan: Plan,
    folder: Path,
    options: Mapping[str, Any],
    *,
    flavour: Flavour = "main",
    contexts: int = 2,
    **more: Any,
) -> tuple[Report, Deployed]:
    """Return the report of a run against a deployment that somebody else started."""

    async def story() -> tuple[Report, Deployed]:
        async with deployed(
            contexts,
            2,
            flavour=flavour,
            metrics_dir=folder / "metrics",
            greeted=False,
            **more,
        ) as there:
            spec = Spec(name="external", options={"base_url": there.url, **options})
            return (
                await evaluate(replace(plan, launcher=spec), folder / "run", environ=os.environ),
                there,
            )

    return asyncio.run(story())


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run/served.jsonl").read_text().splitlines()]


def warned(report: Report) -> list[str]:
    return [line for line in report.warnings if "perf metrics" in line]


@pytest.mark.parametrize("stream", [False, True])
def test_a_corrupt_server_of_a_running_orchestrator_is_named(
    plan: Plan, tmp_path: Path, stream: bool
) -> None:
    answers = tmp_path / "answers.jsonl"
    _write_answers(answers, prepare(plan), lambda task, sample: 1.0)
    asked = replace(plan, limits=Limits(concurrency=32, stream=stream))
    options = {"perf_metrics_dir": str(tmp_path / "metrics")}
    faults = {"generation_1": {"corrupt_after": 0}}
    # With as many servers of each kind, turns may form pairs, which no answers tell apart.
    report, there = run(asked, tmp_path, options, contexts=3, answers=answers, faults=faults)
    told = report.tasks[0].attribution
    assert told is not None
    assert (told.how, told.joined) == (METRICS, N)
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.bad, row.others_bad) == (there.host("generation_1"), row.answers, 0)
    assert not warned(report)


def test_without_the_options_nothing_is_asked_for_and_nothing_said(
    plan: Plan, tmp_path: Path
) -> None:
    report, _ = run(replace(plan, limit=5), tmp_path, {})
    assert not warned(report)
    assert not (tmp_path / "run/served.jsonl").exists()
    assert b'"timing"' not in (tmp_path / "run/samples/gsm8k.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("options", "front", "said"),
    [
        ({"perf_metrics": True}, {}, "set launcher.perf_metrics_dir"),
        ({"perf_metrics": True}, {"return_perf_metrics": False}, "needs return_perf_metrics: true"),
        ({"perf_metrics_dir": "elsewhere"}, {}, "as seen from this machine"),
        (
            {"perf_metrics_dir": "elsewhere"},
            {"return_perf_metrics": False},
            "nothing was written to",
        ),
        ({"perf_metrics_dir": "metrics"}, {"return_perf_metrics": False}, "requests in"),
    ],
)
def test_that_nothing_is_known_is_said(
    plan: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    front: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setattr(trace_files, "WAIT_S", 0.3)
    given = {
        key: str(tmp_path / value) if isinstance(value, str) else value
        for key, value in options.items()
    }
    report, _ = run(replace(plan, limit=5), tmp_path, given, front=front)
    [line] = warned(report)
    assert said in line
    assert "the servers of none of 5 answers are known" in line
    assert not (tmp_path / "run/served.jsonl").exists()


@pytest.mark.slow
def test_what_the_1_2_line_tells_at_its_route_counts_as_known(plan: Plan, tmp_path: Path) -> None:
    one_by_one = replace(plan, limit=30, limits=Limits(concurrency=1))
    pace = {f"generation_{i}": {"latency_s": 0.01 * (i + 1)} for i in (0, 1)}
    report, _ = run(one_by_one, tmp_path, {"perf_metrics": True}, flavour="v12", faults=pace)
    told = report.tasks[0].attribution
    assert told is not None
    assert told.joined > 0
    assert not warned(report)


def test_lines_that_come_after_the_answers_are_waited_for(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = metrics.Lines._append

    def late(*given: Any) -> None:
        time.sleep(0.4)
        append(*given)

    monkeypatch.setattr(metrics.Lines, "_append", late)
    report, _ = run(
        replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")}
    )
    told = report.tasks[0].attribution
    assert told is not None
    assert told.joined == 5


def test_files_that_cannot_be_read_never_cost_a_run(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_files, "WAIT_S", 0.3)
    (odd := tmp_path / "odd").mkdir()
    (odd / "perf_metrics-1.jsonl").write_text('{"ctx_server": "a:1"}\n{"ctx_server": 7}\n\x00\n')
    (odd / "requests-1.jsonl").write_text("not json\n")
    options = {"perf_metrics_dir": str(odd), "request_trace_dir": str(odd)}
    report, _ = run(replace(plan, limit=5), tmp_path, options)
    assert report.tasks[0].result.scored == 5
    assert len(warned(report)) == 1


def test_what_is_joined_is_not_added_again(plan: Plan, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")})
    with Journal(out / "samples/gsm8k.jsonl") as journal:
        assert len(list(trace_files._list_unjoined({"gsm8k": journal}, tmp_path))) == 5
        assert not list(trace_files._list_unjoined({"gsm8k": journal}, out))


@pytest.mark.parametrize(
    ("start_s", "answered", "choices", "said"),
    [
        (2.0, True, None, True),
        (0.5, True, None, False),
        (2.0, False, None, False),
        (2.0, True, [], False),
    ],
)
def test_only_plain_answers_of_this_session_can_be_unknown(
    start_s: float, answered: bool, choices: list[object] | None, said: bool, tmp_path: Path
) -> None:
    attempt = Attempt(start_s=start_s, end_s=3.0, failure=None, status=200, request_id="r")
    result = SimpleNamespace(attempts=[attempt], choice_logprobs=choices)
    kept = SimpleNamespace(
        id="1", response=result if answered else None, failure=None if answered else result
    )
    journals: Any = {"t": SimpleNamespace(records=lambda part: [kept])}
    nothing = trace_files._Found({}, [], {})
    told = trace_files._why_none(
        trace_files.Folders(None, None), nothing, journals, tmp_path, began=1.0
    )
    assert (told is not None) == said


def test_an_option_that_is_no_folder_is_refused() -> None:
    start = registry.load("serve_eval.launchers", "external")
    with pytest.raises(PlanError, match="perf_metrics_dir"):
        registry.check_options(
            start, {"base_url": "http://h/v1", "perf_metrics_dir": 7}, "launcher.external"
        )


def test_a_key_that_files_tell_is_not_written_down(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The orchestrator, which has the key, chooses the names of servers."""
    key = "sk-of-the-front-door"
    named = {"gen_server": f"{key}:1"}
    monkeypatch.setattr(
        perf_files, "record", lambda told, *times: record({**told, **named}, *times)
    )
    monkeypatch.setenv("OPENAI_API_KEY", key)
    report, _ = run(
        replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")}
    )
    assert [one["generation"] for one in lines(tmp_path)] == ["***:1"] * 5
    assert key not in str(report)
