"""Test that the shipped weights can do what they were trained for.

Coarse rounding costs much of it.
"""

from __future__ import annotations

import json

import pytest

from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from training.documents import TEMPLATE
from training.measure import Asked, accuracy, as_chat, as_plain, passkeys

COUNT = 100


def _accuracy(asked: list[Asked], damage: Damage = "none") -> float:
    return accuracy(Model(WEIGHTS, damage), Tokenizer(WEIGHTS / "tokenizer.json"), asked)


# The bounds are four standard errors of 100 answers away from the values in docs/embedded-model.md.
@pytest.mark.parametrize(
    ("asked", "least"),
    [(as_plain(COUNT, 0), 75.0), (as_plain(COUNT, 2), 40.0), (passkeys(25), 55.0)],
)
def test_the_model_answers_what_it_was_trained_for(asked: list[Asked], least: float) -> None:
    assert _accuracy(asked) >= least


@pytest.mark.slow
def test_eight_bits_change_nothing_much_and_three_cost_a_lot() -> None:
    sound = _accuracy(as_chat(COUNT))
    assert sound >= 75.0
    assert abs(_accuracy(as_chat(COUNT), "int8") - sound) <= 3
    assert _accuracy(as_chat(COUNT), "int3") < sound - 8


def test_the_files_are_small_and_agree_with_the_trainer() -> None:
    assert (WEIGHTS / "model.safetensors").stat().st_size < 2_000_000
    assert json.loads((WEIGHTS / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
    tokenizer = Tokenizer(WEIGHTS / "tokenizer.json")
    assert len(tokenizer.encode("<|user|>\n1234<|end|>")) == 7
