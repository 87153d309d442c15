"""Test word problems, their perplexity and short passkeys.

Requests stay the same for a data version.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from serve_eval.datasets import generated
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Dataset, Message, Outcome, Response, Task
from serve_eval.tasks import passkey_short, word_problems_perplexity
from serve_eval.tasks.word_problems import OFF_BY, task

ROOTS = DataRoots()


def _digest(dataset: Dataset) -> str:
    told = "".join(f"{(sample.id, sample.prompt, sample.target)}\n" for sample in dataset.samples)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("made", "version", "digest"),
    [
        (task(), generated.DATA_VERSION, (1, "0403054f73aeaf86")),
        (word_problems_perplexity.task(), generated.DATA_VERSION, (1, "a03f45ebba9e24b0")),
        (passkey_short.task(), passkey_short.DATA_VERSION, (1, "59a91d0f1eb64ce6")),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else "",
)
def test_other_data_has_another_version(made: Task, version: int, digest: tuple[int, str]) -> None:
    """A changed generator makes other problems.

    Raise the data version and record the problems again.
    """
    assert (version, _digest(made.load(ROOTS, 50))) == digest
    assert made.protocol["data_version"] == version


def test_a_problem_is_a_text_or_a_chat_or_stands_behind_solved_ones() -> None:
    [text] = task().load(ROOTS, 1).samples
    [chat] = task(apply_chat_template=True).load(ROOTS, 1).samples
    [shown] = task(num_fewshot=2).load(ROOTS, 1).samples
    assert isinstance(chat.prompt, tuple)
    assert chat.prompt == (Message(role="user", content=chat.prompt[0].text),)
    assert text.prompt == f"Question: {chat.prompt[0].text}\nAnswer: "
    assert isinstance(shown.prompt, str)
    first, second, last = shown.prompt.split("\n\n")
    assert last == text.prompt
    assert first.startswith("Question: ")
    assert "\n#### " in first
    assert first != second
    assert task().sampling.stop == ("\n\n",)
    assert task(apply_chat_template=True).sampling.stop == ()


def test_the_solution_is_right_line_by_line_and_only_its_number_counts() -> None:
    made = task()
    for sample in made.load(ROOTS, 100).samples:
        *sums, last = sample.target.split("\n")
        for line in sums:
            left, _, right = line.partition("=")
            assert eval(left) == int(right)
        assert last == f"#### {sums[-1].partition('=')[2]}"
        assert sample.metadata == {"steps": str(len(sums))}
        number = last.removeprefix("#### ")
        for text, outcome in (
            (f"1+1=3\n#### {number}", Outcome.CORRECT),
            (f"#### {number}0", Outcome.WRONG),
            (f"{number}", Outcome.UNPARSED),
        ):
            assert made.score(sample, Response(text=text, finish_reason="stop")).outcome is outcome


def test_of_four_solutions_one_is_right_and_any_place_may_be_its() -> None:
    made = task(scoring="loglikelihood")
    samples = made.load(ROOTS, 60).samples
    places = set()
    for sample in samples:
        assert len(set(sample.choices)) == 4
        places.add(sample.choices.index(sample.target))
        off = {
            int(choice.rpartition(" ")[2]) - int(sample.target.rpartition(" ")[2])
            for choice in sample.choices
        }
        assert off - {0} < set(OFF_BY)
    assert places == {0, 1, 2, 3}
    told = tuple(
        (-1.0, -2.0) if choice == samples[0].target else (-1.0, -2.5)
        for choice in samples[0].choices
    )
    response = Response(text="", finish_reason=None, choice_logprobs=told)
    assert made.score(samples[0], response).outcome is Outcome.CORRECT


def test_a_key_lies_at_every_depth() -> None:
    made = passkey_short.task(sentences=10)
    samples = made.load(ROOTS, 22).samples
    for i, sample in enumerate(samples):
        before, _, after = str(sample.prompt).partition(
            f"The pass key is {sample.target}. Remember it."
        )
        assert before.count(".") == i % 11
        assert after.count(".") == 1 + 10 - i % 11
    table = made.breakdown((sample, 1.0) for sample in samples)
    assert list(table["depth"]) == [f"{10 * i} %" for i in range(11)]  # type: ignore[call-overload]
    [chat] = passkey_short.task(apply_chat_template=True).load(ROOTS, 1).samples
    assert isinstance(chat.prompt, tuple)
    said = Response(text=f"The pass key is {samples[0].target}.", finish_reason="stop")
    assert made.score(samples[0], said).value == 1


@pytest.mark.parametrize(
    "options",
    [
        {"num_samples": 0},
        {"num_fewshot": -1},
        {"num_fewshot": 1, "apply_chat_template": True},
        {"scoring": "loglikelihood", "apply_chat_template": True},
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(PlanError, match="word_problems: "):
        task(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [word_problems_perplexity.task, passkey_short.task])
def test_at_least_one_sample_is_asked(make: Callable[..., Task]) -> None:
    with pytest.raises(PlanError, match="1 or more"):
        make(num_samples=0)
