"""Name what leads to the cause of a red result: in a few words for its line, in rows below it."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.workflows.diagnose import setting, unanswered
from serve_eval.workflows.diagnose.finding import Finding, list_leading
from serve_eval.workflows.diagnose.judged import list_outcomes
from serve_eval.workflows.diagnose.leads import Leads
from serve_eval.workflows.diagnose.read_folder import ReadFolder
from serve_eval.workflows.diagnose.slice_words import RULE
from serve_eval.workflows.diagnose.story import DiagnosedTask, diagnose_read


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
