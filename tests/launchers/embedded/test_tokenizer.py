"""Test text to tokens and back with hand-made merges."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.launchers._embedded.tokenizer import Tokenizer
from tests.launchers.embedded import tiny


@pytest.fixture(scope="module")
def merging(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Return the tiny model's tokenizer with some merges, in order of priority."""
    content = json.loads((folder / "tokenizer.json").read_text())
    merges = [["h", "e"], ["Ġ", "h"], ["l", "l"], ["he", "ll"], ["1", "2"], ["Ġ", "Ġ"], ["'", "s"]]
    vocab = content["model"]["vocab"]
    for merge in merges:
        vocab["".join(merge)] = len(vocab)
    content["model"]["merges"] = merges
    path = tmp_path_factory.mktemp("merging") / "tokenizer.json"
    path.write_text(json.dumps(content))
    return Tokenizer(path)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("hello", ["hell", "o"]),
        (" hello", [" ", "hell", "o"]),  # "he" is merged before the blank could be
        ("hi h", ["h", "i", " h"]),
        ("12", ["1", "2"]),  # every digit is a token, although there is a merge
        ("a   b", ["a", "  ", " ", "b"]),
        ("it's", ["i", "t", "'s"]),
        ("<|user|>\nhell<|end|>", ["<|user|>", "\n", "hell", "<|end|>"]),
        ("<|user", ["<", "|", "u", "s", "e", "r"]),
        ("", []),
    ],
)
def test_a_text_is_merged_as_the_list_says(
    merging: Tokenizer, text: str, tokens: list[str]
) -> None:
    assert [merging.bytes_of(i).decode() for i in merging.encode(text)] == tokens


@given(st.text())
def test_every_text_comes_back(merging: Tokenizer, text: str) -> None:
    ids = merging.encode(text)
    assert b"".join(map(merging.bytes_of, ids)) == text.encode(errors="replace")
    assert all(0 <= i < tiny.VOCABULARY + 7 for i in ids)
