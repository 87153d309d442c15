"""Ask some prompts again if the plan expects answers that repeat.

This comes after the counters of the engines were read, since a repeated prompt is a hit of the
prefix cache.
"""

from __future__ import annotations

from serve_eval.client.client import Client
from serve_eval.evaluation.ask_again import compare_again, may_compare
from serve_eval.evaluation.run_session import RunSession
from serve_eval.schema import PathClaim


async def ask_again(session: RunSession, client: Client) -> None:
    """Ask prompts again and note in the folder how many answers differ.

    Nothing is asked if the plan expects no such answers, or if the run repeats its prompts anyway.
    """
    if not wants_again(session):
        return
    session.notify("asking prompts again: the plan expects that answers repeat")
    limit = session.plan.limits.concurrency
    found = await compare_again(
        session.tasks,
        client,
        seed=session.seeds.samples,
        in_flight=limit if isinstance(limit, int) else None,
    )
    if found is not None:
        session.noted.note_repeated(found)


def wants_again(session: RunSession) -> bool:
    """Return True if prompts are to be asked again, and no session did."""
    plan = session.plan
    if not plan.expect.get(PathClaim.DETERMINISTIC) or plan.integration_test:
        return False
    tasks = [one.prepared.task for one in session.tasks if may_compare(one.prepared.task)]
    if not tasks or any(plan.times(task.name) > 1 for task in tasks):
        return False
    return all(one.repeated is None for one in session.noted.read())
