"""Test what a report says about launched servers: sizes, configs, and the limits of one token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.report.document import make_page
from serve_eval.report.page.writer import render_page
from serve_eval.report.run.document import make_run_document
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.invariants.check import check


@pytest.mark.slow
def test_a_pair_of_unequal_sizes_that_is_only_asked_for_letters(
    plan_of: Callable[..., Plan], standin: Callable[..., None], tmp_path: Path
) -> None:
    standin("v12")
    options = {"gpus": [0, 1, 2], "context_servers": {"tp": 2}, "discovery": True}
    plan = replace(plan_of("trtllm_disaggregated", options, limit=4), tasks=(Spec(name="mmlu"),))
    lines: list[str] = []
    report = asyncio.run(evaluate(plan, tmp_path / "out", notify=lines.append))
    known = report.endpoint.info.deployment
    assert known is not None
    assert known.front_door is not None
    assert [(one.name, one.role, one.parallelism) for one in known.workers] == [
        ("context_0", "context", {"tp": 2}),
        ("generation_0", "generation", {"tp": 1}),
    ]
    assert {one.version for one in known.workers} == {known.front_door.version}
    assert all(
        (one.config or {})["cache_transceiver_config"]["backend"] == "UCX" for one in known.workers
    )
    assert known.cluster_before == known.cluster_after
    assert any(line.startswith("warning: asymmetric parallelism") for line in lines)
    assert [line.split(":")[0] for line in report.warnings if "parallelism" in line] == [
        "asymmetric parallelism"
    ]
    assert any("the generation servers are not tested" in line for line in report.warnings)
    page = render_page(make_page(make_run_document(report, tmp_path / "out")))
    assert "<dt>context servers</dt><dd>1: version" in page
    assert "6507" in page


@pytest.mark.slow
def test_texts_are_placed_around_the_chunks_that_a_config_asks_for(
    plan_of: Callable[..., Plan], standin: Callable[..., None], tmp_path: Path
) -> None:
    standin("v12", STANDIN_SKILLS="1")
    config = {"max_num_tokens": 1024, "enable_chunked_prefill": True}
    plan = plan_of("trtllm", {"gpus": [0], "config": config}, limit=12, concurrency=8)
    found = asyncio.run(check(plan, tmp_path / "out", chunk_tokens=(2048,)))
    rows = {one.arm: one for one in found.results}
    assert {"chunked_1024", "chunked_2048"} < set(rows)
    assert not any(one.broken for one in found.results)
    chunked = rows["chunked_1024"]
    assert (chunked.changed.prompts, chunked.changed.own, chunked.changed.other) == (12, 0, 0)
    value = json.loads((tmp_path / "out/chunked_1024/report.json").read_text())["tasks"][0][
        "result"
    ]["value"]
    assert value == 100.0
