"""Name what leads to the cause of a red result: in a few words for its line, in rows below it."""

from __future__ import annotations

from serve_eval.workflows.diagnose.finding import list_leading
from serve_eval.workflows.diagnose.leads import Leads
from serve_eval.workflows.diagnose.read_folder import ReadFolder
from serve_eval.workflows.diagnose.slice_words import RULE
from serve_eval.workflows.diagnose.story import diagnose_read


def find_leads(answers: ReadFolder) -> Leads:
    """Return what leads to the cause of a run, or of B of a comparison.

    A cause is the first finding of `serve-eval diagnose` that leads and explains any lost answer.
    One about the whole run stands for the tasks without one.
    """
    found = diagnose_read(answers)
    judged = found.runs[-1]
    found_all = (*judged.findings, *found.between)
    findings = list_leading(found_all)
    causes: dict[str, str] = {}
    for task in judged.tasks:
        own = [one for one in findings if one.task == task.task]
        own += [one for one in findings if one.task is None]
        if own:
            causes[task.task] = own[0].brief
        elif task.accused:
            causes[task.task] = task.accused[0]
    slices = [one for one in findings if one.rule == RULE and not one.rather]
    places = [f"{one.task}: the loss lies in one slice: {one.told}" for one in slices]
    return Leads(causes, tuple(places))
