"""Join a red result with its causes, and with the commands that look further."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.frozen import freeze
from serve_eval.workflows.diagnose import setting, unanswered
from serve_eval.workflows.diagnose.course import RULE as UNFINISHED
from serve_eval.workflows.diagnose.finding import Finding, list_leading, order_findings
from serve_eval.workflows.diagnose.judged import FolderOutcome, ReadFolder, list_outcomes
from serve_eval.workflows.diagnose.leads import Leads
from serve_eval.workflows.diagnose.slice_words import RULE
from serve_eval.workflows.diagnose.story import (
    DiagnosedRun,
    DiagnosedTask,
    Diagnosis,
    diagnose_read,
)


def find_leads(answers: ReadFolder) -> Leads:
    """Return what leads to the cause of a run, or of B of a comparison.

    A cause is the first finding of `serve-eval diagnose` that leads and explains any lost answer.
    One about the whole run stands for the tasks without one. Where missing answers leave a verdict
    open, whatever else the answers have in common is not the cause of that: these come first.
    """
    found = diagnose_read(answers)
    judged = found.runs[-1]
    left_open = {one.task for one in list_outcomes(answers).judged if one.left_open}
    causes: dict[str, str] = {}
    for task in judged.tasks:
        own = list_causes((*judged.findings, *found.between), task, task.task in left_open)
        if own:
            causes[task.task] = own[0].brief
        elif task.accused:
            causes[task.task] = task.accused[0]
    findings = list_leading((*judged.findings, *found.between))
    slices = [one for one in findings if one.rule == RULE and not one.rather]
    places = [f"{one.task}: the loss lies in one slice: {one.told}" for one in slices]
    return Leads(causes, tuple(places))


def list_causes(found: Sequence[Finding], task: DiagnosedTask, left_open: bool) -> list[Finding]:
    """Return the findings that may be the cause of the lost answers of a task, likeliest first.

    Those about the whole run come after its own. `left_open`: missing answers leave the verdict
    open, so that their cause comes first.
    """
    leading = list_leading(found)
    own = [one for one in leading if one.task == task.task]
    own += [one for one in leading if one.task is None]
    return sorted(own, key=_rank_missing) if left_open else own


def _rank_missing(finding: Finding) -> int:
    """Return the rank of a finding where missing answers are to blame: their cause comes first."""
    return 0 if finding.rule in unanswered.RULES else 1 if finding.rule == setting.MISSING else 2


STAND_INS = frozenset({"GOOD", "URL", "A", "B", "N", "DIR", "ID", "NAME"})
"""Words in advice that stand for what the user has to name."""


def is_command(advice: str) -> bool:
    """Return True for a whole command, without a word of advice or a name to replace."""
    try:
        words = shlex.split(advice)
    except ValueError:
        return False
    if words[:1] != ["serve-eval"]:
        return False
    return not any(word in STAND_INS or word.endswith((",", ":", ";")) for word in words)


def list_commands(advice: Iterable[str]) -> Iterator[str]:
    """Yield the commands among advice, in its order."""
    return (one for one in advice if is_command(one))


_CAPSULE = " --capsule "
"""Part of the commands of findings that the one of an example stands for."""


@freeze
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
