"""One generation: its request, and the text as it grows, up to a stop string."""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from serve_eval.launchers._embedded.shaping import GREEDY, Shaping
from serve_eval.launchers._http.answers import ToldAnswer

_decoder = codecs.getincrementaldecoder("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A prompt of at least one token, and how to generate from it.

    `seed` None: a different draw each time. `turn` distinguishes the answers to one prompt.
    `ignore_end` goes on after the token that ends an answer. `logprobs` is the number of reported
    alternatives per token, `prompt_logprobs` the same for the prompt (None: no log-probabilities).
    Only prompts with the same `salt` share cached data.
    """

    ids: Sequence[int]
    max_tokens: int
    shaping: Shaping = GREEDY
    seed: int | None = None
    turn: int = 0
    stop: tuple[str, ...] = ()
    ignore_end: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    salt: str = ""


class Generation:
    """A running generation and, once it is `done`, its result.

    `steps` counts the generated tokens, including the one that ended it; `tokens` are those of the
    text. `length` is the number of tokens that have been seen, of the prompt and after it, of which
    `cached` came from the prefix cache. `chance`
    decides above temperature 0. `counts` has the tokens of the answer, for penalties.
    """

    def __init__(self, wanted: Wanted, changed: asyncio.Event) -> None:
        self.wanted = wanted
        self.length = self.steps = self.cached = 0
        self.prompt: list[ToldAnswer] = []
        self.tokens: list[ToldAnswer] = []
        self.text = ""
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.cancelled = False
        self.done, self._changed = asyncio.Event(), changed
        self._shown = self._chars = 0
        seed = secrets.randbits(64) if wanted.seed is None else wanted.seed % 2**64
        draws = wanted.shaping.temperature > 0
        self.chance = np.random.default_rng([seed, wanted.turn]) if draws else None
        self.counts: Counter[int] = Counter()
        # Bytes of an incomplete character wait for the rest of it.
        self._prompt_decoder, self._decoder = _decoder(errors="replace"), _decoder(errors="replace")

    @property
    def over(self) -> bool:
        """True if nothing more is to be generated."""
        return self.cancelled or self.finish_reason is not None

    def read(self, raw: bytes, *, last: bool) -> str:
        """Return the text that the bytes of the prompt's next token add."""
        return self._prompt_decoder.decode(raw, final=last)

    def speak(self, raw: bytes) -> str:
        """Return the text that the bytes of the next generated token add."""
        return self._decoder.decode(raw, final=self.steps + 1 >= self.wanted.max_tokens)

    def end(self) -> None:
        """Note that the token that ends an answer was generated."""
        self.steps += 1
        if rest := self._decoder.decode(b"", final=True):
            self.text += rest
            self.tokens[-1] = self.tokens[-1]._replace(text=self.tokens[-1].text + rest)
        self.finish("stop")

    def add(self, token: ToldAnswer) -> None:
        """Add one token, and end if it completes a stop string or is the last one."""
        before = len(self.text)
        self.steps += 1
        self.text += token.text
        self.tokens.append(token)
        found = [
            (at, stop)
            for stop in self.wanted.stop
            if (at := self.text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if found:
            at, self.stop_reason = min(found)
            self.text = self.text[:at]
            starts = accumulate((len(one.text) for one in self.tokens[:-1]), initial=0)
            self.tokens = [
                one for one, start in zip(self.tokens, starts, strict=True) if start < at
            ]
            self.finish("stop")
        elif self.steps >= self.wanted.max_tokens:
            self.finish("length")
        else:
            self._changed.set()

    def finish(self, reason: str) -> None:
        """End the generation, for a reason in OpenAI's words."""
        self.finish_reason = reason
        self.done.set()
        self._changed.set()

    def news(self) -> tuple[str, Sequence[ToldAnswer]]:
        """Return the text and tokens since the last call, in whole tokens.

        Holds back text that may still become a stop string.
        """
        first, begin = self._shown, self._chars
        if self.done.is_set():
            self._shown, self._chars = len(self.tokens), len(self.text)
        else:
            sure = len(self.text) - self._count_held()
            while (
                self._shown < len(self.tokens)
                and self._chars + len(self.tokens[self._shown].text) <= sure
            ):
                self._chars += len(self.tokens[self._shown].text)
                self._shown += 1
        return self.text[begin : self._chars], self.tokens[first : self._shown]

    def _count_held(self) -> int:
        """Return the length of the end that may still become a stop string."""
        stops = self.wanted.stop
        return max(
            (
                size
                for stop in stops
                for size in range(1, len(stop))
                if self.text.endswith(stop[:size])
            ),
            default=0,
        )
