"""Continuous batching in one thread.

A turn takes in some of the waiting prompts, and generates a token per sequence. Sequences join and
leave between turns. A prompt is taken in by chunks, so that a long one does not block others.
"""

from __future__ import annotations

import asyncio
from collections import deque

from serve_eval.launchers._embedded.generation import Generation, Wanted
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.prefix_cache import PrefixCache
from serve_eval.launchers._embedded.sampling import build_token, logprobs_of
from serve_eval.launchers._embedded.shaping import draw_token, penalise
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers._embedded.weights import Array
from serve_eval.launchers._http.answers import ToldAnswer

ROWS = 32
"""Maximum number of sequences generated together; others wait."""
CHUNK = 64
"""Tokens of a prompt taken in together: the same for every prompt, under any load."""
PER_TURN = 2
"""Number of chunks that a turn takes in."""


class Engine:
    """A model with its tokenizer, and a prefix cache or none.

    Run `run` as a task; `submit` adds a generation.
    """

    def __init__(
        self, model: Model, tokenizer: Tokenizer, prefixes: PrefixCache | None = None
    ) -> None:
        self.model, self.tokenizer, self.prefixes = model, tokenizer, prefixes
        self._marks = frozenset(tokenizer.special.values())
        self._cache = model.cache(ROWS + 1)  # the last row is for the prompt that is being taken in
        self._waiting: deque[Generation] = deque()
        self._active: list[Generation] = []
        self._work = asyncio.Event()

    def submit(self, wanted: Wanted, changed: asyncio.Event) -> Generation:
        """Start a generation, which sets `changed` when it has news, after those that wait."""
        generation = Generation(wanted, changed)
        self._waiting.append(generation)
        self._work.set()
        return generation

    async def run(self) -> None:
        """Generate until cancelled."""
        while True:
            if not self._waiting and not self._active:
                self._work.clear()
                await self._work.wait()
            self.turn()
            await asyncio.sleep(0)

    def turn(self) -> None:
        """Take in some chunks of prompts, and generate one token for every sequence."""
        for _ in range(PER_TURN):
            while self._waiting and self._waiting[0].over:
                self._waiting.popleft()
            if self._waiting and len(self._active) < ROWS:
                self._take_in(self._waiting[0])
        if self._active:
            self._step()

    def _take_in(self, generation: Generation) -> None:
        """Take in the next chunk of a prompt; after the last one, generate the first token."""
        wanted, prefixes = generation.wanted, self.prefixes
        every = wanted.prompt_logprobs is not None
        if prefixes is not None and not generation.length and not every:
            found = prefixes.find(wanted.ids, wanted.salt, self._cache, ROWS)
            generation.length = generation.cached = found
        start = generation.length
        chunk = wanted.ids[start : start + CHUNK]
        logits = self.model.extend(chunk, start, self._cache, ROWS, every=every)
        generation.length += len(chunk)
        if every:
            self._tell_prompt(generation, start, logits)
            logits = logits[-1]
        if generation.length < len(wanted.ids):
            return
        self._waiting.popleft()
        if prefixes is not None:
            prefixes.keep(wanted.ids, wanted.salt, self._cache, ROWS)
        if wanted.max_tokens == 0:
            generation.finish("length")
            return
        self._cache.move(ROWS, len(self._active), generation.length)
        self._active.append(generation)
        self._append(generation, logits)
        self._let_go()

    def _step(self) -> None:
        ids = [generation.tokens[-1].id for generation in self._active]
        logits = self.model.step(
            ids, [generation.length for generation in self._active], self._cache
        )
        for generation, row in zip(self._active, logits, strict=True):
            generation.length += 1
            self._append(generation, row)
        self._let_go()

    def _let_go(self) -> None:
        """Remove finished sequences; the last sequence takes the place of each."""
        at = 0
        while at < len(self._active):
            if not self._active[at].over:
                at += 1
                continue
            last = self._active.pop()
            if at < len(self._active):
                self._cache.move(len(self._active), at, last.length)
                self._active[at] = last

    def _append(self, generation: Generation, logits: Array) -> None:
        """Append the next token of a sequence, chosen from its logits."""
        wanted = generation.wanted
        shaped = penalise(logits, wanted.shaping, wanted.ids, generation.counts)
        token = draw_token(shaped, wanted.shaping, generation.chance)
        generation.counts[token] += 1
        if token == self.model.end and not wanted.ignore_end:
            generation.end()
            return
        raw = self.tokenizer.bytes_of(token)
        text = generation.speak(b"" if token in self._marks else raw)
        if wanted.logprobs is None:
            generation.add(ToldAnswer(text, raw, None, token))
        else:
            generation.add(
                build_token(
                    token, text, logprobs_of(logits), wanted.logprobs, self.tokenizer.bytes_of
                )
            )

    def _tell_prompt(self, generation: Generation, start: int, logits: Array) -> None:
        """Note the log-probabilities of a prompt's tokens, from the logits after a chunk."""
        ids, bytes_of = generation.wanted.ids, self.tokenizer.bytes_of
        assert generation.wanted.prompt_logprobs is not None
        if start == 0:
            raw = bytes_of(ids[0])
            generation.prompt.append(
                ToldAnswer(generation.read(raw, last=len(ids) == 1), raw, None, ids[0])
            )
        for place, row in enumerate(logprobs_of(logits), start + 1):
            if place < len(ids):
                text = generation.read(bytes_of(ids[place]), last=place + 1 == len(ids))
                generation.prompt.append(
                    build_token(ids[place], text, row, generation.wanted.prompt_logprobs, bytes_of)
                )
