"""Report a token with its log-probability and the likeliest alternatives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded.weights import Array
from serve_eval.launchers._http.answers import ToldAnswer


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
