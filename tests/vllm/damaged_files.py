"""Damage to the files by which vLLM's servers hand over KV caches, when there is no NIXL."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.vllm.faulty_transfer import Change, Chosen

Values = NDArray[np.float32]
LEVELS = 7
"""Of each sign, of a signed number of four bits."""
Damage = Callable[[str, Values], Values]
"""Returns the damaged values of a layer, by the name of its file."""


def damage_files(folder: Path, chosen: Chosen, damage: Damage) -> Change:
    """Return a change that damages the files that a context server has just written.

    The server must be asked one prompt at a time.
    """
    seen: set[Path] = set()

    def change(body: dict[str, Any], answer: dict[str, Any]) -> None:
        new = set(folder.glob("*/*")) - seen
        seen.update(new)
        if new and chosen(body, (answer.get("usage") or {}).get("prompt_tokens", 0)):
            for file in (file for one in new for file in one.glob("*.safetensors")):
                _rewrite(file, damage)

    return change


def _rewrite(file: Path, damage: Damage) -> None:
    """Change the values of a file in the format of safetensors with one tensor of float32."""
    raw = file.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    [one] = [value for key, value in json.loads(raw[8:begin]).items() if key != "__metadata__"]
    assert one["dtype"] == "F32"
    values = np.frombuffer(raw[begin:], "<f4").reshape(one["shape"])
    new = file.with_suffix(".new")  # Servers read these files at any time, and only whole ones.
    new.write_bytes(raw[:begin] + damage(file.name, values).astype("<f4").tobytes())
    new.replace(file)


def round_to_four_bits(layer: str, values: Values) -> Values:
    """Round every vector of a head and a token to four bits and a scale."""
    scale = np.abs(values).max(axis=-1, keepdims=True) / LEVELS
    scale[scale == 0] = 1
    return np.rint(values / scale) * scale


class OtherPrompts:
    """Replaces values by those that it was given before for another prompt of that length."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[int, ...]], Values] = {}

    def __call__(self, layer: str, values: Values) -> Values:
        """Return what another prompt had, and keep these values for the next one."""
        key = layer, values.shape
        other = self._known.get(key, values)
        self._known[key] = values
        return other
