"""Generate the whole set: requests of all kinds in one order, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import msgspec

from serve_eval.schema import Override, Sample
from serve_eval.tasks._tool_calls.guided import GUIDED_KINDS
from serve_eval.tasks._tool_calls.tooled import TOOL_KINDS, Kind

SET_VERSION = 1
"""Rises when a seed gives other requests."""
KINDS: Mapping[str, tuple[int, Kind]] = {**TOOL_KINDS, **GUIDED_KINDS}
OF_TRTLLM = ("json_trtllm", "regex", "ebnf", "structural_tag")
"""Kinds with fields that OpenAI does not have."""
COMMON = tuple(kind for kind in KINDS if kind not in OF_TRTLLM)
KIND, SHAPE = "kind", "shape"
"""Keys of the metadata of a sample."""


def generate_samples(seed: int, kinds: Collection[str]) -> list[Sample]:
    """Return the requests of these kinds, mixed so that any part has all kinds."""
    placed = [
        ((i + 0.5) / KINDS[kind][0], kind, i)
        for kind in KINDS
        if kind in kinds
        for i in range(KINDS[kind][0])
    ]
    return [_generate_sample(seed, kind, i) for _, kind, i in sorted(placed)]


def _generate_sample(seed: int, kind: str, i: int) -> Sample:
    asked = KINDS[kind][1](i, random.Random(f"{seed}:{kind}:{i}"))
    return Sample(
        id=f"{kind}-{i}",
        prompt=asked.turns,
        target=msgspec.json.encode(asked.expected).decode(),
        metadata={KIND: kind, **({SHAPE: asked.shape} if asked.shape else {})},
        override=Override(extra=asked.fields),
    )
