"""Test the task of docs/adding-a-task.md, extracted from the page."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import serve_eval.tasks
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.plugins import registry
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Outcome, Plan, Report, Response, Sample, Spec

PAGE = (Path(__file__).resolve().parents[1] / "docs/adding-a-task.md").read_text()
SPEC = Spec(name="capitals", options={"num_samples": 40})


def _block(kind: str) -> str:
    [text] = re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(text)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with the page's task, its data and its reference.

    The task exists for the length of a test.
    """
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks/capitals.py").write_text(_block("python"))
    monkeypatch.setattr(
        serve_eval.tasks, "__path__", [*serve_eval.tasks.__path__, str(tmp_path / "tasks")]
    )
    row = _block("json").strip()
    assert json.loads(row)["capital"] == "Town 1"
    (tmp_path / "capitals").mkdir()
    (tmp_path / "capitals/test.jsonl").write_text(
        "".join(row.replace("1", str(i)) + "\n" for i in range(40))
    )
    (tmp_path / "refs").mkdir()
    (tmp_path / "refs/capitals.yaml").write_text(_block("yaml"))
    yield tmp_path
    sys.modules.pop("serve_eval.tasks.capitals", None)
    if hasattr(serve_eval.tasks, "capitals"):
        del serve_eval.tasks.capitals


def _run(root: Path, accuracy: float) -> Report:
    plan = Plan(
        model="my-org/my-model",
        launcher=Spec(name="simulated", options={"accuracy": accuracy, "strict_fields": True}),
        tasks=(SPEC,),
        dataset_roots=(str(root),),
        references_dir=str(root / "refs"),
    )
    return asyncio.run(evaluate(plan, root / f"out-{accuracy}", environ={}))


def test_it_is_listed_asked_scored_and_judged(root: Path) -> None:
    assert "capitals" in registry.names("serve_eval.tasks")
    assert (
        registry.summary("serve_eval.tasks", "capitals")
        == "Capitals: the name of a country's capital city, as an example of a task."
    )
    good, bad = _run(root, 1.0), _run(root, 0.0)
    assert [(t.result.value, t.verdict.outcome.value, t.verdict.reference) for t in good.tasks] == [
        (100.0, "PASS", 90.0)
    ]
    assert [(t.result.value, t.verdict.outcome.value) for t in bad.tasks] == [(0.0, "FAIL")]


def test_its_scorer_reads_what_it_says(root: Path) -> None:
    task = build_task(SPEC)
    sample: Sample = task.load(DataRoots(roots=(root,)), 40).samples[1]
    assert (sample.prompt, sample.target) == ("The capital of Land 1 is", "Town 1")
    outcomes = [
        task.score(sample, Response(text=t, finish_reason="stop")).outcome
        for t in (" town 1.", "Town 2", ".")
    ]
    assert outcomes == [Outcome.CORRECT, Outcome.WRONG, Outcome.UNPARSED]
