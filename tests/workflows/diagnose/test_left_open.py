"""Missing answers that leave a verdict open are its cause, whatever the others look like."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, Report, Spec, VerdictOutcome
from serve_eval.workflows.diagnose.causes import find_leads
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.references.register import register
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, fail

PROMPTS = 100


def _run(out: Path, references: Path | None = None, *, lost: int, tokens: int = 20) -> Report:
    """Ask a server that refuses some prompts; it answers the others with so many tokens."""
    numbers: dict[str, int] = {}

    def reply(request: HttpRequest) -> Reply:
        number = numbers.setdefault(request.prompt, len(numbers))
        if lost and request.prompt.startswith("Question:") and number % (PROMPTS // lost) == 1:
            return fail(500, "boom")
        return answer("so it is #### 7", usage=(9, min(tokens, request.body["max_tokens"])))

    async def ask() -> Report:
        async with ScriptedServer(reply, paths=["/v1/completions"]).serve() as url:
            plan = Plan(
                model="m",
                launcher=Spec(name="external", options={"base_url": url}),
                tasks=(Spec(name="word_problems", options={"num_samples": PROMPTS}),),
                limits=Limits(max_attempts=1),
                no_reference=references is None,
                references_dir=None if references is None else str(references),
            )
            return await evaluate(plan, out, environ={})

    return asyncio.run(ask())


@pytest.mark.parametrize("lost", [10, 0])
def test_the_cause_of_an_open_verdict_is_the_lost_answers(lost: int, tmp_path: Path) -> None:
    _run(tmp_path / "sound", lost=0)
    register([tmp_path / "sound"], tmp_path / "references")
    report = _run(tmp_path / "out", tmp_path / "references", lost=lost, tokens=12)
    causes = find_leads(read_folder(tmp_path / "out")).causes
    if not lost:
        assert (report.tasks[0].verdict.outcome, causes) == (VerdictOutcome.PASS, {})
        return
    assert report.tasks[0].verdict.outcome is VerdictOutcome.INCONCLUSIVE
    assert report.tasks[0].verdict.reasons[0].startswith("too_many_missing")
    assert "missing answers failed with http_error 500" in causes["word_problems"]
