"""The embedded model as a function of its parameters: a Llama with tied embeddings, in torch.

Equal matrices of all layers are in one tensor, for few large products and few large steps of the
optimiser. Attention is written out, because torch's own gradient in bf16 takes five times as long
on a CPU.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 - its usual name

VOCABULARY, WIDTH, LAYERS, HEADS, INNER = 448, 128, 4, 4, 352
SIZE = WIDTH // HEADS
WINDOW = 512
"""Tokens in the context of the model."""
THETA, EPS = 10000.0, 1e-5

Parameters = dict[str, Tensor]
"""Tensors by name.

embed (vocabulary, width), norms (2 per layer and the last, width), and (layer, out, in): qkv, o,
gate_up, down.
"""
PARTS = {"qkv": 3, "o": 1, "gate_up": 2, "down": 1}
"""Number of matrices, one below the other, in a layer of these parameters."""


def initial(seed: int) -> Parameters:
    """Return initial parameters; layers begin as the identity: their last products are zero."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int, std: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * std).requires_grad_()

    std = 0.5 / math.sqrt(WIDTH)
    return {
        "embed": drawn(VOCABULARY, WIDTH, std=0.1),
        "norms": torch.ones(2 * LAYERS + 1, WIDTH, requires_grad=True),
        "qkv": drawn(LAYERS, 3 * WIDTH, WIDTH, std=std),
        "o": torch.zeros(LAYERS, WIDTH, WIDTH, requires_grad=True),
        "gate_up": drawn(LAYERS, 2 * INNER, WIDTH, std=std),
        "down": torch.zeros(LAYERS, WIDTH, INNER, requires_grad=True),
    }


def constants() -> tuple[Tensor, Tensor, Tensor]:
    """Return cosines and sines of the rotary positions (position, half), and the causal mask."""
    half = SIZE // 2
    angles = torch.outer(torch.arange(WINDOW), THETA ** (-torch.arange(half) / half))
    return angles.cos(), angles.sin(), torch.full((WINDOW, WINDOW), float("-inf")).triu(1)


def logits(p: Parameters, ids: Tensor, fixed: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Return logits (row x position, vocabulary) after each of `ids` (row, position).

    Products are in bf16.
    """
    rows, length = ids.shape
    norms = p["norms"].unbind(0)
    qkv, o, gate_up, down = (p[name].bfloat16().unbind(0) for name in PARTS)
    cos, sin, mask = (
        fixed[0][:length, None].bfloat16(),
        fixed[1][:length, None].bfloat16(),
        fixed[2].bfloat16(),
    )
    x = F.embedding(ids.flatten(), p["embed"])
    for i in range(LAYERS):
        h = F.rms_norm(x, (WIDTH,), norms[2 * i], EPS).bfloat16()
        heads = F.linear(h, qkv[i]).view(rows, length, 3 * HEADS, SIZE)
        q, k = turned(heads[:, :, : 2 * HEADS], cos, sin).chunk(2, dim=2)
        q, k, v = (
            part.transpose(1, 2).reshape(rows * HEADS, length, SIZE)
            for part in (q, k, heads[:, :, 2 * HEADS :])
        )
        weights = torch.baddbmm(mask[:length, :length], q, k.mT, alpha=SIZE**-0.5).softmax(dim=-1)
        mixed = (
            torch.bmm(weights, v)
            .view(rows, HEADS, length, SIZE)
            .transpose(1, 2)
            .reshape(rows * length, WIDTH)
        )
        x = x + F.linear(mixed, o[i])
        h = F.rms_norm(x, (WIDTH,), norms[2 * i + 1], EPS).bfloat16()
        gate, up = F.linear(h, gate_up[i]).chunk(2, dim=-1)
        x = x + F.linear(F.silu(gate) * up, down[i])
    return F.linear(
        F.rms_norm(x, (WIDTH,), norms[-1], EPS).bfloat16(), p["embed"].bfloat16()
    ).float()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x with rotary positions applied in Llama's halves."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
