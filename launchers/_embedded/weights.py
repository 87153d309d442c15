"""Read the weights of the embedded model from safetensors, and damage them on demand.

Damage rounds every linear layer to few bits and back (round to nearest, symmetric, one scale per
row or per group of 32 columns), as weight-only quantisation does; embeddings and norms stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded.damage import Damage

Array = NDArray[np.float32]
_HOW: Mapping[Damage, tuple[int, int | None]] = {
    "int8": (8, None),
    "int4": (4, None),
    "int4-g32": (4, 32),
    "int3": (3, None),
}
"""Bits, and the size of a group (None: a row)."""


def read(folder: Path, damage: Damage = "none") -> dict[str, Array]:
    """Return the tensors of `model.safetensors` as float32, by name.

    Raises ValueError for a file with other types than F32 and BF16, OSError if there is none.
    """
    tensors = _safetensors(folder / "model.safetensors")
    if damage != "none":
        bits, group = _HOW[damage]
        tensors = {
            n: round_weight(t, bits, group) if n.endswith("_proj.weight") else t
            for n, t in tensors.items()
        }
    return tensors


def round_weight(weight: Array, bits: int, group: int | None) -> Array:
    """Return a matrix whose rows, or groups of columns, have 2^bits - 1 evenly spaced values."""
    most = 2 ** (bits - 1) - 1
    rows = weight.reshape(weight.shape[0], -1, group or weight.shape[1])
    scale = np.abs(rows).max(axis=-1, keepdims=True) / np.float32(most)
    scale[scale == 0] = 1
    return np.asarray(np.rint(rows / scale) * scale, dtype=np.float32).reshape(weight.shape)


def _safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a file.

    The format is a length, a header in JSON and the raw values (huggingface/safetensors, its
    README).
    """
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    header: dict[str, Any] = json.loads(raw[8:start])
    found = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        part = raw[start + first : start + end]
        if entry["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")
        elif entry["dtype"] == "F32":
            values = np.frombuffer(part, "<f4")
        else:
            raise ValueError(f"{path}: {name} is {entry['dtype']}; only BF16 and F32 are supported")
        found[name] = values.astype(np.float32).reshape(entry["shape"])
    return found
