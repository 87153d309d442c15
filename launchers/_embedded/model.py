"""Compute a Llama in numpy over a cache of keys and values.

It computes a piece of one prompt, or one more token of many sequences together. The result for a
sequence does not depend on the rest of the batch. The last bits of a matrix product depend on its
shape, so products always have the same shapes: a step computes whole tiles of rows, and covers a
round number of positions.

Damage rounds every linear layer to few bits and back (round to nearest, symmetric, one scale per
row or per group of 32 columns), as weight-only quantisation does; embeddings and norms stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serve_eval.launchers._embedded.damage import Damage

TILE = 8
"""Rows of a product. With one row, each would be four times as slow; more than sixteen are no
faster."""
POSITIONS = 64
"""Minimum number of positions that a step covers; then twice as many, and so on. The zeros of
absent positions then change no sum, since longer sums are made of halves."""


class Cache:
    """Keys and values of up to `rows` sequences.

    Those of a step are the first ones, so that it needs no copies.
    """

    def __init__(self, layers: int, rows: int, heads: int, size: int, window: int) -> None:
        self.keys, self.values = (
            np.zeros((layers, rows, heads, window, size), dtype=np.float32) for _ in range(2)
        )

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of a row."""
        for kept in (self.keys, self.values):
            kept[:, target, :, :length] = kept[:, source, :, :length]


class Model:
    """The weights of a folder in the layout of the hub, ready for products from the right.

    `window` is the maximum number of tokens of a sequence, `end` the id of the token that ends it.

    Raises ValueError for anything but a plain Llama: every head with its own keys, and tied
    embeddings.
    """

    def __init__(self, folder: Path, damage: Damage = "none") -> None:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        _check(config, folder)
        self.window: int = config["max_position_embeddings"]
        self.end: int = config["eos_token_id"]
        self.vocabulary: int = config["vocab_size"]
        self._heads: int = config["num_attention_heads"]
        self._size: int = config["hidden_size"] // self._heads
        self._eps = np.float32(config["rms_norm_eps"])
        tensors = read(folder, damage)
        self._embedding = tensors["model.embed_tokens.weight"]
        self._output = _columns([self._embedding], tensors["model.norm.weight"])
        self._layers = [
            _layer(tensors, f"model.layers.{i}.", self._size)
            for i in range(config["num_hidden_layers"])
        ]
        half = self._size // 2
        angles = np.outer(np.arange(self.window), config["rope_theta"] ** (-np.arange(half) / half))
        self._turns = np.exp(1j * angles).astype(np.complex64)[:, None, None]

    def cache(self, rows: int) -> Cache:
        """Return a cache for that number of sequences, with room for what a step computes."""
        return Cache(
            len(self._layers), -(-rows // TILE) * TILE, self._heads, self._size, self.window
        )

    def extend(
        self, ids: Sequence[int], start: int, cache: Cache, row: int, *, every: bool = False
    ) -> Array:
        """Add tokens to a row of the cache that holds `start` of them.

        Returns the logits (vocabulary) after the last one, or with `every` those after each (tokens
        x vocabulary).
        """
        end = start + len(ids)
        x = self._embedding[np.asarray(ids)]
        turns = self._turns[start:end]
        later = np.arange(end) > np.arange(start, end)[:, None]
        hidden = np.where(later, np.float32(-np.inf), np.float32(0))
        for number, layer in enumerate(self._layers):
            q, k, v = self._qkv(x, layer, turns)
            keys, values = cache.keys[number, row, :, :end], cache.values[number, row, :, :end]
            keys[:, start:], values[:, start:] = k.transpose(1, 0, 2), v.transpose(1, 0, 2)
            if layer is self._layers[-1] and not every:
                x, q, hidden = x[-1:], q[-1:], hidden[-1:]
            weights, sums = _weigh(q.transpose(1, 0, 2) @ keys.transpose(0, 2, 1) + hidden)
            x = self._after(
                x, (weights @ values / sums).transpose(1, 0, 2).reshape(len(x), -1), layer
            )
        logits = self._logits(x)
        return logits if every else logits[0]

    def step(self, ids: Sequence[int], lengths: Sequence[int], cache: Cache) -> Array:
        """Return the logits (rows x vocabulary) after one more token for each of the first rows.

        The cache holds `lengths` tokens of them.
        """
        rows = len(ids)
        over = -rows % TILE
        at = np.asarray([*lengths, *[0] * over])
        looked = POSITIONS
        while looked <= max(lengths):
            looked *= 2
        looked = min(looked, self.window)
        x = self._embedding[[*ids, *[0] * over]]
        turns = self._turns[at]
        hidden = np.where(
            np.arange(looked) > at[:rows, None, None], np.float32(-np.inf), np.float32(0)
        )
        each = np.arange(rows + over)
        mixed = np.zeros((rows + over, self._heads, self._size), dtype=np.float32)
        for number, layer in enumerate(self._layers):
            q, k, v = self._qkv(x, layer, turns)
            cache.keys[number, each, :, at], cache.values[number, each, :, at] = k, v
            scores = (cache.keys[number, :rows, :, :looked] @ q[:rows, :, :, None])[..., 0] + hidden
            weights, sums = _weigh(scores)
            mixed[:rows] = (weights[:, :, None] @ cache.values[number, :rows, :, :looked])[
                :, :, 0
            ] / sums
            x = self._after(x, mixed.reshape(rows + over, -1), layer)
        return self._logits(x)[:rows]

    def _qkv(
        self, states: Array, layer: dict[str, Array], turns: NDArray[np.complex64]
    ) -> tuple[Array, Array, Array]:
        """Return queries, keys and values (tokens x heads x size).

        The first two are rotated by their positions.
        """
        shaped = _product(_normalize(states, self._eps), layer["qkv"]).reshape(
            -1, 3, self._heads, self._size
        )
        turned = (shaped.view(np.complex64)[:, :2] * turns).view(np.float32)
        return turned[:, 0], turned[:, 1], shaped[:, 2]

    def _after(self, states: Array, mixed: Array, layer: dict[str, Array]) -> Array:
        states = states + _product(mixed, layer["out"])
        both = _product(_normalize(states, self._eps), layer["gate_up"])
        gate, up = both[:, : both.shape[1] // 2], both[:, both.shape[1] // 2 :]
        return np.asarray(states + _product(gate / (1 + np.exp(-gate)) * up, layer["down"]))

    def _logits(self, states: Array) -> Array:
        return _product(_normalize(states, self._eps), self._output)


def _check(config: dict[str, Any], folder: Path) -> None:
    wanted = {
        "model_type": "llama",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "num_key_value_heads": config["num_attention_heads"],
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
    }
    for name, value in wanted.items():
        if config.get(name, value) != value:
            raise ValueError(
                f"{folder / 'config.json'}: {name} is {config[name]!r}, but only"
                f" {value!r} is supported"
            )


def _layer(tensors: dict[str, Array], prefix: str, size: int) -> dict[str, Array]:
    def of(part: str, *names: str) -> list[Array]:
        return [tensors[f"{prefix}{part}.{name}_proj.weight"] for name in names]

    q, k, v = of("self_attn", "q", "k", "v")
    # The weights of queries include the scale of attention, which saves a product per step.
    q, k = _pair_halves(q / np.float32(size**0.5), size), _pair_halves(k, size)
    return {
        "qkv": _columns([q, k, v], tensors[f"{prefix}input_layernorm.weight"]),
        "out": _columns(of("self_attn", "o")),
        "gate_up": _columns(
            of("mlp", "gate", "up"), tensors[f"{prefix}post_attention_layernorm.weight"]
        ),
        "down": _columns(of("mlp", "down")),
    }


def _columns(weights: Sequence[Array], norm: Array | None = None) -> Array:
    """Return weights for one product from the right, including those of the norm before it."""
    joined = np.concatenate(weights).T
    return np.ascontiguousarray(joined if norm is None else joined * norm[:, None])


def _pair_halves(weight: Array, size: int) -> Array:
    """Bring the two halves of each head side by side.

    Llama rotates the first half of a head's numbers against the second. Each pair is then a complex
    number, which one product rotates.
    """
    return np.ascontiguousarray(
        weight.reshape(-1, 2, size // 2, weight.shape[1]).swapaxes(1, 2)
    ).reshape(weight.shape)


def _product(states: Array, weight: Array) -> Array:
    """Multiply whole tiles one by one, anything else in one product."""
    if len(states) % TILE:
        return np.asarray(states @ weight)
    return np.asarray(states.reshape(-1, TILE, states.shape[1]) @ weight).reshape(len(states), -1)


def _normalize(states: Array, eps: np.float32) -> Array:
    squares = np.einsum("ij,ij->i", states, states)[:, None] / np.float32(states.shape[1])
    return np.asarray(states / np.sqrt(squares + eps))


def _weigh(scores: Array) -> tuple[Array, Array]:
    """Compute the weights of attention in place; return them and their sums, the divisors."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    return scores, scores.sum(axis=-1, keepdims=True)


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
