"""Refuse references that were taken with other sampling fields than the server adds to a run.

They are known only once the endpoint is probed, so that this is the one difference of a protocol
that is found after the tasks were prepared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from serve_eval.evaluation.capabilities.sampling import OtherSampling, compare_with_reference
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.plan.lacking_reference import LackingReference, find_lacking, is_replaced
from serve_eval.protocol.fingerprint import SERVER_ADDS


def refuse_other_sampling(session: RunSession) -> None:
    """Take the references away from the tasks that they may not judge.

    `--allow-mismatch server_adds` keeps them. Raises NotComparableError for all of them, unless the
    plan allows that a task has none.
    """
    other = list(_list_other(session))
    plan = session.plan
    if SERVER_ADDS in plan.allow_mismatch:
        for w, _ in other:
            w.prepared = replace(w.prepared, protocol=_allow(w.prepared.protocol or ""))
        return
    refused = [
        LackingReference(
            w.prepared.spec.name,
            w.prepared.task.name,
            f"the protocol differs from the reference's: {one.told}",
            (SERVER_ADDS,),
            one.hint,
            replaced=w.prepared.reference is not None and is_replaced(plan, w.prepared.reference),
        )
        for w, one in other
    ]
    for error in find_lacking(plan, refused):
        raise error
    for (w, _), lacking in zip(other, refused, strict=True):
        session.notify(f"warning: {lacking.task}: no verdict: {lacking.why}")
        w.prepared = replace(
            w.prepared, reference=None, why_no_reference=lacking.why, protocol=None
        )
        if w.early is not None:
            w.early, w.note = None, "no early stop: there is no reference"


def _list_other(session: RunSession) -> Iterator[tuple[TaskRun, OtherSampling]]:
    """Yield the tasks whose sampling differs from that of their reference."""
    found = session.noted.defaults()
    for w in session.tasks:
        reference = w.prepared.reference
        if reference is None:
            continue
        other = compare_with_reference(found, reference, w.prepared.task)
        if other is not None and other.differs:
            yield w, other


def _allow(protocol: str) -> str:
    """Return the text about a protocol with the mismatch that is allowed."""
    told = "mismatch allowed: "
    before, found, fields = protocol.partition(told)
    names = [*filter(None, fields.split(", ")), *([] if SERVER_ADDS in fields else [SERVER_ADDS])]
    start = before if found else f"{before}, " if before else ""
    return f"{start}{told}{', '.join(names)}"
