"""Generate many answers at once in one thread, and reuse the beginnings of prompts.

A turn takes in some of the waiting prompts, and generates a token per sequence. Sequences join and
leave between turns. A prompt is taken in by chunks, so that a long one does not block others.

The oldest blocks leave for host memory, if there is any, and come back when they are found there. A
prompt of which a part is cached is computed in other pieces, so the last bits of its numbers may
differ.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from serve_eval.launchers._embedded.damage import CacheFault
from serve_eval.launchers._embedded.generation import (
    Generation,
    Wanted,
    build_token,
    draw_token,
    logprobs_of,
    penalise,
)
from serve_eval.launchers._embedded.model import Array, Cache, Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
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


BLOCK = 16
"""Tokens of a block."""


class _Block(NamedTuple):
    """Keys and values (layers x heads x tokens x size)."""

    keys: Array
    values: Array


class PrefixCache:
    """Blocks by all tokens up to their end, with room for `blocks` and then `host_blocks`.

    Faults, for tests of what finds them: with `hits`, every block that is found has lost its
    values; with `reload`, a block that comes back from host memory holds those of another; with
    `evicted`, a block without room is still found, and holds those of the one that took its place.
    """

    def __init__(self, blocks: int, host_blocks: int = 0, fault: CacheFault = "none") -> None:
        self._blocks, self._host_blocks, self._fault = blocks, host_blocks, fault
        self._near = OrderedDict[bytes, _Block]()
        self._far = OrderedDict[bytes, _Block]()
        self._lost: dict[bytes, _Block] = {}

    def find(self, ids: Sequence[int], salt: str, cache: Cache, row: int) -> int:
        """Copy the cached beginning of a prompt into a row, and return its tokens.

        The last token is always left to be computed.
        """
        found = 0
        for key in _keys(ids[:-1], salt):
            if (block := self._take(key)) is None:
                break
            at = slice(found, found + BLOCK)
            cache.keys[:, row, :, at], cache.values[:, row, :, at] = block
            found += BLOCK
        return found

    def keep(self, ids: Sequence[int], salt: str, cache: Cache, row: int) -> None:
        """Store the blocks of a prompt, which a row of the cache holds."""
        for number, key in enumerate(_keys(ids, salt)):
            at = slice(number * BLOCK, (number + 1) * BLOCK)
            if key not in self._near:
                block = _Block(cache.keys[:, row, :, at].copy(), cache.values[:, row, :, at].copy())
                self._put(key, block)
            self._near.move_to_end(key)

    def _take(self, key: bytes) -> _Block | None:
        block = self._near.get(key)
        if block is None and (block := self._far.pop(key, None)) is not None:
            if self._fault == "reload" and self._near:
                block = self._near[next(reversed(self._near))]
            self._put(key, block)
        if block is None:
            return self._lost.get(key)
        return (
            block._replace(values=np.zeros_like(block.values)) if self._fault == "hits" else block
        )

    def _put(self, key: bytes, block: _Block) -> None:
        """Put a block in its place; the oldest one leaves."""
        self._near[key] = block
        self._lost.pop(key, None)
        while len(self._near) > self._blocks:
            old, content = self._near.popitem(last=False)
            self._far[old] = content
        while len(self._far) > self._host_blocks:
            old, _ = self._far.popitem(last=False)
            if self._fault == "evicted":
                self._lost[old] = block


class PrefixCaching(NamedTuple):
    """The blocks of the prefix cache of each model on the device (0: none) and behind it."""

    blocks: int = 0
    host_blocks: int = 0
    fault: CacheFault = "none"

    def build(self) -> PrefixCache | None:
        return PrefixCache(*self) if self.blocks else None


NO_CACHE = PrefixCaching()


def _keys(ids: Sequence[int], salt: str) -> Iterator[bytes]:
    """Yield the key of every whole block: a hash of the salt and of all tokens up to its end."""
    found = hashlib.blake2b(salt.encode(), digest_size=16)
    for end in range(BLOCK, len(ids) + 1, BLOCK):
        found.update(np.asarray(ids[end - BLOCK : end], dtype=np.int64).tobytes())
        yield found.digest()
