"""Measure how far numerics and faults of the embedded model are from each other, in nats.

The embedded model reads texts in one pass for each kind of arithmetic. Probes are the places where
its next token is uncertain, as those of `serve_eval verify`. The distances are those of one token.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from serve_eval.evaluation.prepare import prepare
from serve_eval.launchers._embedded import model as arithmetic
from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Plan, Spec
from serve_eval.workflows.verify.reference import UNCERTAIN
from serve_eval.workflows.verify.verify import texts_of_tasks

Array = NDArray[Any]
BF16_BITS, FP8_BITS, LEVELS = 8, 4, 127
"""Significant bits of bfloat16 and of FP8 (e4m3), and the levels of eight-bit integers."""
RANK, SIZE = 8, 0.1
"""Rank of a LoRA adapter, and its size as a share of the weights that it changes."""
FIRST = 8
"""Tokens of a text before the first probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """The arithmetic of a model.

    `fused`: the results of a product become bfloat16; False: its inputs too; None: neither.
    `keys` rounds the keys and values of the layers in `layers` (None: of all).
    """

    weights: Damage = "none"
    fused: bool | None = None
    keys: Callable[[Array], Array] | None = None
    layers: tuple[int, ...] | None = None
    activations: bool = False
    adapter: bool = False


def round_bits(values, bits):
    """Return values with that many significant bits."""
    parts, exponents = numpy.frexp(values)
    return numpy.ldexp(numpy.round(parts * 2.0**bits) / 2.0**bits, exponents).astype(numpy.float32)


def to_fp8(values):
    return round_bits(values, FP8_BITS)


def to_half(values):
    return values.astype(numpy.float16).astype(numpy.float32)


def to_int8(values):
    """Return rows of activations with eight bits each, as W8A8 rounds them."""
    step = numpy.abs(values).max(axis=-1, keepdims=True) / LEVELS + 1e-12
    return (numpy.round(values / step) * step).astype(numpy.float32)


class RoundedModel(Model):
    """The embedded model in another arithmetic."""

    def __init__(self, how):
        super().__init__(WEIGHTS, how.weights)
        self._how, self._layer_number = how, 0
        if how.adapter:
            random = numpy.random.default_rng(1)
            for layer in self._layers:
                for name in ("out", "down"):
                    layer[name] = layer[name] + draw_adapter(random, layer[name])

    def _qkv(self, states, layer, turns):
        q, k, v = super()._qkv(states, layer, turns)
        number = next(i for i, one in enumerate(self._layers) if one is layer)
        if self._how.keys and (self._how.layers is None or number in self._how.layers):
            k, v = self._how.keys(k), self._how.keys(v)
        return q, k, v


def draw_adapter(random, weight):
    """Return the product of a LoRA adapter."""
    rows, columns = weight.shape
    found = random.standard_normal((rows, RANK)) @ random.standard_normal((RANK, columns))
    scale = SIZE * numpy.linalg.norm(weight) / numpy.linalg.norm(found)
    return (scale * found).astype(numpy.float32)


@contextmanager
def _products(how):
    """Round the inputs and the results of every product as wanted."""
    product = arithmetic._product

    def multiply(states, weight):
        if how.activations:
            states = to_int8(states)
        if how.fused is False:
            states = round_bits(states, BF16_BITS)
        found = product(states, weight)
        return found if how.fused is None else round_bits(found, BF16_BITS)

    arithmetic._product = multiply
    try:
        yield
    finally:
        arithmetic._product = product


def read(how, texts):
    """Return the log-probabilities (tokens x vocabulary) after each token of texts."""
    found, one = [], RoundedModel(how)
    with _products(how):
        for ids in texts:
            logits = one.extend(ids, 0, one.cache(1), 0, every=True)
            top = logits.max(axis=1, keepdims=True)
            found.append(logits - top - numpy.log(numpy.exp(logits - top).sum(axis=1))[:, None])
    return found


def read_texts(count):
    """Return the tokens of texts of word problems."""
    plan = Plan(
        model="m",
        launcher=Spec(name="external", options={"base_url": "http://127.0.0.1:9/v1"}),
        tasks=(Spec(name="word_problems"),),
        no_reference=True,
    )
    tokenizer = Tokenizer(WEIGHTS / "tokenizer.json")
    texts = texts_of_tasks(prepare(plan))[:count]
    return [tokenizer.encode(text)[:500] for text in texts]


def measure(reference, others, count=60):
    """Return the distances of each other arithmetic from a reference, one for each probe."""
    texts = read_texts(count)
    known = read(reference, texts)
    places = []
    for number, one in enumerate(known):
        top = one.max(axis=1)
        uncertain = (top >= UNCERTAIN[0]) & (top <= UNCERTAIN[1])
        uncertain[:FIRST] = False
        places += [(number, at, int(one[at].argmax())) for at in numpy.flatnonzero(uncertain)]
    own = numpy.array([known[number][at, token] for number, at, token in places])
    return {
        name: numpy.abs(
            own - numpy.array([found[number][at, token] for number, at, token in places])
        )
        for name, found in ((name, read(how, texts)) for name, how in others.items())
    }


OTHER_KERNELS, FLOAT32 = "bfloat16, other kernels", "float32"
REFERENCE = Arithmetic(fused=True)
SYSTEMS = {
    OTHER_KERNELS: Arithmetic(fused=False),
    FLOAT32: Arithmetic(),
    "four-bit weights": Arithmetic(weights="int4", fused=False),
    "four-bit weights in groups of 32": Arithmetic(weights="int4-g32", fused=False),
    "W8A8": Arithmetic(weights="int8", activations=True, fused=False),
    "KV cache in FP8": Arithmetic(keys=to_fp8, fused=False),
    "a missing LoRA adapter": Arithmetic(adapter=True, fused=False),
    "KV of one layer in half precision": Arithmetic(keys=to_half, layers=(1,), fused=False),
}


def main():
    for name, nats in measure(REFERENCE, SYSTEMS).items():
        print(
            f"{name}: {len(nats)} probes, median {numpy.median(nats):.2g}, largest {nats.max():.2g}"
        )


if __name__ == "__main__":
    main()
