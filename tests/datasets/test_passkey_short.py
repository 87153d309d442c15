"""Test passkeys: given twice at the wanted depth, asked for at the end."""

from __future__ import annotations

import random

import pytest

from serve_eval.tasks._passkey import FILLER, hide_key


@pytest.mark.parametrize("depth", [0.0, 0.3, 1.0])
def test_the_key_stands_after_that_share_of_the_filler(depth: float) -> None:
    found = hide_key(random.Random(3), sentences=20, depth=depth)
    before, _, after = found.prompt.partition(
        f"The pass key is {found.key}. Remember it. {found.key} is the pass key."
    )
    assert before.count(".") == round(20 * depth)
    assert after.count(".") == 20 - round(20 * depth)
    assert after.endswith(" What is the pass key?")
    assert 10000 <= found.key <= 99999


def test_the_rest_is_filler() -> None:
    found = hide_key(random.Random(4), sentences=40, depth=1.0)
    assert found.prompt.startswith(FILLER)
    assert sum(found.prompt.count(sentence) for sentence in FILLER) == 40
