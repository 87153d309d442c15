"""Name what leads to the cause of a red result: in a few words for its line, in rows below it."""

from __future__ import annotations

from serve_eval.evaluation.storage.story_files import COMPARE
from serve_eval.schema import Comparison
from serve_eval.stats.judgement import Reason
from serve_eval.workflows.diagnose import setting, unanswered
from serve_eval.workflows.diagnose.finding import Finding, list_leading
from serve_eval.workflows.diagnose.leads import Leads
from serve_eval.workflows.diagnose.read_folder import ReadFolder
from serve_eval.workflows.diagnose.slice_words import RULE
from serve_eval.workflows.diagnose.story import diagnose_read

_MISSING = (Reason.TOO_MANY_MISSING.value, Reason.MISSING_RESULTS.value)
"""Beginnings of the reasons of verdicts that missing answers leave open."""


def find_leads(answers: ReadFolder) -> Leads:
    """Return what leads to the cause of a run, or of B of a comparison.

    A cause is the first finding of `serve-eval diagnose` that leads and explains any lost answer.
    One about the whole run stands for the tasks without one. Where missing answers leave a verdict
    open, whatever else the answers have in common is not the cause of that: these come first.
    """
    found = diagnose_read(answers)
    judged = found.runs[-1]
    found_all = (*judged.findings, *found.between)
    findings = list_leading(found_all)
    causes: dict[str, str] = {}
    left_open = _list_left_open(answers)
    for task in judged.tasks:
        own = [one for one in findings if one.task == task.task]
        own += [one for one in findings if one.task is None]
        if task.task in left_open:
            own.sort(key=_rank_missing)
        if own:
            causes[task.task] = own[0].brief
        elif task.accused:
            causes[task.task] = task.accused[0]
    slices = [one for one in findings if one.rule == RULE and not one.rather]
    places = [f"{one.task}: the loss lies in one slice: {one.told}" for one in slices]
    return Leads(causes, tuple(places))


def _list_left_open(answers: ReadFolder) -> frozenset[str]:
    """Return the tasks whose verdicts missing answers leave open, or turn into errors."""
    if answers.compared:
        comparison = COMPARE.find(answers.folder, Comparison)
        verdicts = [] if comparison is None else [one.verdict for one in comparison.tasks]
    else:
        reports = [task.report for task in answers.runs[-1][1].tasks]
        verdicts = [one.verdict for one in reports if one is not None]
    return frozenset(
        one.task for one in verdicts if any(reason.startswith(_MISSING) for reason in one.reasons)
    )


def _rank_missing(finding: Finding) -> int:
    """Return the rank of a finding where missing answers are to blame: their cause comes first."""
    return 0 if finding.rule in unanswered.RULES else 1 if finding.rule == setting.MISSING else 2
