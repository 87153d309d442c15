"""The sampling fields of a request at the stand-in, which choose among its made-up answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from serve_eval.launchers._standin.fields import Request

_NEUTRAL: Mapping[str, float] = {
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_LEAST_P = 0.01


class Shaped(NamedTuple):
    """The seed of an answer (None: it is greedy), and the values that are not neutral."""

    seed: int | None
    marks: str


def shape(request: Request, defaults: Mapping[str, float]) -> Shaped:
    """Return what of a request chooses an answer; a field that it lacks has the default.

    Without a temperature it is 1. Penalties change greedy answers too. A distribution with one
    token left is greedy.
    """
    told = {
        name: value
        for name in _NEUTRAL
        if name in request.model_fields_set and (value := getattr(request, name)) is not None
    }
    found = {**defaults, **told}
    one_left = (
        found.get("top_k") == 1
        or found.get("top_p", 1.0) < _LEAST_P
        or found.get("min_p", 0.0) >= 1.0
    )
    greedy = found.get("temperature", 1.0) == 0 or one_left
    names = _PENALTIES if greedy else _NEUTRAL
    marks = [f"{name}={found[name]:g}" for name in names if found.get(name) not in _plain(name)]
    return Shaped(None if greedy else request.seed or 0, ",".join(marks))


def _plain(name: str) -> tuple[float | None, ...]:
    return None, _NEUTRAL[name]


def read_defaults(model: str, generation_config: object, told: str | None) -> dict[str, float]:
    """Return the sampling defaults of a server.

    They come from a model's generation_config.json if the server was started with
    --generation-config auto, or from a JSON object `told`. Raises ValueError for another text.
    """
    if told:
        given = json.loads(told)
    else:
        file = Path(model) / "generation_config.json"
        if generation_config != "auto" or not file.is_file():
            return {}
        given = json.loads(file.read_text())
    return {name: float(given[name]) for name in _NEUTRAL if given.get(name) is not None}
