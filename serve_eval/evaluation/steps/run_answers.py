"""Run the code in answers, for tasks that are scored by running it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from serve_eval.evaluation.run_session import RunSession
from serve_eval.schema import Isolation
from serve_eval.storage.records.executions import permit

if TYPE_CHECKING:
    from serve_eval.sandbox.sandbox import Sandbox


async def find_sandbox(session: RunSession) -> tuple[Sandbox, Isolation] | None:
    """Return where answers will run, or None if none will.

    Raises SandboxError before anything is asked in vain.
    """
    names = [
        w.prepared.task.name
        for w in session.tasks
        if w.executions is not None and (w.unfinished or w.list_pending_programs())
    ]
    if not names:
        return None
    sandbox, isolation = await permit(names, allowed=session.plan.allow_code_execution)
    session.notify(
        f"{', '.join(names)}: code written by the model runs here, with {isolation.name} as user"
        f" {isolation.uid}"
    )
    return sandbox, isolation


async def run_answers(session: RunSession) -> None:
    """Run the answers that have not been run, in tasks that need it."""
    allowed = session.plan.allow_code_execution
    for w in session.tasks:
        if w.executions is not None and (programs := w.list_pending_programs()):
            session.sandbox = session.sandbox or await permit(
                [w.prepared.task.name], allowed=allowed
            )
            await w.executions.run(
                w.prepared.task.name, programs, *session.sandbox, session.progress
            )
