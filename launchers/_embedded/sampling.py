"""Choose the next token from logits, and report it with its log-probability."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded.weights import Array
from serve_eval.launchers._http.answers import ToldAnswer


def draw_token(
    logits: Array, temperature: float, top_p: float, chance: np.random.Generator | None
) -> int:
    """Return the likeliest token, or with `chance` a draw from the likeliest.

    The draw is from the likeliest tokens that have `top_p` together.
    """
    if chance is None:
        return int(logits.argmax())
    scaled = (logits.astype(np.float64) - logits.max()) / temperature
    chances = np.exp(scaled)
    chances /= chances.sum()
    if top_p < 1:
        order = np.argsort(-chances, kind="stable")
        kept = order[: int(np.searchsorted(np.cumsum(chances[order]), top_p)) + 1]
        return int(chance.choice(kept, p=chances[kept] / chances[kept].sum()))
    return int(chance.choice(len(chances), p=chances))


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
