"""Find the tasks of a run that can be asked although others cannot be prepared or judged."""

from __future__ import annotations

from dataclasses import replace

from serve_eval.errors import (
    DatasetError,
    NotComparableError,
    ReferenceFileError,
    SandboxError,
    ServeEvalError,
)
from serve_eval.evaluation.build_report import check_pairs
from serve_eval.evaluation.prepare import join_errors, prepare
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Plan, Spec

OF_ONE_TASK = (DatasetError, NotComparableError, ReferenceFileError, SandboxError)
"""Errors before the first request that concern single tasks of a plan."""


@with_scope
def split_plan(plan: Plan) -> tuple[Plan, ServeEvalError] | None:
    """Return the plan with the tasks that can be asked, and the error of the others.

    `plan` names its model. Return None if all tasks or no task can be asked, since then no single
    task is to blame.
    """
    extensions.include(plan.include_path)
    good, errors = list[Spec](), list[ServeEvalError]()
    for spec in plan.tasks:
        alone = replace(plan, tasks=(spec,))
        try:
            check_pairs(alone, prepare(alone))
        except OF_ONE_TASK as error:
            errors.append(error)
        except ServeEvalError:
            good.append(spec)  # an error of the whole plan, which its other tasks may mend
        else:
            good.append(spec)
    if not good or not errors:
        return None
    return replace(plan, tasks=tuple(good)), join_errors(errors)
