"""Test the training texts of the embedded model and what its weights learned.

Coarse rounding costs much of it.
"""

import itertools
import json
import re

import pytest

from serve_eval.datasets.generated import Problem, format_question, split_of
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Tokenizer
from serve_eval.launchers.embedded import WEIGHTS
from training.documents import END, GIVEN, TEMPLATE, Source, bare, chat, documents, drill, plain
from training.measure import accuracy, as_chat, as_plain, passkeys

PROBLEM = Problem(
    "Ivo has 12 nuts. Ivo finds 30 more. Ivo sells 4 of them.", "12+30=42\n42-4=38\n#### 38", 38
)


def test_a_chat_is_what_the_template_renders_and_only_its_answer_counts():
    assert chat("2+3", "2+3=5", "Add.") == [
        ("<|system|>\nAdd.<|end|>\n<|user|>\n2+3<|end|>\n<|assistant|>\n", GIVEN),
        ("2+3=5<|end|>", 1.0),
    ]


def test_examples_count_like_answers_and_end_in_a_blank_line():
    pieces = plain([PROBLEM], "2+3", "2+3=5")
    assert [weight for _, weight in pieces] == [GIVEN, 1.0, GIVEN, 1.0]
    assert pieces[1][0] == PROBLEM.solution + "\n\n"
    assert pieces[-1][0] == "2+3=5" + END


def test_the_plain_form_is_the_one_of_the_task():
    assert plain([], PROBLEM.question, "")[0][0] == format_question(PROBLEM)


def test_a_sum_without_its_story():
    assert bare(PROBLEM) == "12+30-4"


def test_in_a_drill_counts_only_what_follows_from_what_stands_before():
    pieces = drill([PROBLEM])
    assert "".join(text for text, _ in pieces) == "12+30=42\n42-4=38\n"
    assert [text for text, weight in pieces if weight == 1.0] == ["42\n", "42", "38\n"]


@pytest.mark.parametrize("progress", [0.0, 0.3, 1.0])
def test_nothing_of_the_test_is_read(progress):
    source = Source(0)
    for _ in range(300):
        text = "".join(part for part, _ in source.document(progress))
        for solution in re.findall(r"(?:\d+[+-]\d+=\d+\n)+#### \d+", text):
            lines = re.findall(r"(\d+)([+-]\d+)=", solution)
            assert split_of((int(lines[0][0]), *(int(change) for _, change in lines))) == "train"


def test_stories_come_after_drills():
    source = Source(0)
    early = [source.document(0.0) for _ in range(200)]
    late = list(itertools.islice(documents(0), 200))

    def stories(found):
        return sum("How many" in pieces[0][0] for pieces in found)

    assert stories(early) == 0
    assert stories(late) > 100


def test_the_source_is_seeded():
    assert next(documents(3)) == next(documents(3))
    assert next(documents(3)) != next(documents(4))


COUNT = 100


def _accuracy(asked, damage="none"):
    return accuracy(Model(WEIGHTS, damage), Tokenizer(WEIGHTS / "tokenizer.json"), asked)


# The bounds are four standard errors of 100 answers away from docs/measured/embedded-model.md.
@pytest.mark.parametrize(
    ("asked", "least"),
    [(as_plain(COUNT, 0), 75.0), (as_plain(COUNT, 2), 40.0), (passkeys(25), 55.0)],
)
def test_the_model_answers_what_it_was_trained_for(asked, least):
    assert _accuracy(asked) >= least


@pytest.mark.slow
def test_eight_bits_change_nothing_much_and_three_cost_a_lot():
    sound = _accuracy(as_chat(COUNT))
    assert sound >= 75.0
    assert abs(_accuracy(as_chat(COUNT), "int8") - sound) <= 3
    assert _accuracy(as_chat(COUNT), "int3") < sound - 8


def test_the_files_are_small_and_agree_with_the_trainer():
    assert (WEIGHTS / "model.safetensors").stat().st_size < 2_000_000
    assert json.loads((WEIGHTS / "tokenizer_config.json").read_text())["chat_template"] == TEMPLATE
    tokenizer = Tokenizer(WEIGHTS / "tokenizer.json")
    assert len(tokenizer.encode("<|user|>\n1234<|end|>")) == 7
