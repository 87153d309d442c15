"""Answer PASS by identity before a task is asked, if the plan accepts that and probes prove it.

If a condition of identity is not proven, the run asks the task as usual. Examples are other probes,
another protocol, or sampling defaults that one side does not know.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import reduce

from serve_eval.client.client import Client
from serve_eval.client.wire_format.wire import NeutralFields
from serve_eval.errors import ReferenceFileError
from serve_eval.evaluation.capabilities.sampling import (
    join_routes,
    list_open,
    name_difference,
    probe_defaults,
)
from serve_eval.evaluation.identity_requests import IdentityAsker, explain_unasked
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence.identity import explain_unfit, find_unseen, judge_probes
from serve_eval.plan.command_line import write_take_command
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import (
    Endpoint,
    IdentityFinding,
    IdentityProbes,
    Plan,
    SamplingDefaults,
    Task,
    is_rehearsal,
)
from serve_eval.storage import run_folder
from serve_eval.verdicts.reference_probes import read_probes

SEED = "seed"
"""The field of a protocol that decides nothing at the temperature of probes."""
PROBES = 60
"""Probes that a reference usually holds: they show a fault of 4.9 % of the requests."""


async def accept_identical(
    session: RunSession, client: Client, able: Sequence[TaskRun]
) -> list[TaskRun]:
    """Ask the probes of the tasks, and return the tasks that are left to ask.

    The finding of each task is noted in the folder, so that a resumed run asks no probes again.
    """
    left = []
    for task_run in able:
        if task_run.unfinished and task_run.identity is None:
            task_run.identity = await _find(session, client, task_run)
            run_folder.note_identity(session.folder, task_run.prepared.task.name, task_run.identity)
            session.notify(f"{task_run.prepared.task.name}: {describe_finding(task_run.identity)}")
        if task_run.identity is None or not task_run.identity.accepted:
            left.append(task_run)
    return left


def describe_finding(found: IdentityFinding) -> str:
    """Return the finding as one line."""
    if not found.accepted:
        return f"identity is not accepted, and the task is asked: {found.why}"
    return (
        f"PASS by identity: {found.probes} probes and {found.whole} whole answers are those of the"
        f" reference, {found.tokens:,} tokens; nothing else was asked"
    )


async def _find(session: RunSession, client: Client, task_run: TaskRun) -> IdentityFinding:
    at = datetime.now(UTC).isoformat(timespec="seconds")
    if why := _explain_unready(session, task_run):
        return IdentityFinding(accepted=False, why=why, at=at)
    try:
        known = load_probes(session.plan, task_run.prepared)
    except ReferenceFileError as error:
        why = f"{error}. {error.hint}" if error.hint else str(error)
        return IdentityFinding(accepted=False, why=why, at=at)
    if isinstance(known, str):
        return IdentityFinding(accepted=False, why=known, at=at)
    defaults = await _learn_defaults(session, client, task_run.prepared)
    if why := explain_defaults(known.defaults, defaults, task_run.prepared.task):
        return IdentityFinding(accepted=False, why=why, at=at)
    return replace(await _ask(client, task_run.prepared, known), at=at)


def _explain_unready(session: RunSession, task_run: TaskRun) -> str:
    """Return why this run cannot take an answer by identity; empty if it can."""
    if is_rehearsal(session.plan, [session.endpoint]):
        return "the stand-in of a rehearsal answers"
    if task_run.accumulator.scored or not task_run.journal.empty:
        return "an earlier session began to ask the task"
    return explain_plan(session.plan, task_run.prepared)


def explain_plan(plan: Plan, prepared: PreparedTask) -> str:
    """Return why a plan allows no answer by identity for a task; empty if it does."""
    if plan.shard is not None:
        return "a shard is not judged"
    if plan.integration_test:
        return "an integration test is not judged"
    if any(plan.expect.values()):
        wanted = ", ".join(name for name, needed in plan.expect.items() if needed)
        return f"the plan expects {wanted}, which the answers of a run prove"
    if prepared.reference is None:
        return prepared.why_no_reference or "there is no reference"
    if "mismatch" in (prepared.protocol or ""):
        return "a mismatch with the reference is allowed, so that its probes are other requests"
    return explain_unasked(prepared)


def load_probes(plan: Plan, prepared: PreparedTask) -> IdentityProbes | str:
    """Return the probes of a task's reference, or why they say nothing of this run.

    Raises ReferenceFileError for a file that is missing, changed, or of another version.
    """
    reference = prepared.reference
    assert reference is not None
    if reference.runs is None or not reference.runs.probes:
        return (
            "the reference holds no probes. To take them, at a deployment that you know to be"
            f" sound: {write_take_command(plan, [prepared.spec.name])} --probes {PROBES}"
        )
    known = read_probes(reference)
    if differing := list(_compare_protocols(known, prepared)):
        return f"the probes were taken under another protocol: {', '.join(differing)}"
    if known.stream is not plan.limits.stream:
        was, now = ("event streams", "whole bodies")[:: 1 if known.stream else -1]
        return f"the probes were answered as {was}, and this run asks for {now}"
    return explain_unfit(known, shortest(known)) or known


def foresee(plan: Plan, prepared: PreparedTask) -> str:
    """Return what a run would ask first to recognize the deployment, and its cost."""
    try:
        known = explain_plan(plan, prepared) or load_probes(plan, prepared)
    except ReferenceFileError as error:
        known = str(error)
    if isinstance(known, str):
        return f"no, the task is asked: {known}"
    every = [probe.reading for probe in (*known.probes, *known.whole)]
    mean = (shortest(known) + known.length - 1) / 2
    generated = sum(min(mean, probe.reading.count) for probe in known.probes)
    generated += sum(probe.reading.count for probe in known.whole)
    tokens = round(sum(one.prompt_tokens for one in every) + generated)
    return (
        f"{len(known.probes)} probes and {len(known.whole)} whole answers first, about"
        f" {tokens:,} tokens; if they and the sampling defaults are those of the reference,"
        " nothing else is asked"
    )


def _compare_protocols(known: IdentityProbes, prepared: PreparedTask) -> Iterator[str]:
    now = prepared.fingerprint
    for name in sorted({*known.fingerprint, *now}):
        if name != SEED and known.fingerprint.get(name) != now.get(name):
            yield name


async def _learn_defaults(
    session: RunSession, client: Client, prepared: PreparedTask
) -> SamplingDefaults | None:
    """Return the sampling defaults that this session found; an earlier one saw another server."""
    if len(session.noted.read()) == 1:
        return session.noted.defaults()
    return await learn_defaults(client, session.endpoint, [prepared])


async def learn_defaults(
    client: Client, endpoint: Endpoint, prepared: Sequence[PreparedTask]
) -> SamplingDefaults:
    """Probe the sampling defaults of every route that the tasks use.

    The client sends no neutral values meanwhile, which would hide them.
    """
    routes = sorted({one.chat for one in prepared}, reverse=True)
    sent, client.encoder.neutral = client.encoder.neutral, NeutralFields()
    try:
        found = [await probe_defaults(client, endpoint, chat=chat) for chat in routes]
    finally:
        client.encoder.neutral = sent
    return reduce(join_routes, found)


def explain_defaults(known: SamplingDefaults, now: SamplingDefaults | None, task: Task) -> str:
    """Return why the sampling defaults of two servers are not known to be equal for a task.

    A field that decides none of its answers, as top_k at temperature 0, may be unknown.
    """
    for who, one in (("the endpoint", now), ("the reference's server", known)):
        if one is None:
            return f"the sampling defaults of {who} are not known"
        if fields := ", ".join(list_open(one, task)):
            why = f" ({one.unknown})" if one.unknown else ""
            return f"it is not known whether {who} adds {fields} to requests that lack it{why}"
    if told := name_difference(known, now, ("the reference's server", "the endpoint")):
        return told
    assert now is not None
    for field in known.fields:
        other = now.find(field.name)
        if other is None or other.obedience != field.obedience:
            heeds = "nothing" if other is None else other.obedience
            return (
                f"values of {field.sent_as} are {heeds} by the endpoint, and {field.obedience} by"
                " the reference's server"
            )
    return ""


def shortest(known: IdentityProbes) -> int:
    """Return the fewest tokens that a probe asks for."""
    return max(1, known.length // 2)


async def _ask(client: Client, prepared: PreparedTask, known: IdentityProbes) -> IdentityFinding:
    """Ask all probes of a task at the run's concurrency, and judge the answers.

    Each asks for another number of tokens, drawn now, than the reference did. A cache that gives
    answers of an earlier time has them in another length.
    """
    asker = IdentityAsker(client, prepared)
    samples = {one.id: one for one in prepared.dataset.samples}
    least, most = shortest(known), max(1, known.length - 1)
    lengths = [least + secrets.randbelow(most - least + 1) for _ in known.probes]
    asked = [samples[probe.id] for probe in (*known.probes, *known.whole)]
    found = await asker.ask_all(asked, [*lengths, *[None] * len(known.whole)])
    count = len(known.probes)
    readings = list(zip(lengths, found[:count], strict=True))
    judged = judge_probes(known, readings, found[count:])
    why = judged.why
    if why and asker.why and any(one is None for one in found):
        why = f"{why}: {asker.why}"
    return IdentityFinding(
        accepted=not why,
        why=why,
        probes=count,
        whole=len(known.whole),
        limit=judged.limit,
        largest=judged.largest,
        unseen=find_unseen(count),
        longest=max(probe.reading.prompt_tokens for probe in known.probes),
        in_flight=min(asker.in_flight, len(asked)),
        requests=asker.requests,
        tokens=asker.tokens,
    )
