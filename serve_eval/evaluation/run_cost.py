"""Bound what a run costs in tokens and time, and count what it cost, with the time of its GPUs.

The bounds are those of the whole run with all its sessions. Each of the shards of a run has an
equal part of its tokens, since no shard knows what the others spend.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from serve_eval.errors import SpentBudgetError
from serve_eval.evaluation.engine.budget import BudgetGroup, RunBudget, bound_cost
from serve_eval.evaluation.launch import count_gpus
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.plan.command_line import write_larger
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import CERTAIN, TOKENS, Limits, Plan, RunCost, TaskReport, is_rehearsal
from serve_eval.storage.sessions import SessionRecord


def check_budget(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raise SpentBudgetError if the first task may have a request above the bound of the run."""
    if (bound := find_token_bound(plan)) is None or not prepared:
        return
    task, samples = prepared[0].task, prepared[0].dataset.samples
    most = max(bound_cost(task, sample) for sample in samples)
    if most > bound:
        each = "" if plan.shard is None else f", 1/{plan.shard.count} of those of all shards,"
        raise SpentBudgetError(
            f"limits.{TOKENS}: {bound:,} tokens{each} are fewer than one request of {task.name} may"
            f" cost: up to {most:,.0f}, with {task.sampling.max_tokens:,} of its answer",
            hint="Give more tokens, or a lower --max-tokens.",
        )


def find_token_bound(plan: Plan) -> int | None:
    """Return the tokens that a run, or this shard of it, may cost; None without a bound."""
    total = plan.limits.max_tokens_total
    if total is None or plan.shard is None:
        return total
    return total // plan.shard.count


def open_budget(
    session: RunSession, tasks: Sequence[TaskRun], group: BudgetGroup | None = None
) -> RunBudget:
    """Return what the run may still cost, with what is known of the answers so far."""
    tokens, time_s = _find_left(session)
    budget = RunBudget(tokens=tokens, time_s=time_s, group=group)
    for w in tasks:
        traffic = w.accumulator.traffic
        known = w.accumulator.scored - traffic.without_usage
        budget.know(
            w.prepared.task.name, traffic.prompt_tokens + traffic.completion_tokens, max(0, known)
        )
    return budget


def ends_when_certain(session: RunSession) -> bool:
    """Return True if the run ends when a FAIL is certain; one that judges nothing never does."""
    plan = session.plan
    judges = plan.shard is None and not plan.integration_test and not is_rehearsal(plan)
    return judges and (plan.end_when_certain or session.part.ends)


def find_spent_limit(session: RunSession) -> str:
    """Return the limit that earlier sessions reached, so that nothing more is asked; else ""."""
    if ends_when_certain(session):
        from serve_eval.evaluation.certain_fail import CertainFail

        if CertainFail(session).find():
            return CERTAIN
    budget = open_budget(session, session.tasks)
    for w in session.tasks:
        if w.unfinished and (pending := w.list_pending_samples()):
            budget.admits(w.prepared.task, w.accumulator.samples[pending[0]])
            return budget.ended_by
    return ""


def find_reached_limit(plan: Plan, noted: Sequence[SessionRecord]) -> str:
    """Return the limit that ended a run, if that of its plan is not larger now; else ""."""
    limit = find_ending_limit(noted)
    last = next((one.load for one in reversed(noted) if one.load is not None), None)
    had = None if last is None else getattr(last.limits, limit, None)
    now = getattr(plan.limits, limit, None)
    return limit if had is not None and now is not None and now <= had else ""


def note_spent_limit(session: RunSession, limit: str) -> None:
    """Note in the folder that nothing more was asked since a limit was reached, with a warning."""
    loads = session.noted.loads()
    if loads and session.noted.read()[-1].load is not None:
        session.noted.note_load(replace(loads[-1], ended_by=limit))
    if limit == CERTAIN:
        session.warnings.append(
            f"nothing was asked: a FAIL is certain; {write_larger(limit)} asks the rest"
        )
        return
    session.warnings.append(describe_spent(session.plan.limits, limit))


def describe_spent(limits: Limits, limit: str) -> str:
    """Return the warning that nothing more was asked since a limit was reached."""
    return (
        f"nothing was asked: earlier sessions reached {describe_limit(limits, limit)}; a larger one"
        f" asks the rest: {write_larger(limit)}"
    )


def describe_limit(limits: Limits, name: str) -> str:
    """Return a limit in words, with its value if the run has one."""
    value = getattr(limits, name, None)
    if name == TOKENS:
        return "the bound of tokens" if value is None else f"the bound of {value:,} tokens"
    return "the bound of time" if value is None else f"the bound of {value:,g} s"


def find_ending_limit(noted: Sequence[SessionRecord]) -> str:
    """Return the limit that ended the last session, or that of any shard; "" if none did."""
    last = {str(one.stored.get("shard", "")): one for one in noted}
    ends = [one.load.ended_by for one in last.values() if one.load is not None]
    return next(filter(None, ends), "")


def _find_left(session: RunSession) -> tuple[float | None, float | None]:
    """Return the tokens and seconds that the run may still cost; None without a bound."""
    bound, time_s = find_token_bound(session.plan), session.plan.limits.max_time_s
    if session.rerun:
        return bound, time_s
    noted = session.noted.read()
    begun = max((i for i, one in enumerate(noted) if one.rerun), default=0)
    loads = [one.load for one in noted[begun:] if one.load is not None]
    if bound is not None:
        spent = sum(load.charged_tokens for load in loads)
        if not any(one.rerun for one in noted):
            # A killed session noted no load, and one without a bound charged nothing.
            traffics = [w.accumulator.traffic for w in session.tasks]
            spent = max(spent, sum(one.prompt_tokens + one.completion_tokens for one in traffics))
        bound -= spent
    if time_s is not None:
        time_s -= sum(load.wall_s for load in loads)
    return bound, time_s


@contextmanager
def time_servers(session: RunSession) -> Iterator[None]:
    """Note in the folder how long the servers ran in the block, and their number of GPUs."""
    began_s, before = time.monotonic(), len(session.noted.read())
    try:
        yield
    finally:
        if len(session.noted.read()) > before:
            plan = session.plan
            session.noted.note_served(time.monotonic() - began_s, plan.gpus or count_gpus(plan))


def sum_cost(tasks: Sequence[TaskReport], noted: Sequence[SessionRecord]) -> RunCost:
    """Return the cost of a run from its tasks and sessions."""
    traffics = [task.traffic for task in tasks]
    judged = [judge.traffic for task in tasks for judge in task.judges]
    # A run is probed once, and its later sessions note that again.
    probed = {str(one.stored.get("shard", "")): one.sampling_defaults for one in noted}
    found = [task.verdict.identity for task in tasks]
    served = [(one.served_s, one.gpus) for one in noted]
    known = [(s, n) for s, n in served if s is not None and n is not None]
    whole = len(known) == len(served) > 0
    times = [s for s, _ in served if s is not None]
    return RunCost(
        prompt_tokens=sum(one.prompt_tokens for one in traffics),
        generated_tokens=sum(one.completion_tokens for one in traffics),
        without_usage=sum(one.without_usage for one in traffics),
        uncounted_attempts=sum(one.uncounted_attempts for one in traffics),
        judge_tokens=sum(one.prompt_tokens + one.completion_tokens for one in judged),
        probe_tokens=sum(one.tokens for one in probed.values() if one is not None)
        + sum(one.tokens for one in found if one is not None),
        gpus=known[-1][1] if whole else None,
        served_s=round(sum(times), 3) if times and len(times) == len(served) else None,
        gpu_s=round(sum(s * n for s, n in known), 1) if whole else None,
    )
