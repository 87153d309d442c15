"""Test the advice about lengths: the smallest modulus, and sizes that the server has."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy
import pytest

from serve_eval.schema import DeployedServer, DeploymentInfo, ServerInfo
from serve_eval.workflows.diagnose.candidates import (
    LENGTH,
    RESIDUE,
    Slice,
    describe_rest,
    reduce_modulus,
)
from serve_eval.workflows.diagnose.slice_words import (
    BLOCKS,
    CHUNKS,
    WINDOWS,
    find_sizes,
    is_multiple,
    list_fitting,
)

LENGTHS = [random.Random(i).randrange(20, 600) for i in range(800)]


@pytest.mark.parametrize(
    ("fault", "found", "told"),
    [
        ((8, 3), (16, 11), (8, 3)),  # of blocks of 8, one rest modulo 16 stood out
        ((8, 3), (64, 3), (8, 3)),
        ((16, 5), (16, 5), (16, 5)),
        ((32, 21), (32, 21), (32, 21)),
        ((2, 1), (16, 7), (2, 1)),
    ],
)
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_the_smallest_modulus_that_explains_a_loss_is_named(
    fault: tuple[int, int], found: tuple[int, int], told: tuple[int, int], rate: float
) -> None:
    rng = random.Random(1)
    fell = [i for i, n in enumerate(LENGTHS) if n % fault[0] == fault[1] and rng.random() < rate]
    inside = numpy.array([n % found[0] == found[1] for n in LENGTHS])
    one = Slice(RESIDUE, describe_rest(found[1], found[0]), inside, found[0])
    reduced = reduce_modulus(one, LENGTHS, fell)
    assert reduced.told == f"prompts whose length leaves {told[1]} modulo {told[0]}"
    assert reduced.inside.tolist() == [n % told[0] == told[1] for n in LENGTHS]


def test_other_slices_stay() -> None:
    several = numpy.array([n % 16 in (1, 2) for n in LENGTHS])
    for one in (
        Slice(RESIDUE, "1 to 2", several, 16),
        Slice(LENGTH, "more", numpy.array(LENGTHS) > 300, 300),
    ):
        assert reduce_modulus(one, LENGTHS, [0]) is one


@pytest.mark.parametrize(
    ("told", "sizes"),
    [
        ({"commands": (("vllm", "serve", "m", "--block-size", "32"),)}, {BLOCKS: {32}}),
        ({"commands": (("x", "--max-num-batched-tokens=2048"),)}, {CHUNKS: {2048}}),
        ({"commands": (("x", "--max_num_tokens", "many"),)}, {}),
        (
            {
                "deployment": DeploymentInfo(
                    workers=(
                        DeployedServer(
                            name="c",
                            url="http://h:1",
                            config={
                                "kv_cache_config": {
                                    "tokens_per_block": 64,
                                    "max_attention_window": [4096, 32768],
                                }
                            },
                            server_info={"max_num_tokens": 8192, "sliding_window": None},
                        ),
                    )
                )
            },
            {BLOCKS: {64}, WINDOWS: {4096, 32768}, CHUNKS: {8192}},
        ),
    ],
)
def test_sizes_are_read_from_commands_and_configs(
    told: Mapping[str, Any], sizes: Mapping[str, set[int]]
) -> None:
    assert find_sizes(ServerInfo(**told)) == sizes


@pytest.mark.parametrize(
    ("length", "fits"),
    [(38, []), (2048, [CHUNKS]), (2000, [CHUNKS]), (4096, [WINDOWS]), (3000, [])],
)
def test_an_advice_about_a_length_needs_a_size_that_fits(length: int, fits: list[str]) -> None:
    """Fails if every length gets one: chunked prefill for "prompts of more than 38 tokens"."""
    assert list_fitting(length, {CHUNKS: {2048}, WINDOWS: {4096}, BLOCKS: {32}}) == fits
    assert list_fitting(length, {}) == []


def test_a_modulus_fits_blocks_of_its_multiples() -> None:
    assert is_multiple(16, {BLOCKS: {32}})
    assert is_multiple(32, {CHUNKS: {2048}})
    assert not is_multiple(64, {BLOCKS: {32}})
    assert not is_multiple(16, {})
