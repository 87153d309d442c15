"""Test the shipped weights in our code against the libraries that define their format.

Those are no dependencies: pip install torch transformers.
"""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.datasets.generated import problems
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Chat, Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Message

pytestmark = pytest.mark.slow


@given(st.text())
def test_every_text_has_the_same_tokens(text):
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_file(str(WEIGHTS / "tokenizer.json"))
    ours = Tokenizer(WEIGHTS / "tokenizer.json")
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids


def test_a_chat_is_rendered_and_continued_alike():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(str(WEIGHTS))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        str(WEIGHTS), dtype=torch.float32
    ).eval()
    ours, tokenizer, render = Model(WEIGHTS), Tokenizer(WEIGHTS / "tokenizer.json"), Chat(WEIGHTS)
    for problem in islice(problems("test", 5), 20):
        turns = [{"role": "user", "content": problem.question}]
        text = their_tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=False
        )
        assert render((Message(role="user", content=problem.question),), {}) == text
        ids = tokenizer.encode(text + problem.solution)
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits[0].numpy()
        assert np.abs(ours.extend(ids, 0, ours.cache(1), 0, every=True) - expected).max() < 1e-3
