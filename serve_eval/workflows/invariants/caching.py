"""Keep prompts out of the server's cache, put them into it, or crowd them out again.

vLLM and TensorRT-LLM reuse cached data only for requests with the same `cache_salt`. So a prompt
with a salt of its own is computed without cached data, however often it was asked before.

Caches were seen to return other or torn blocks after an eviction, or after an offload to host
memory and back (TensorRT-LLM issue 8813, LMCache 4385, sglang 22716, vLLM 52617). The size of a
cache is not known from outside. So the fillings double until fewer tokens of the old prompts come
from the cache; all old prompts are asked after each. A server that says how much its cache holds
gets one filling.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.engine_metrics import VLLM_ROUTE
from serve_eval.client.questions import VLLM
from serve_eval.evaluation.capabilities.probe_request import ping, send_probe
from serve_eval.evidence import answer_pairs
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.protocol.conversation import SALT_FIELD
from serve_eval.schema import (
    Failure,
    FailureKind,
    Message,
    Override,
    Plan,
    Request,
    Sample,
    SamplingParams,
    Usage,
)
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.story_results import (
    CacheSalt,
    PressureLevel,
    PressureLog,
    find_salt,
    read_pressure,
    write_pressure,
    write_salt,
)
from serve_eval.workflows.invariants.arms import AGAIN, Arm
from serve_eval.workflows.invariants.cache_use import are_fewer, read_usage

FIELD = SALT_FIELD
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
    talk = sample.conversation
    return replace(
        sample,
        override=replace(own, extra={**own.extra, FIELD: salt}),
        conversation=None if talk is None else replace(talk, salted=True),
    )


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


LONGEST, SHORTEST = 1000, 16
"""Words of a prompt: as many as the server takes."""
PROMPTS = 32
"""Prompts into which a filling is divided at least, so that its size is met."""
TOKENS_PER_WORD = 3
"""Estimate for made-up words, used only for the length of the first prompt."""


@dataclass(slots=True, kw_only=True)
class _Filling:
    """A filling under way: the prompts so far, and their tokens."""

    client: Client
    wanted: int
    seed: int
    chat: bool
    words: int
    filled: int = 0
    sent: int = 0
    over: bool = field(default=False)

    async def send(self) -> None:
        """Send one prompt for one token. A prompt that is too long halves the next ones."""
        words, number = self.words, self.sent
        self.sent += 1
        text = make_text(self.seed, number, words)
        request = Request(
            sample_id=f"filling {number}",
            prompt=(Message(role="user", content=text),) if self.chat else text,
            sampling=SamplingParams(max_tokens=1),
        )
        result = await self.client.send(request, once=True)
        if not isinstance(result, Failure):
            self.filled += result.usage.prompt_tokens or words
        elif result.kind is FailureKind.HTTP_ERROR and result.status in (400, 413, 422):
            if words <= SHORTEST:
                self.over = True
            self.words = min(self.words, max(SHORTEST, words // 2))
        elif result.kind in GONE or not result.retryable:
            self.over = True

    async def work(self) -> None:
        """Send prompts until the filling is complete, or the server takes none."""
        while self.filled < self.wanted and not self.over:
            await self.send()


async def fill(client: Client, wanted: int, at_a_time: int, seed: int, *, chat: bool) -> int:
    """Send other prompts of about `wanted` tokens; return the tokens that the server counted.

    They are fewer if the server stops taking prompts: the next pass finds out what is wrong.
    """
    words = min(LONGEST, max(SHORTEST, wanted // (PROMPTS * TOKENS_PER_WORD)))
    filling = _Filling(client=client, wanted=wanted, seed=seed, chat=chat, words=words)
    while not filling.filled and not filling.over:
        await filling.send()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(at_a_time, PROMPTS // 4)):
            group.create_task(filling.work())
    return filling.filled


def make_text(seed: int, number: int, words: int) -> str:
    """Return made-up words, which differ from those of any other number from the first one on."""
    rng = random.Random(f"filling:{seed}:{number}")
    return " ".join(
        "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))
        for _ in range(words)
    )


PRESSURE = "pressure"
FIRST = 2
"""The first filling, in multiples of the tokens of the old prompts."""
LEAST = 512
"""Tokens of the smallest first filling."""
ROOM = 1.25
"""A filling of this many times the size of the cache leaves no old prompt in it."""


@freeze
class Pressing:
    """A pass under pressure: its folder, its plan and tasks, and the most tokens of fillings."""

    out_dir: Path
    plan: Plan
    prepared: Sequence[PreparedTask]
    budget: int

    @property
    def asked(self) -> list[PreparedTask]:
        """The tasks whose answers are generated: servers score texts without the cache."""
        return [p for p in self.prepared if may_be_salted(p)]

    def list_arms(self) -> list[Arm]:
        """Return the passes of the fillings so far."""
        names = {p.task.name for p in self.asked}
        plan = replace(
            self.plan, tasks=tuple(spec for spec in self.plan.tasks if spec.name in names)
        )
        return [
            Arm(
                name=level.name,
                what=f"after {level.filled:,} tokens of other prompts went through the cache",
                plan=plan,
                prepared=self.asked,
            )
            for level in read_pressure(self.out_dir).levels
        ]

    def is_ended(self) -> bool:
        """Return True if nothing is left to ask."""
        log = read_pressure(self.out_dir)
        return not self.budget or log.ended or bool(log.skipped)

    def why_skipped(self) -> dict[str, str]:
        """Return why there is no such pass."""
        why = read_pressure(self.out_dir).skipped
        return {PRESSURE: why} if self.budget and why else {}


async def press(pressing: Pressing, client: Client, ask: Callable[[Arm], Awaitable[None]]) -> None:
    """Fill the cache and ask the prompts, until they were evicted or the budget is spent.

    An interrupted pass begins with a filling again, since the server may have been restarted.
    """
    log, before = read_pressure(pressing.out_dir), _read(pressing, AGAIN)
    counted = any(one.cached_tokens is not None for one in before.values())
    if why := _why_not(pressing, before, counted=counted):
        write_pressure(pressing.out_dir, PressureLog(skipped=why))
        return
    if not log.levels and read_report(pressing.out_dir / AGAIN).endpoint.info.server == VLLM:
        reading = await client.read_engine(VLLM_ROUTE)
        log = PressureLog(capacity=None if reading is None else reading.cache_tokens)
    while not log.ended:
        undone = [one for one in log.levels if not has_report(pressing.out_dir / one.name)]
        tokens = sum(one.prompt_tokens for one in before.values())
        wanted = undone[0].wanted if undone else _choose(log, tokens, pressing.budget, counted)
        log = await _fill(pressing, client, log, wanted)
        level = next(one for one in log.levels if one.wanted == wanted)
        await ask(next(arm for arm in pressing.list_arms() if arm.name == level.name))
        fewer = counted and are_fewer(before, _read(pressing, level.name))
        room = log.capacity is not None and level.filled >= log.capacity
        spent = not _choose(log, tokens, pressing.budget, counted)
        log = msgspec.structs.replace(log, ended=fewer or room or spent)
        write_pressure(pressing.out_dir, log)


async def _fill(pressing: Pressing, client: Client, log: PressureLog, wanted: int) -> PressureLog:
    """Fill the cache; return the log with this filling, which a repeated one replaces."""
    seed, limits = secrets.randbits(48), pressing.plan.limits
    assert limits.concurrency != "auto"
    chat = pressing.asked[0].chat
    filled = await fill(client, wanted, limits.concurrency, seed, chat=chat)
    level = PressureLevel(wanted=wanted, filled=filled, seed=seed)
    others = [one for one in log.levels if one.wanted != wanted]
    log = msgspec.structs.replace(log, levels=(*others, level))
    write_pressure(pressing.out_dir, log)
    return log


def _choose(log: PressureLog, tokens: int, budget: int, counted: bool) -> int:
    """Return the tokens of the next filling; 0 if there is none.

    If the server does not report cached tokens, one filling takes them all.
    """
    left = budget - sum(one.wanted for one in log.levels)
    if log.levels and (log.capacity is not None or not counted):
        return 0
    if not counted:
        return left
    if log.capacity is not None:
        return min(left, round(ROOM * log.capacity))
    last = max((one.wanted for one in log.levels), default=0)
    wanted = 2 * last if last else max(LEAST, FIRST * tokens)
    if left >= wanted:
        return wanted
    return left if left > ROOM * last else 0


def _why_not(pressing: Pressing, before: Mapping[str, Usage], *, counted: bool) -> str:
    """Return why the pass is left out, or an empty text."""
    if not pressing.asked:
        return "servers compute log-probabilities of a prompt without the cache"
    if not before:
        return "no prompt was answered before"
    if counted and not any(one.cached_tokens for one in before.values()):
        return "nothing is cached: a prompt asked again had 0 cached tokens"
    return ""


def _read(pressing: Pressing, name: str) -> dict[str, Usage]:
    """Return the token counts of a pass, by task and prompt."""
    folder = pressing.out_dir / name
    report = read_report(folder)
    return {
        f"{p.task.name} {prompt}": usage
        for p in pressing.asked
        for prompt, usage in read_usage(answer_pairs.read_task(folder, report, p.task.name)).items()
    }
