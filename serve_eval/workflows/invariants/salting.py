"""Keep prompts out of the prefix cache with a salt, and put them into it before the passes.

vLLM and TensorRT-LLM reuse cached data only for requests with the same `cache_salt`. So a prompt
with a salt of its own is computed without cached data, however often it was asked before.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.schema import Failure, FailureKind, Override, Request, Sample
from serve_eval.storage.reports.invariants_files import CacheSalt, find_salt, write_salt

FIELD = "cache_salt"
SALT_BYTES = 16
GONE = frozenset({FailureKind.TIMEOUT, FailureKind.DISCONNECTED})
"""Failures after which the next pass finds out what is wrong, within its own limits."""


async def settle_salt(
    folder: Path, client: Client, prepared: Sequence[PreparedTask], *, begun: bool
) -> CacheSalt:
    """Return the salt of the folder, after asking a new endpoint whether it takes one.

    `begun`: the folder already has answers of the cold pass. If it then has no salt, they were sent
    without one. Raises EndpointError for an endpoint that does not answer.
    """
    if (known := find_salt(folder)) is not None:
        return known
    if begun:
        return CacheSalt(value=None, why="the pass was begun without one")
    salt = CacheSalt(value=secrets.token_hex(SALT_BYTES))
    for chat in sorted({p.chat for p in prepared if may_be_salted(p)}):
        result = await send_probe(
            client, ping(chat), extra={FIELD: salt_of(str(salt.value), "probe", str(chat))}
        )
        if isinstance(result, Failure):
            why = f"the server refuses it: {result.message}"
            salt = CacheSalt(value=None, why=why)
            break
    write_salt(folder, salt)
    return salt


def may_be_salted(prepared: PreparedTask) -> bool:
    """Return True if answers are generated: servers compute scored texts without the cache."""
    return not prepared.task.prompt_logprobs and not any(
        sample.choices for sample in prepared.dataset.samples
    )


def why_unsalted(prepared: Sequence[PreparedTask], salt: CacheSalt | None) -> dict[str, str | None]:
    """Return, by task, why the cold pass has no salt; None if it has one."""
    if salt is None or salt.value is None:
        why = "the pass was begun without one" if salt is None else salt.why
        return {p.task.name: why for p in prepared}
    computed = "servers compute log-probabilities of a prompt without the cache"
    return {p.task.name: None if may_be_salted(p) else computed for p in prepared}


def add_salt(prepared: Sequence[PreparedTask], salt: CacheSalt | None) -> Sequence[PreparedTask]:
    """Return the tasks with a salt for each prompt.

    The fingerprints stay: a salt changes what the server computes, not what it is asked.
    """
    if salt is None or salt.value is None:
        return prepared
    return [_salt_task(p, salt.value) if may_be_salted(p) else p for p in prepared]


def _salt_task(prepared: PreparedTask, salt: str) -> PreparedTask:
    samples = [
        _salt_sample(sample, salt_of(salt, prepared.task.name, sample.id))
        for sample in prepared.dataset.samples
    ]
    return replace(prepared, dataset=replace(prepared.dataset, samples=samples))


def _salt_sample(sample: Sample, salt: str) -> Sample:
    own = sample.override or Override()
    return replace(sample, override=replace(own, extra={**own.extra, FIELD: salt}))


def salt_of(salt: str, *what: str) -> str:
    """Return the salt of one prompt, which a resumed pass sends again."""
    return hashlib.sha256("\0".join((salt, *what)).encode()).hexdigest()[: 2 * SALT_BYTES]


async def fill_cache(client: Client, prepared: Sequence[PreparedTask], at_a_time: int) -> None:
    """Send every prompt without a salt, for one token, so that the next passes find it cached.

    Failures do not matter: the server reports what the passes found in its cache.
    """
    waiting = _requests(prepared)

    async def send() -> None:
        for request in waiting:
            result = await client.send(request, once=True)
            if isinstance(result, Failure) and result.kind in GONE:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(at_a_time):
            group.create_task(send())


def _requests(prepared: Sequence[PreparedTask]) -> Iterator[Request]:
    for p in prepared:
        if may_be_salted(p):
            for sample in p.dataset.samples:
                request = request_of(p.task, sample)
                one = replace(request.sampling, max_tokens=1)
                yield msgspec.structs.replace(request, sampling=one)
