"""Shuffle samples in the order of TensorRT-LLM's suite."""

from __future__ import annotations


def shuffle(count: int, seed: int) -> list[int]:
    """Return the order of `datasets.Dataset.shuffle(seed)`."""
    import numpy

    return [int(i) for i in numpy.random.default_rng(seed).permutation(count)]
