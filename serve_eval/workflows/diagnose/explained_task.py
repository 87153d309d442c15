"""Join an outcome with the findings that explain it, and with the commands that look further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serve_eval.workflows.diagnose.advice import list_commands
from serve_eval.workflows.diagnose.causes import list_causes
from serve_eval.workflows.diagnose.finding import Finding, order_findings
from serve_eval.workflows.diagnose.outcomes import FolderOutcome
from serve_eval.workflows.diagnose.story import DiagnosedRun, DiagnosedTask, Diagnosis
from serve_eval.workflows.diagnose.unfinished import RULE as UNFINISHED

_CAPSULE = " --capsule "
"""Part of the commands of findings that the one of an example stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedTask:
    """An outcome and what the diagnosis found about it.

    `causes` are the findings that may be its cause, the likeliest first, and `others` the other
    ones. `ended` says how the run ended if it did not finish. `a` is side A of a comparison, with
    the same task there.
    """

    judged: FolderOutcome
    run: DiagnosedRun | None = None
    task: DiagnosedTask | None = None
    a: tuple[DiagnosedRun, DiagnosedTask | None] | None = None
    ended: Finding | None = None
    causes: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()

    @property
    def passed(self) -> bool:
        """True if there is nothing to explain."""
        return self.judged.outcome == "PASS"

    def list_commands(self) -> Iterator[str]:
        """Yield commands that run as they stand: those of the likeliest cause, then an example."""
        if self.passed:
            return
        found = [*([self.ended] if self.ended else []), *(self.causes or self.others)]
        advice = [one for finding in found for one in finding.change]
        yield from (one for one in list_commands(advice) if _CAPSULE not in one)
        for task in (self.task, None if self.a is None else self.a[1]):
            if task is not None and task.breakdown is not None:
                yield from list_commands(task.breakdown.next)


def explain(judged: FolderOutcome, found: Diagnosis) -> ExplainedTask:
    """Return an outcome with the findings about it, and about its run as a whole."""
    run = next((one for one in found.runs if one.label == judged.run), None)
    if run is None:
        return ExplainedTask(judged=judged)
    task = _find_task(run, judged.task)
    a = None
    if found.compared:
        a = (found.runs[0], _find_task(found.runs[0], judged.task))
    own = [
        one
        for one in (*run.findings, *found.between)
        if one.task in (None, judged.task) or not judged.task
    ]
    ended = next((one for one in own if one.rule == UNFINISHED and judged.task), None)
    of_answers = [one for one in own if one.rule != UNFINISHED]
    causes = () if task is None else tuple(list_causes(of_answers, task, judged.left_open))
    others = [one for one in own if one is not ended and one not in causes]
    return ExplainedTask(
        judged=judged,
        run=run,
        task=task,
        a=a,
        ended=ended,
        causes=causes,
        others=tuple(order_findings(others) if found.compared else others),
    )


def _find_task(run: DiagnosedRun, name: str) -> DiagnosedTask | None:
    return next((one for one in run.tasks if one.task == name), None)
