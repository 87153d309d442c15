"""The order in which TensorRT-LLM's suite asks most sets."""

from __future__ import annotations


def shuffle(count: int, seed: int) -> list[int]:
    """The order of `datasets.Dataset.shuffle(seed)`."""
    import numpy

    return [int(i) for i in numpy.random.default_rng(seed).permutation(count)]
