"""Shape the distribution of the next token by a request's sampling fields, in vLLM's order.

Penalties come first, then the temperature, min_p, top_k and top_p
(vllm/v1/sample/sampler.py). Log-probabilities that are reported are those before all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded.weights import Array
from serve_eval.launchers._http.errors import bad_request

ROUNDED = 1e-6
"""Share by which two equal probabilities may differ after rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
