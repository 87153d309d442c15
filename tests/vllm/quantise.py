"""Write the embedded model's weights as vLLM reads them: rounded, or in compressed-tensors.

`int3` rounds the linear layers to three bits and back. `w8a8` has weights of eight bits and rounds
activations when it computes; `w4a16` has weights of four bits, with a scale per group of 32
columns. The two formats are those of the compressed-tensors library.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded import model
from serve_eval.launchers.embedded import WEIGHTS

GROUP = 32
Tensors = Mapping[str, NDArray[Any]]


def write_model(kind: str, folder: Path) -> Path:
    """Write the model to a new folder and return it."""
    shutil.copytree(WEIGHTS, folder)
    linear = {
        name: tensor
        for name, tensor in model.read(WEIGHTS).items()
        if name.endswith("_proj.weight")
    }
    kept = {n: t for n, t in model.read(WEIGHTS).items() if n not in linear}
    found: dict[str, NDArray[Any]] = dict(kept)
    for name, tensor in linear.items():
        found |= _MAKE[kind](name.removesuffix(".weight"), tensor)
    _write_safetensors(folder / "model.safetensors", found)
    if kind in _SCHEMES:
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"] = _SCHEMES[kind]
        (folder / "config.json").write_text(json.dumps(config))
    return folder


def _round(name: str, weight: model.Array) -> Tensors:
    return {f"{name}.weight": model.round_weight(weight, 3, None)}


def _quantise_8(name: str, weight: model.Array) -> Tensors:
    scale = np.abs(weight).max(axis=1, keepdims=True) / np.float32(127)
    values = np.rint(weight / scale).astype(np.int8)
    return {f"{name}.weight": values, f"{name}.weight_scale": scale.astype(np.float32)}


def _quantise_4(name: str, weight: model.Array) -> Tensors:
    rows, columns = weight.shape
    groups = weight.reshape(rows, columns // GROUP, GROUP)
    scale = np.abs(groups).max(axis=2, keepdims=True) / np.float32(7)
    values = np.clip(np.rint(groups / scale), -8, 7).astype(np.int64).reshape(rows, columns)
    packed = np.zeros((rows, columns // 8), dtype=np.int64)
    for place in range(8):
        packed |= (values[:, place::8] + 8) << (4 * place)
    return {
        f"{name}.weight_packed": packed.astype(np.uint32).view(np.int32),
        f"{name}.weight_scale": scale.reshape(rows, -1).astype(np.float32),
        f"{name}.weight_shape": np.array([rows, columns], dtype=np.int64),
    }


_MAKE = {"int3": _round, "w8a8": _quantise_8, "w4a16": _quantise_4}


def _scheme(form: str, weight: Mapping[str, Any], inputs: Mapping[str, Any] | None) -> Any:
    base = {"type": "int", "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**base, "dynamic": False, **weight},
                "input_activations": None if inputs is None else {**base, **inputs},
            }
        },
    }


_SCHEMES: Mapping[str, Any] = {
    "w8a8": _scheme(
        "int-quantized",
        {"num_bits": 8, "strategy": "channel"},
        {"num_bits": 8, "strategy": "token", "dynamic": True},
    ),
    "w4a16": _scheme(
        "pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": GROUP}, None
    ),
}
_TYPES = {"int8": "I8", "int32": "I32", "int64": "I64"}


def _write_safetensors(path: Path, tensors: Tensors) -> None:
    """Write a file of the format that `launchers/_embedded/model.py` reads; floats as BF16."""
    header: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, tensor in tensors.items():
        if tensor.dtype == np.float32:
            kind, raw = "BF16", _to_bfloat16(tensor).tobytes()
        else:
            kind, raw = _TYPES[tensor.dtype.name], tensor.tobytes()
        end = at + len(raw)
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        parts.append(raw)
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    path.write_bytes(len(head).to_bytes(8, "little") + head + b"".join(parts))


def _to_bfloat16(values: model.Array) -> NDArray[np.uint16]:
    """Return the upper halves of the numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32).astype(np.uint64)
    return np.asarray(((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16))
