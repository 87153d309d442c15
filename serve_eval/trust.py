"""The plan of a folder that may be somebody else's: code that it names runs only when the user names it too."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from serve_eval import folders, origins
from serve_eval.errors import PlanError
from serve_eval.schema import Plan


def trusted(saved: Plan, include_path: Sequence[str]) -> Plan:
    """The saved plan with the folders of code that are named now in the place of its own, which are not looked into.

    Raises PlanError for a task, launcher or verdict rule that is not found then, naming the folders that the plan has.
    """
    origins.include(include_path)
    wanted = [("serve_eval.tasks", task) for task in saved.tasks]
    wanted += [("launchers", saved.launcher), ("serve_eval.verdicts", saved.verdict)]
    unknown = [
        f"{folders.kind_of(folder)} {spec.name!r}"
        for folder, spec in wanted
        if spec.name.partition(":")[0] not in folders.names(folder)
        # Which of lm-eval's tasks a folder has is not known without looking into it.
        or (spec.name.startswith(f"{origins.LM_EVAL}:") and not include_path)
    ]
    if unknown and saved.include_path:
        flags = " ".join(f"--include-path {shlex.quote(path)}" for path in saved.include_path)
        raise PlanError(
            f"the saved plan takes its {', '.join(unknown)} from {', '.join(saved.include_path)}, whose code runs only "
            "when it is named anew",
            hint=f"If you trust it: {flags}",
        )
    return replace(saved, include_path=tuple(include_path))
