"""Refuse tasks that no reference may judge, with what to do about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import NotComparableError, PlanError, ReferenceFileError
from serve_eval.plan.applicable_reference import SEED
from serve_eval.plan.command_line import HOW_TO_TAKE, write_take_command
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Plan, Reference
from serve_eval.verdicts.references import find

_NO_ROW_HINT = (
    "Give the --model and the specification of a registered row, or pass your own rows with"
    " --references-dir."
)
_NO_VERDICT_HINT = (
    " To print the value without a verdict: --set allow_missing_reference=true, or for all tasks"
    f" --no-reference. {HOW_TO_TAKE}:"
)


OTHER_PROTOCOL = "another protocol"
"""Reason for replacing an entry of the same model that did not apply."""


class LackingReference(NamedTuple):
    """A task that no reference may judge, and why.

    `spec` is its name in the plan, and `refused` names the fields of the protocol that are the
    reason. `hint` says what else mends them. `replaced`: a new reference would replace one in the
    folder of the plan.
    """

    spec: str
    task: str
    why: str
    refused: tuple[str, ...] = ()
    hint: str = ""
    replaced: bool = False


def may_lack(plan: Plan) -> bool:
    """Return True if a task may be asked without a reference."""
    return plan.no_reference or plan.allow_missing_reference or plan.integration_test


def is_replaced(plan: Plan, reference: Reference) -> bool:
    """Return True if a reference that is taken for this plan would replace this one."""
    folder = plan.references_dir
    return folder is not None and Path(reference.file).parent == Path(folder)


def write_taking(plan: Plan, tasks: Collection[str]) -> str:
    """Return the command that takes references for tasks, with a reason if it replaces entries."""
    replaced = any(_list_taken(plan, tasks))
    return write_take_command(plan, tasks, reason=OTHER_PROTOCOL if replaced else None)


def _list_taken(plan: Plan, tasks: Collection[str]) -> Iterator[bool]:
    """Yield for each task whether the folder of the plan has an entry of its model."""
    model = plan.reference_model or plan.model
    if plan.references_dir is None or model is None:
        return
    for spec in plan.tasks:
        if spec.name in tasks:
            try:
                file = build_task(spec, spec.name).reference_file
                found = find(file, model, plan.accuracy_spec, [Path(plan.references_dir)])
            except (PlanError, ReferenceFileError):
                continue  # The command itself says so.
            yield found is not None


def find_lacking(plan: Plan, lacking: Sequence[LackingReference]) -> list[NotComparableError]:
    """Return an error for the tasks without a reference that applies, unless they may lack one."""
    if not lacking or may_lack(plan):
        return []
    refused = list(dict.fromkeys(name for one in lacking for name in one.refused))
    hints = [*dict.fromkeys(one.hint for one in lacking if one.hint)]
    hints += [_explain_mismatch(refused)] if refused else []
    hints += [_NO_ROW_HINT] if any(not one.refused for one in lacking) else []
    other = dict.fromkeys(name for one in lacking if one.replaced for name in one.refused)
    reason = f"other {', '.join(other)}" if other else None
    take = write_take_command(plan, [one.spec for one in lacking], reason=reason)
    return [
        NotComparableError(
            "\n".join(f"{one.task}: {one.why}" for one in lacking),
            hint=f"{' '.join(hints)}{_NO_VERDICT_HINT}\n  {take}",
        )
    ]


def _explain_mismatch(fields: Sequence[str]) -> str:
    """Return how to compare although these fields of the protocol differ."""
    flags = " ".join(f"--allow-mismatch {name}" for name in fields)
    seed = (
        " A seed is a draw, not a protocol: a reference that is taken without one judges runs of"
        " any seed."
    )
    return (
        f"To compare anyway: {flags}, or in a plan: allow_mismatch: [{', '.join(fields)}]."
        f"{seed if SEED in fields else ''}"
    )
