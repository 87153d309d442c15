"""Test the model in pieces and batches against a plain pass over the whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.launchers._embedded.model import TILE, Model
from tests.launchers.embedded import tiny

TENSORS = tiny.tensors(0)


def _ids(count: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, tiny.VOCABULARY, count)]


@settings(max_examples=10)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(0, 99))
def test_a_prompt_in_pieces_gives_what_a_plain_pass_gives(
    model: Model, pieces: list[int], seed: int
) -> None:
    ids = _ids(sum(pieces), seed)
    expected, cache, start = tiny.logits(TENSORS, ids), model.cache(1), 0
    for size in pieces:
        every = model.extend(ids[start : start + size], start, cache, 0, every=True)
        assert every == pytest.approx(expected[start : start + size], abs=1e-3)
        last = model.extend(ids[start : start + size], start, cache, 0)
        assert last == pytest.approx(expected[start + size - 1], abs=1e-3)
        start += size


def test_a_step_of_sequences_of_any_lengths_gives_what_plain_passes_give(model: Model) -> None:
    prompts = [_ids(count, count) for count in (1, 2, 63, 64, 65, 130, 260, 7, 31)]
    cache = model.cache(len(prompts))
    for row, ids in enumerate(prompts):
        model.extend(ids, 0, cache, row)
    for step in range(3):
        lengths = [len(ids) for ids in prompts]
        prompts = [[*ids, 5 + step] for ids in prompts]
        found = model.step([5 + step] * len(prompts), lengths, cache)
        for row, ids in zip(found, prompts, strict=True):
            assert row == pytest.approx(tiny.logits(TENSORS, ids)[-1], abs=1e-3)


def test_a_sequence_that_moves_to_another_row_goes_on_as_before(model: Model) -> None:
    ids, cache = _ids(20), model.cache(2 * TILE)
    model.extend(ids, 0, cache, TILE + 3)
    model.extend(_ids(30, 2), 0, cache, 0)
    cache.move(TILE + 3, 0, len(ids))
    assert model.step([9], [20], cache)[0] == pytest.approx(
        tiny.logits(TENSORS, [*ids, 9])[-1], abs=1e-3
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_key_value_heads", 1), ("tie_word_embeddings", False), ("model_type", "gpt2")],
)
def test_a_model_that_is_no_such_llama_is_refused_by_name(
    folder: Path, tmp_path: Path, name: str, value: object
) -> None:
    config = json.loads((folder / "config.json").read_text()) | {name: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"{name} is .*only .* is supported"):
        Model(tmp_path)
