"""Generate data sets in the layouts of GSM8K, MMLU and HumanEval, so that nothing is downloaded.

The questions are plain arithmetic and measure nothing about a model. They give the real prompts,
scorers and verdicts something to work on.

A problem has a start, one to four steps of plus and minus with numbers below 100 and totals below
200, and a question. Its operands alone decide the split, so no problem of the test was seen in
training under any names and words.
"""

from __future__ import annotations

import csv
import gzip
import io
import random
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from serve_eval.whole_file import write_named_file

_NAMES = (
    "Amara",
    "Bela",
    "Chidi",
    "Dora",
    "Emre",
    "Farah",
    "Goran",
    "Hana",
    "Ivo",
    "Jun",
    "Kofi",
    "Lena",
)
_THINGS = ("apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets")


def word_problem(rng: random.Random) -> dict[str, str]:
    """Return a problem in GSM8K's form: `question`, and `answer` with a solution and `#### N`."""
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    total = rng.randint(5, 60)
    story, steps = [f"{name} has {total} {thing}."], []
    for _ in range(rng.randint(1, 3)):
        if total > 10 and rng.random() < 0.5:
            gone = rng.randint(1, total - 1)
            story.append(f"{name} gives {gone} of them away.")
            steps.append(
                f"{total} - {gone} = <<{total}-{gone}={total - gone}>>{total - gone} {thing} are"
                " left."
            )
            total -= gone
        else:
            more = rng.randint(2, 40)
            story.append(f"{name} finds {more} more.")
            steps.append(
                f"{total} + {more} = <<{total}+{more}={total + more}>>{total + more} {thing} after"
                " that."
            )
            total += more
    story.append(f"How many {thing} does {name} have in the end?")
    return {"question": " ".join(story), "answer": "\n".join([*steps, f"#### {total}"])}


def choice_row(rng: random.Random) -> list[str]:
    """Return a row of MMLU's CSV form: question, four options, the right letter."""
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    right = a * b
    wrong = rng.sample([right + step for step in (-20, -11, -10, -9, -1, 1, 2, 9, 10, 11, 20)], 3)
    options = [right, *wrong]
    rng.shuffle(options)
    return [f"What is {a} times {b}?", *map(str, options), "ABCD"[options.index(right)]]


def function_problem(number: int, rng: random.Random) -> dict[str, str]:
    """Return a problem in HumanEval's form.

    It has a prompt that ends with a docstring, its body, and tests as `check`.
    """
    name, factor, shift = f"scaled_{number}", rng.randint(2, 9), rng.randint(1, 9)
    calls = [(x, factor * x + shift) for x in rng.sample(range(-20, 20), 4)]
    asserts = "".join(f"    assert candidate({x}) == {value}\n" for x, value in calls)
    return {
        "task_id": f"Generated/{number}",
        "prompt": f'def {name}(x: int) -> int:\n    """Return {factor} times x, plus {shift}."""\n',
        "entry_point": name,
        "canonical_solution": f"    return {factor} * x + {shift}\n",
        "test": f"def check(candidate):\n{asserts}",
    }


def write_humaneval(folder: Path, *, seed: int = 0, problems: int = 164) -> None:
    """Write HumanEval.jsonl.gz."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(f"humaneval:{seed}")
    lines = (
        msgspec.json.encode(function_problem(number, rng)) + b"\n" for number in range(problems)
    )
    write_named_file(folder / "HumanEval.jsonl.gz", gzip.compress(b"".join(lines), mtime=0))


def write_gsm8k(folder: Path, *, seed: int = 0, train: int = 200, test: int = 1319) -> None:
    """Write train.jsonl and test.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("test", test)):
        rng = random.Random(f"gsm8k:{split}:{seed}")
        lines = (msgspec.json.encode(word_problem(rng)) + b"\n" for _ in range(count))
        write_named_file(folder / f"{split}.jsonl", b"".join(lines))


def write_mmlu(folder: Path, subjects: Sequence[str], *, seed: int = 0, test: int = 100) -> None:
    """Write dev/<subject>_dev.csv (5 rows) and test/<subject>_test.csv for every subject."""
    for split, count in (("dev", 5), ("test", test)):
        (folder / split).mkdir(parents=True, exist_ok=True)
        for subject in subjects:
            rng = random.Random(f"mmlu:{split}:{subject}:{seed}")
            text = io.StringIO()
            csv.writer(text, lineterminator="\n").writerows(choice_row(rng) for _ in range(count))
            file = folder / split / f"{subject}_{split}.csv"
            write_named_file(file, text.getvalue().encode())


Split = Literal["train", "test"]

NAMES = (
    "Amara", "Bela", "Chidi", "Dora", "Emre", "Farah", "Goran", "Hana",
    "Ivo", "Jun", "Kofi", "Lena", "Mira", "Nils", "Oona", "Pavel",
    "Quinn", "Rosa", "Sami", "Tove", "Umar", "Vera", "Wim", "Yara",
)  # fmt: skip
THINGS = (
    "apples", "books", "coins", "marbles", "pencils", "shells", "stamps", "tickets", "beads",
    "cards", "stones", "nuts",
)  # fmt: skip
MORE = (
    "{name} finds {n} more.",
    "{name} buys {n} {things}.",
    "A friend brings {n} more {things}.",
    "{name} wins {n}.",
)
LESS = (
    "{name} gives {n} away.",
    "{name} loses {n} {things}.",
    "{name} sells {n} of them.",
    "{n} {things} break.",
)
MOST = 200
"""Upper limit of totals (exclusive)."""
TEST_SHARE = 10
"""One in TEST_SHARE operand tuples belongs to the test."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A word problem. `solution` has one equation per line and ends with `#### N`, the `answer`."""

    question: str
    solution: str
    answer: int


def problems(split: Split, seed: int) -> Iterator[Problem]:
    """Yield problems of one split endlessly. The same seed gives the same problems."""
    rng = random.Random(f"word problems:{split}:{seed}")
    while True:
        numbers = _numbers(rng)
        if split_of(numbers) == split:
            yield _describe(rng, numbers)


def split_of(numbers: tuple[int, ...]) -> Split:
    """Return the split of a tuple of operands."""
    return "test" if zlib.crc32(repr(numbers).encode()) % TEST_SHARE == 0 else "train"


def _numbers(rng: random.Random) -> tuple[int, ...]:
    """Return the start and the signed change of every step.

    The total stays above zero and below MOST.
    """
    total = _size(rng)
    found = [total]
    for _ in range(rng.randint(1, 4)):
        change = _size(rng)
        if total > 1 and (rng.random() < 0.5 or total + change >= MOST):
            change = -min(change, rng.randint(1, total - 1))
        found.append(change)
        total += change
    return tuple(found)


def _size(rng: random.Random) -> int:
    """Return a number of two digits or, one in four times, of one digit."""
    return rng.randint(2, 9) if rng.random() < 0.25 else rng.randint(10, 99)


def _describe(rng: random.Random, numbers: tuple[int, ...]) -> Problem:
    name, things = rng.choice(NAMES), rng.choice(THINGS)
    total, *changes = numbers
    story, lines = [f"{name} has {total} {things}."], []
    for change in changes:
        said = rng.choice(MORE if change > 0 else LESS)
        story.append(said.format(name=name, n=abs(change), things=things))
        lines.append(f"{total}{change:+d}={total + change}")
        total += change
    story.append(f"How many {things} does {name} have now?")
    return Problem(" ".join(story), "\n".join([*lines, f"#### {total}"]), total)


DATA_VERSION = 1
"""Increases when the generator gives other problems for the same seed."""


def format_question(problem: Problem) -> str:
    """Return a problem as a text that its solution continues."""
    return f"Question: {problem.question}\nAnswer: "


def format_solved(problem: Problem) -> str:
    """Return a problem with its solution."""
    return format_question(problem) + problem.solution
