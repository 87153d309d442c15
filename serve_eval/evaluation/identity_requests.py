"""Ask requests of a task as its run does, and read the beginning of each answer.

They go to the same address, by the same route and form of answer, with the same fields and as many
at a time. Only the temperature is 0, and log-probabilities are asked for. A request is sent once: a
failure is a finding here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import bodies, refusal, wire
from serve_eval.client.wire_format.sse import EventLines
from serve_eval.evaluation.engine.load_session import MOST
from serve_eval.evaluation.probe_server import TOP, UNREADABLE, read_tokens
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.protocol.fingerprint import ROUTE
from serve_eval.schema import (
    HOLDOUT,
    Failure,
    IdentityReading,
    Sample,
    TokenReading,
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
