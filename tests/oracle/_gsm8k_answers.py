"""Provide answers to GSM8K's questions: recorded answers of models, and seeded variants."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from tests.oracle._shared import SHARED

NUMBERS = (
    "0", "7", "18", "-3", "1,234", "1234567", "$5", "12.50", "3.", ".5", "1e3", "٣", "½", "１２", "--4", "$", "-",  # noqa: E501
)  # fmt: skip
MARKS = (
    "#### ", "#### ", "#### ", "\n#### ", "\n#### ", "####", "### ", "#### $", "#### -", "The answer is ",  # noqa: E501
    "\nQuestion: ", "€", "\u00a0", "\n\n",
)  # fmt: skip
VARIANTS = 8
"""Number of variants per answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to the question of one row of the test set."""

    row: int
    text: str


def recorded(count: int) -> list[Answer]:
    """Return the recorded answers to the `count` questions of the real test set."""
    found = []
    for file in sorted((SHARED / "recorded").glob("gsm8k_*Llama*.jsonl")):
        found += [
            Answer(line["idx"], line["output"])
            for line in map(json.loads, file.read_text().splitlines())
        ]
    solutions = (
        (SHARED / "recorded/gsm8k_openai_example_model_solutions.jsonl").read_text().splitlines()
    )
    for row, line in enumerate(map(json.loads, solutions[:count])):
        found += [Answer(row, said["solution"]) for said in line.values() if isinstance(said, dict)]
    for file in sorted((SHARED / "recorded/lmeval_logs").glob("samples_*.jsonl")):
        lines = map(json.loads, file.read_text().splitlines())
        found += [Answer(line["doc_id"], line["resps"][0][0]) for line in lines]
    return found


def made_up(golds: Sequence[str]) -> list[Answer]:
    """Return answers to questions of which only the numbers are known."""
    forms = (
        "So it is {0}.\n#### {0}",
        "#### {0}.",
        "It is ${0},000",
        "{0}",
        "#### -{0}",
        "nothing",
        "",
        "{0} or 1",
    )
    return [Answer(row, form.format(gold)) for row, gold in enumerate(golds) for form in forms]


def variants(answers: Sequence[Answer], golds: Sequence[str], most: int) -> Iterator[Answer]:
    """Yield seeded variants of the answers in turn, at most `most` in all and VARIANTS of each."""
    rng = random.Random("gsm8k")
    for answer in islice(cycle(answers), min(most, VARIANTS * len(answers))):
        yield Answer(answer.row, rng.choice(CHANGES)(answer.text, golds[answer.row], rng))


def _cut(text: str, _: str, rng: random.Random) -> str:
    return text[: rng.randint(0, len(text))]


def _marked(text: str, gold: str, rng: random.Random) -> str:
    return text + rng.choice(MARKS) + rng.choice((gold, gold, *NUMBERS))


def _marked_first(text: str, gold: str, rng: random.Random) -> str:
    return (
        rng.choice(MARKS) + rng.choice((gold, *NUMBERS)) + rng.choice(("", ".", ",", "\n")) + text
    )


def _marked_twice(text: str, gold: str, rng: random.Random) -> str:
    one, other = rng.sample((f"#### {gold}", f"#### {rng.choice(NUMBERS)}"), 2)
    return f"{one}{rng.choice((' ', '.', chr(10)))}{_cut(text, gold, rng)}{other}"


def _put_in(text: str, gold: str, rng: random.Random) -> str:
    here = rng.randint(0, len(text))
    return text[:here] + rng.choice(MARKS) + rng.choice((gold, *NUMBERS)) + text[here:]


def _ended(text: str, _: str, rng: random.Random) -> str:
    return text.rstrip() + rng.choice(
        (".", "..", ",", "$", "%", ".\n", ".\n\n", " dollars.", "\\$", "!", ".00", " .")
    )


def _grouped(text: str, gold: str, rng: random.Random) -> str:
    grouped = (
        f"{int(gold.replace(',', '')):,}" if gold.replace(",", "").lstrip("-").isdecimal() else gold
    )
    return f"{_cut(text, gold, rng)}{rng.choice(MARKS)}{rng.choice(('', '$'))}{grouped}{rng.choice(('', '.', ',', '.0'))}"  # noqa: E501


def _without(text: str, _: str, rng: random.Random) -> str:
    return text.replace(rng.choice("#$,. 0123456789\n"), "")


def _shuffled(text: str, gold: str, rng: random.Random) -> str:
    words = [*text.split(" "), gold, f"#### {gold}"]
    return " ".join(rng.sample(words, len(words)))


CHANGES: tuple[Callable[[str, str, random.Random], str], ...] = (
    *(_cut, _marked, _marked_first, _marked_twice, _put_in, _ended, _grouped, _without, _shuffled),
)
