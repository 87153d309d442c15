"""Name the likeliest cause of a red result in a few words, for the line about it."""

from __future__ import annotations

from serve_eval.workflows.diagnose.read_folder import ReadFolder
from serve_eval.workflows.diagnose.story import diagnose_read, order_findings


def find_causes(answers: ReadFolder) -> dict[str, str]:
    """Return the likeliest cause by task of a run, or of B of a comparison.

    It is that of the first finding of `serve-eval diagnose` that leads. One about the whole run
    stands for the tasks without one.
    """
    found = diagnose_read(answers)
    judged = found.runs[-1]
    found_all = (*judged.findings, *found.between)
    findings = order_findings(one for one in found_all if one.leads)
    causes: dict[str, str] = {}
    for task in judged.tasks:
        own = [one for one in findings if one.task == task.task]
        own += [one for one in findings if one.task is None]
        if own:
            causes[task.task] = own[0].brief
        elif task.accused:
            causes[task.task] = task.accused[0]
    return causes
