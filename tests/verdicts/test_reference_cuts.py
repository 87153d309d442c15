"""The cut answers of all runs of a reference bound its value, as those of a run bound its own."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import msgspec
import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.report.summary import SummaryTask
from serve_eval.report.summary.rows import describe_cuts
from serve_eval.schema import Limits, Plan, Spec, TaskReport
from serve_eval.verdicts.cut_answers import CUT
from serve_eval.workflows.references.register import register

N = 60


def _run(folder: Path, references: Path | None = None, *, repeats: int = 1) -> TaskReport:
    """Ask the embedded model, which needs more than 30 tokens for many problems."""

    async def ask() -> TaskReport:
        async with serve_app(create_app(WEIGHTS, {"m": "none"})) as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(Spec(name="word_problems", options={"num_samples": N, "max_tokens": 30}),),
                limits=Limits(concurrency=32),
                repeats=repeats,
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            report = await evaluate(plan, folder, environ={})
            return report.tasks[0]

    return asyncio.run(ask())


def _find_row(task: TaskReport) -> str:
    [(_, told)] = describe_cuts(SummaryTask(result=task.result, verdict=task.verdict))
    return told


@pytest.mark.parametrize("runs", [1, 3])
def test_equal_answers_have_equal_bounds_for_any_number_of_runs(runs: int, tmp_path: Path) -> None:
    """Fails if only the first run's cut answers count as right: the bound shrinks with runs."""
    _run(tmp_path / "run", repeats=runs)
    register([tmp_path / "run"], tmp_path / "references")
    task = _run(tmp_path / "again", tmp_path / "references")
    effect = task.verdict.cut
    assert effect is not None
    assert effect.cut > 5
    assert (effect.reference_cut, effect.reference_answers) == (runs * effect.cut, runs * N)
    assert effect.reference_value == pytest.approx(effect.value)
    assert f"reference: {runs * effect.cut} of {runs * N} cut, " in _find_row(task)
    [warning] = [line for line in task.verdict.warnings if line.startswith(CUT)]
    whose = "the reference's 3 runs" if runs == 3 else "the reference were"
    assert "this PASS could be FAIL" in warning
    assert whose in warning

    if runs == 3:
        _forget_cuts(tmp_path / "references")
        task = _run(tmp_path / "old", tmp_path / "references")
        assert task.verdict.cut is not None
        assert task.verdict.cut.reference_value is None
        assert f"reference: {effect.cut} of {N} cut in its first run, the others" in _find_row(task)
        assert not any(line.startswith(CUT) for line in task.verdict.warnings)


def _forget_cuts(references: Path) -> None:
    """Make the files of a reference those of a version that kept the first run's cuts alone."""
    [samples] = (references / "samples").iterdir()
    content = msgspec.json.decode(samples.read_bytes())
    del content["answers"]["cut_by_run"]
    old = samples.read_bytes()
    samples.write_bytes(msgspec.json.encode(content))
    [entry] = references.glob("*.yaml")
    digests = [hashlib.sha256(data).hexdigest() for data in (old, samples.read_bytes())]
    assert digests[0] in entry.read_text()
    entry.write_text(entry.read_text().replace(*digests))
