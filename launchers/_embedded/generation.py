"""Generate one answer: shape and draw its tokens, until a stop string ends its text.

Penalties come first, then the temperature, min_p, top_k and top_p
(vllm/v1/sample/sampler.py). Log-probabilities that are reported are those before all of them.
"""

from __future__ import annotations

import asyncio
import codecs
import secrets
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_eval.frozen import freeze
from serve_eval.launchers._embedded.model import Array
from serve_eval.launchers._http.answers import ToldAnswer
from serve_eval.launchers._http.requests import bad_request

ROUNDED = 1e-6
"""Share by which two equal probabilities may differ after rounding."""


@freeze
class Shaping:
    """The sampling fields of one request, with their neutral values."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0

    @property
    def penalises(self) -> bool:
        """True if tokens that came before are less likely, or more."""
        return (
            self.repetition_penalty != 1
            or self.frequency_penalty != 0
            or self.presence_penalty != 0
        )


Logits = Array | NDArray[np.float64]
GREEDY = Shaping(temperature=0.0)
FIELDS = tuple(one.name for one in fields(Shaping))
_RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 100),
    "top_p": (0, 1),
    "top_k": (-1, 2**31),
    "min_p": (0, 1),
    "repetition_penalty": (1e-6, 100),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}


def read_shaping(body: Mapping[str, Any], defaults: Mapping[str, float]) -> Shaping:
    """Return the sampling fields of a request; one that it lacks has the server's default.

    Raises RefusedRequest for a value that is no number in its range.
    """
    told = {name: body[name] for name in FIELDS if body.get(name) is not None}
    found = {**defaults, **told}
    for name, value in found.items():
        low, high = _RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise bad_request(f"`{name}` must be a number")
        if not low <= value <= high:
            raise bad_request(f"`{name}` ({value}) must be between {low} and {high}")
    if "top_k" in found:
        found["top_k"] = int(found["top_k"])
    return Shaping(**found)


def penalise(
    logits: Array, shaping: Shaping, prompt: Collection[int], answer: Mapping[int, int]
) -> Logits:
    """Return logits in which tokens of the prompt and the answer are less likely.

    The repetition penalty divides positive logits and multiplies negative ones (Keskar et al. 2019,
    CTRL, section 4.1), for tokens of both; the others subtract, for tokens of the answer, whose
    counts `answer` has.
    """
    if not shaping.penalises:
        return logits
    found = logits.astype(np.float64)
    if shaping.repetition_penalty != 1:
        seen = np.fromiter({*prompt, *answer}, dtype=np.int64)
        chosen = found[seen]
        factor = shaping.repetition_penalty
        found[seen] = np.where(chosen > 0, chosen / factor, chosen * factor)
    for token, count in answer.items():
        found[token] -= shaping.frequency_penalty * count + shaping.presence_penalty
    return found


def draw_token(logits: Logits, shaping: Shaping, chance: np.random.Generator | None) -> int:
    """Return the likeliest token, or with `chance` a draw from the tokens that remain."""
    if chance is None:
        return int(logits.argmax())
    scaled = (logits.astype(np.float64) - logits.max()) / shaping.temperature
    chances: NDArray[np.float64] = np.exp(scaled)
    chances /= chances.sum()
    if shaping.min_p > 0:
        least = shaping.min_p * chances.max() * (1 - ROUNDED)  # so that a tie stays
        chances[chances < least] = 0
        chances /= chances.sum()
    if 0 < shaping.top_k < len(chances):
        chances[np.argsort(-chances, kind="stable")[shaping.top_k :]] = 0
        chances /= chances.sum()
    if shaping.top_p < 1:
        order = np.argsort(-chances, kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(chances[order]), shaping.top_p)) + 1]
        return int(chance.choice(kept, p=chances[kept] / chances[kept].sum()))
    return int(chance.choice(len(chances), p=chances))


_decoder = codecs.getincrementaldecoder("utf-8")


@freeze
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


def logprobs_of(logits: Array) -> NDArray[np.float64]:
    """Return natural logarithms of the probabilities, at temperature 1, along the last axis."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def build_token(
    token: int,
    text: str,
    logprobs: NDArray[np.float64],
    alternatives: int,
    bytes_of: Callable[[int], bytes],
) -> ToldAnswer:
    """Return a token, which adds `text`, with its log-probability and likeliest alternatives."""
    best = np.argsort(-logprobs, kind="stable")[:alternatives] if alternatives else ()
    top = tuple(
        _alone(int(i), float(logprobs[i]), place, bytes_of) for place, i in enumerate(best, 1)
    )
    rank = 1 + int((logprobs > logprobs[token]).sum())
    return ToldAnswer(
        text=text, raw=bytes_of(token), logprob=float(logprobs[token]), id=token, rank=rank, top=top
    )


def _alone(token: int, logprob: float, rank: int, bytes_of: Callable[[int], bytes]) -> ToldAnswer:
    raw = bytes_of(token)
    return ToldAnswer(
        text=raw.decode(errors="replace"), raw=raw, logprob=logprob, id=token, rank=rank
    )
