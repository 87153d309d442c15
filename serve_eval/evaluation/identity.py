"""Answer PASS by identity before a task is asked, if the plan accepts that and probes prove it.

If a condition of identity is not proven, the run asks the task as usual. Examples are other probes,
another protocol, or sampling defaults that one side does not know.

The probes are requests of the task, sent to the same address, by the same route and form of answer,
with the same fields and as many at a time. Only the temperature is 0, and log-probabilities are
asked for. A probe is sent once: a failure is a finding here.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import reduce
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import bodies, refusal, wire
from serve_eval.client.wire_format.sse import EventLines
from serve_eval.client.wire_format.wire import NeutralFields
from serve_eval.errors import ReferenceFileError
from serve_eval.evaluation.capabilities.sampling import (
    join_routes,
    list_open,
    name_difference,
    probe_defaults,
)
from serve_eval.evaluation.engine.load_session import MOST
from serve_eval.evaluation.probe_server import TOP, UNREADABLE, read_tokens
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence.identity import explain_unfit, find_unseen, judge_probes
from serve_eval.plan.command_line import write_take_command
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.protocol.sampling_fields import ROUTE
from serve_eval.schema import (
    HOLDOUT,
    Endpoint,
    Failure,
    IdentityFinding,
    IdentityProbes,
    IdentityReading,
    Plan,
    Sample,
    SamplingDefaults,
    Task,
    TokenReading,
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


DECIMALS = 6
_DONE = b"[DONE]"


@dataclass(slots=True)
class IdentityAsker:
    """Asks requests of one task, `in_flight` at a time, and counts their cost.

    `why` is the reason of the last request that got no answer.
    """

    client: Client
    prepared: PreparedTask
    requests: int = 0
    tokens: int = 0
    why: str = ""

    @property
    def in_flight(self) -> int:
        """The requests that the run has in flight at most."""
        most = self.client.limits.concurrency
        return MOST if most == "auto" else most

    async def ask_all(
        self, samples: Sequence[Sample], lengths: Sequence[int | None]
    ) -> list[IdentityReading | None]:
        """Return the answers to samples, each of up to that many tokens (None: as in the run).

        A whole answer has no log-probabilities. None stands for a request without an answer.
        """
        limit = asyncio.Semaphore(self.in_flight)

        async def ask(sample: Sample, length: int | None) -> IdentityReading | None:
            async with limit:
                return await self._ask(sample, length)

        jobs = [ask(*one) for one in zip(samples, lengths, strict=True)]
        return list(await asyncio.gather(*jobs))

    async def _ask(self, sample: Sample, length: int | None) -> IdentityReading | None:
        client, request = self.client, request_of(self.prepared.task, sample)
        sampling = replace(request.sampling, temperature=0.0, seed=None)
        over: dict[str, object] = {}
        if length is not None:
            sampling = replace(sampling, max_tokens=length)
            over = {"logprobs": True, "top_logprobs": TOP}
            if isinstance(request.prompt, str):
                over = {"logprobs": TOP}
        request = msgspec.structs.replace(request, sampling=sampling)
        stream = client.limits.stream
        body = await client.encoder.encode(request, stream=stream, over=over)
        path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
        self.requests += 1
        reply = await client.exchange("POST", path, body, timeout_s=client.limits.sample_timeout_s)
        if isinstance(reply, Failure):
            self.why = client.masking.message(reply.message)
            return None
        if reply.error is not None or reply.status != 200:
            told = refusal.describe(reply.content, client.masking.message)
            self.why = f"HTTP {reply.status}: {told}" if reply.error is None else str(reply.error)
            return None
        try:
            found = read_reply(reply.content, stream=stream)
        except UNREADABLE:
            self.why = "the answer cannot be read, or has no log-probabilities"
            return None
        self.tokens += found.prompt_tokens + found.count
        return found


def read_reply(content: bytes, *, stream: bool) -> IdentityReading:
    """Return an answer from a body, or from the events of a stream.

    Raises ValueError and similar errors for anything else.
    """
    pieces = list(_list_events(content)) if stream else [msgspec.json.decode(content)]
    texts, thoughts, calls = [], [], bodies.ToolCalls(streamed=stream)
    tokens: list[TokenReading] = []
    finish, usage = "", bodies.NO_USAGE
    for piece in pieces:
        if piece.get("error") is not None:
            raise ValueError("an error in the answer")
        if piece.get("usage"):
            usage = bodies.usage(piece["usage"])
        for choice in piece.get("choices") or ():
            said = choice.get("delta" if stream else "message") or choice
            texts.append(said.get("text") or said.get("content") or "")
            thoughts.append(said.get("reasoning_content") or said.get("reasoning") or "")
            calls.add(said.get("tool_calls"))
            tokens += map(_keep, read_tokens(choice.get("logprobs")))
            finish = choice.get("finish_reason") or finish
    if not finish:
        raise ValueError("no finish_reason")
    return IdentityReading(
        text="".join(texts),
        thoughts="".join(thoughts),
        calls=tuple((one.name, one.arguments) for one in calls.whole()),
        finish=finish,
        tokens=tuple(tokens),
        count=usage.completion_tokens or len(tokens),
        prompt_tokens=usage.prompt_tokens,
    )


def _list_events(content: bytes) -> list[Any]:
    lines = EventLines()
    payloads = [*lines.feed(content), *lines.close()]
    return [msgspec.json.decode(one) for one in payloads if one and one != _DONE]


def _keep(token: Any) -> TokenReading:
    return TokenReading(
        text=token.text,
        logprob=round(token.logprob, DECIMALS),
        top={text: round(value, DECIMALS) for text, value in token.top.items()},
    )


def explain_unasked(prepared: PreparedTask) -> str:
    """Return why the requests of a task cannot be probed; empty if they can."""
    task, samples = prepared.task, prepared.dataset.samples
    if task.prompt_logprobs or any(one.choices for one in samples):
        return "the task asks for likelihoods of texts, and not for answers"
    if any(HOLDOUT in one.metadata for one in samples):
        return "the task has hold-out samples, whose answers a reference must not hold"
    if any(one.conversation is not None for one in samples):
        return "the task has conversations, whose later turns depend on the answers before"
    if ROUTE in task.protocol:
        return "the Responses route gives no log-probabilities of the tokens"
    if task.acceptance_length is not None:
        return "the acceptance length of speculation is judged too, which only a whole run shows"
    return ""


def draw_samples(prepared: PreparedTask, count: int, seed: int) -> list[Sample]:
    """Return `count` samples of a task, drawn at random."""
    samples = prepared.dataset.samples
    drawn = random.Random(f"{seed}:identity:{prepared.task.name}")
    return [samples[i] for i in drawn.sample(range(len(samples)), min(count, len(samples)))]
