"""Make a reference: find uncertain probes, and measure by how much healthy servers differ."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from serve_eval.errors import NotComparableError
from serve_eval.evaluation.probe_server import TOKENS, TOP, AnswerTokens, AskedServer
from serve_eval.evidence.probe_floor import find_step
from serve_eval.schema import Probe, ProbeReading, ProbeRoute, RepeatedReading

UNCERTAIN = math.log(0.2), math.log(0.6)
"""Log-probabilities of the likeliest next token between which a text is a useful probe."""
SLACK = 0.3
"""Nats beyond them that a text read again may have, since its tokens may be cut otherwise."""
CONTINUED = 16
"""Tokens of the answers in which uncertain ones are looked for."""
TRIES = 15
"""Candidates per probe after which a server is given up."""
ALONE = 20
"""Probes whose further answers are also asked one at a time: the noise covers the batch size."""
AFTER = {ProbeRoute.CHAT: ProbeRoute.PREFIX, ProbeRoute.PREFIX: ProbeRoute.PLAIN}
"""The next way of asking, for a server that is never uncertain in the first texts. A model that
begins each message with the same token, such as one that thinks first, is never so in a chat. It
may continue a message of its own, which not every server takes, or answer without thoughts."""
PROBED, THOUGHTS = "probed_tokens", "thoughts"
"""Field of a protocol, and its value if the tokens that are compared are the first of thoughts."""
USE_TEXTS = (
    "A model that always thinks first begins every message alike: use completions, with"
    " --set protocol.apply_chat_template=false. Or choose other texts, with --tasks or"
    " --set verify.text=FILE."
)
LONG = 2200
"""Tokens of one probe that is longer than vLLM's default chunk of a prompt, of 2,048 tokens."""
LONG_TRIES = 3


@dataclass(slots=True, kw_only=True)
class ReferenceMaker:
    """Asks a server, and its healthy siblings if there are any, for the answers to compare with.

    `repeats` is the number of further answers to each of the first ALONE probes, both one at a time
    and many in flight. With 1, they are asked one at a time only.
    """

    server: AskedServer
    siblings: Sequence[AskedServer]
    cutter: CandidateCutter
    protocol: dict[str, str]
    repeats: int = 1
    probes: list[Probe] = field(default_factory=list)
    candidates: int = 0
    tried_long: bool = False
    thinks: bool | None = None

    async def extend(self, count: int) -> None:
        """Find probes until there are `count` of them.

        Raises NotComparableError if the server is almost never uncertain.
        """
        if self.thinks is None and self.server.route is not ProbeRoute.TEXT:
            self.thinks = False
            await self._leave_thoughts()
        while len(self.probes) < count:
            known = len(self.probes)
            missing = (ALONE if known < ALONE <= count else count) - known
            prompts = await self._find(min(self.server.in_flight, missing))
            await self._keep(prompts)
            if not self.probes:
                await self._change_route()
            if not self.tried_long:
                await self._find_long()
            if self.candidates > TRIES * count and len(self.probes) < count:
                why = f": {self.server.why}" if self.server.why else ""
                raise NotComparableError(
                    f"{self.server.name}: UNSUPPORTED: of {self.candidates} texts that break off,"
                    f" only {len(self.probes)} have an uncertain next token{why}",
                    hint=USE_TEXTS
                    if self.server.route is ProbeRoute.PLAIN or self.thinks
                    else "Choose other texts, with --tasks or --set verify.text=FILE.",
                )

    async def _change_route(self) -> None:
        """Ask in the next way, since the first tokens were never uncertain in this one."""
        route = self.server.route
        if self.protocol.get(PROBED) == THOUGHTS:
            return
        if route in AFTER:
            self._take_route(AFTER[route])
            if self.thinks:
                await self._leave_thoughts()
        elif route is ProbeRoute.PLAIN and self.thinks:
            self._take_thoughts()

    async def _leave_thoughts(self) -> None:
        """Ask in the first way whose answers do not begin with thoughts.

        Those hardly depend on the text, so that they are compared only where nothing else can be.
        """
        while await self.server.thinks_first():
            self.thinks = True
            if self.server.route not in AFTER:
                self._take_thoughts()
                return
            self._take_route(AFTER[self.server.route])

    def _take_thoughts(self) -> None:
        self._take_route(ProbeRoute.CHAT)
        self.protocol[PROBED] = THOUGHTS

    def _take_route(self, route: ProbeRoute) -> None:
        """Ask in another way from now on."""
        for server in (self.server, *self.siblings):
            server.route = route
            server.why = ""
        self.protocol["route"] = route.value
        self.candidates = 0

    async def _find_long(self) -> None:
        """Find the one long probe, if the server takes prompts of its length.

        The lengths of tokens are known by now.
        """
        self.tried_long = True
        before = len(self.probes)
        for _ in range(LONG_TRIES):
            if (text := self.cutter.cut_long(LONG)) is None or len(self.probes) > before:
                return
            await self._keep(await self._continue([text]))

    async def _find(self, count: int) -> list[str]:
        """Return texts that break off before an uncertain token."""
        self.candidates += count
        return await self._continue([self.cutter.cut() for _ in range(count)])

    async def _continue(self, prompts: Sequence[str]) -> list[str]:
        """Return cut texts, each continued by the server up to one of its uncertain tokens."""
        answers = await self.server.continue_texts(prompts, CONTINUED)
        asked = [(p, one) for p, one in zip(prompts, answers, strict=True) if one is not None]
        self._learn_length(asked)
        found = []
        for prompt, answer in asked:
            texts = list(break_off(prompt, answer))
            if self.server.route in (ProbeRoute.CHAT, ProbeRoute.PLAIN):
                # Text that the server wrote cannot become a part of the message that it answers.
                texts = [text for text in texts if text == prompt]
            if texts:
                found.append(self.cutter.choose(texts))
        return found

    def _learn_length(self, asked: Sequence[tuple[str, AnswerTokens]]) -> None:
        counted = [(p, one.usage.prompt_tokens) for p, one in asked if one.usage.prompt_tokens]
        if not asked:  # Perhaps the texts are too long for the server.
            self.cutter.per_token /= 2
        elif counted:
            self.cutter.per_token = sum(len(p) for p, _ in counted) / sum(n for _, n in counted)

    async def _keep(self, prompts: Sequence[str]) -> None:
        alone = len(self.probes) < ALONE
        readings = await self.server.read_all(prompts)
        again = await self._read_again(prompts, alone=alone)
        read = await asyncio.gather(*(one.read_all(prompts) for one in self.siblings))
        healthy = list(zip(*read, strict=True)) if read else [()] * len(prompts)
        for prompt, reading, other, siblings in zip(prompts, readings, again, healthy, strict=True):
            if reading is not None and is_uncertain(reading):
                self.probes.append(
                    Probe(
                        id=f"p{len(self.probes):03}",
                        prompt=prompt,
                        reading=reading,
                        again=other,
                        sibling=siblings[0] if siblings else None,
                        siblings=tuple(siblings[1:]),
                    )
                )

    async def _read_again(
        self, prompts: Sequence[str], *, alone: bool
    ) -> list[tuple[RepeatedReading, ...]]:
        """Return the further answers to each prompt, those that are equal once."""
        many = self.server.in_flight
        loads = [many]
        if alone:
            loads = [1] * self.repeats + ([many] * self.repeats if self.repeats > 1 else [])
        found: list[list[RepeatedReading]] = [[] for _ in prompts]
        for load in loads:
            readings = await self.server.read_all(prompts, at_once=load)
            for known, reading in zip(found, readings, strict=True):
                if reading is not None:
                    _count(known, RepeatedReading(reading=reading, in_flight=load))
        return [tuple(known) for known in found]


def _count(known: list[RepeatedReading], one: RepeatedReading) -> None:
    """Add an answer to those that are known, or count it once more."""
    for place, other in enumerate(known):
        if (other.in_flight, other.reading) == (one.in_flight, one.reading):
            known[place] = msgspec.structs.replace(other, times=other.times + 1)
            return
    known.append(one)


def break_off(prompt: str, answer: AnswerTokens) -> Iterator[str]:
    """Yield a prompt with its answer up to each uncertain token."""
    begin = len(answer.text) - sum(len(token.text) for token in answer.tokens)
    if not answer.text.endswith("".join(token.text for token in answer.tokens)):
        return  # Parts of characters, or special tokens, cannot be written as text.
    for token in answer.tokens:
        if UNCERTAIN[0] <= max([token.logprob, *token.top.values()]) <= UNCERTAIN[1]:
            yield prompt + answer.text[:begin]
        begin += len(token.text)


def is_uncertain(reading: ProbeReading) -> bool:
    """Return True if the likeliest first token is uncertain enough for a probe."""
    if not reading.tokens or reading.skipped:
        return bool(reading.tokens)
    first = reading.tokens[0]
    likeliest = max([first.logprob, *first.top.values()])
    return UNCERTAIN[0] - SLACK <= likeliest <= UNCERTAIN[1] + SLACK


def describe_protocol(
    server: AskedServer, texts: Sequence[str], file: Path | None, tasks: Sequence[str]
) -> dict[str, str]:
    """Return what decides the probes and the answers of a server."""
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    return {
        "texts": ", ".join(tasks) if file is None else file.name,
        "texts_sha256": digest,
        "route": server.route.value,
        "cache": "cache_salt" if server.salted else "asked twice",
        "max_tokens": str(TOKENS),
        "logprobs": str(TOP),
        "temperature": "0",
    }


def measure_step(probes: Sequence[Probe]) -> float:
    """Return the step of the log-probabilities, in nats."""
    return find_step([probe.reading for probe in probes])


SHORTEST, LONGEST = 130, 450
"""Lengths of prefixes in tokens: more than two blocks of 64 tokens, so that a KV transfer is
tested, with all remainders."""
CHARS_PER_TOKEN = 2.0
"""A first guess, until the server has counted."""
ANSWER_ROOM = 40
"""Tokens of the context that are left free for the answer and a wrong guess of the length."""
_END_OF_WORD = re.compile(r"\w(?=\s)")


class CandidateCutter:
    """Cuts one prefix after the other, each of texts in random order.

    Each begins with another text, as long as there are such, so that a prefix cache holds no long
    beginning in common. `per_token` is the number of characters per token, and `longest` the length
    in tokens that the server allows.
    """

    def __init__(self, texts: Sequence[str], seed: int) -> None:
        self._texts, self._rng = texts, random.Random(f"{seed}:verify")
        self._order = self._rng.sample(range(len(texts)), len(texts))
        self._number = 0
        self.per_token, self.longest = CHARS_PER_TOKEN, LONGEST
        self._room: int | None = None

    def fit(self, context_tokens: int) -> None:
        """Limit the length of prefixes to what a context of `context_tokens` has room for."""
        self._room = max(ANSWER_ROOM, context_tokens - ANSWER_ROOM)
        self.longest = min(self.longest, self._room)

    def choose(self, texts: Sequence[str]) -> str:
        """Return one of several texts, at random."""
        return self._rng.choice(texts)

    def cut(self) -> str:
        """Return the next prefix."""
        shortest = min(SHORTEST, self.longest // 2)
        return self._cut(self._rng.uniform(shortest, self.longest))

    def cut_long(self, tokens: int) -> str | None:
        """Return a prefix of about that length, or None if the context has no room for it."""
        return None if self._room is not None and tokens > self._room else self._cut(tokens)

    def _cut(self, tokens: float) -> str:
        wanted = int(tokens * self.per_token)
        parts = [self._texts[self._order[self._number % len(self._order)]]]
        self._number += 1
        while sum(map(len, parts)) <= wanted:
            parts.append(self._texts[self._rng.choice(self._order)])
        text = "\n\n".join(parts)
        ends = [found.end() for found in _END_OF_WORD.finditer(text, wanted // 2, wanted)]
        return text[: ends[-1] if ends else wanted]
