"""Write a suite in the form of a suite file, with every plan of its matrix spelled out."""

from __future__ import annotations

from typing import Any

from serve_eval.plan.plan_file import to_file
from serve_eval.schema import Suite
from serve_eval.workflows.suite.matrix import TASK_LABEL


def suite_to_file(suite: Suite) -> dict[str, Any]:
    """Return the suite in the form of a suite file, which `file.read` reads back.

    It leaves out what `to_file` leaves out of each plan.
    """
    content: dict[str, Any] = {
        "name": suite.name,
        "plans": [
            {
                "name": run.name,
                **to_file(run.plan),
                **({"attributes": dict(run.attributes)} if run.attributes else {}),
                **({TASK_LABEL: run.task_label} if run.task_label else {}),
            }
            for run in suite.runs
        ],
        "max_runs": len(suite.runs),
    }
    if suite.waivers:
        content["waivers"] = [
            {"match": one.match, "reason": one.reason, "until": one.until} for one in suite.waivers
        ]
    return content
