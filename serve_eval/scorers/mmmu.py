"""Letters and short answers of MMMU's questions, by the rules of MMMU's own evaluation.

Rules: Yue et al. 2023, eval/utils of MMMU-Benchmark/MMMU, as mmmu_val of lm-evaluation-harness
applies them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value
from serve_eval.scorers._mmmu_answer import find_given_letter as find_given_letter

STATED = "stated_letter"

_STATED = re.compile(r"(?i)\banswer\b(?:\s+is\b)?[*_\s:]*(?:\\boxed\{)?\(?(?-i:([A-I]))\b")
_MARKS = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")
_NUMBERS = (
    re.compile(r"-?\b\d{1,3}(?:,\d{3})+\b"),
    re.compile(r"(?:-|(?<!\d))\d+(?:\.\d+)?e[+-]?\d+"),
    re.compile(r"(?:(?:-|(?<!\d))(?:\d+\.\d+|\d+\b)|-?\.\d+)(?!e[+-]?\d+)(?![,\d])"),
)
"""The original's, except that a run of digits is matched only from its first digit, which finds the
same and is not quadratic."""


def choice(text: str, target: str, options: Sequence[str]) -> Score:
    """Score 1 if the letter that the answer gives is the target.

    Without a letter the answer is `unparsed`; the original guesses one at random. The parts have
    the last letter that is called the answer, if there is one.
    """
    letter = find_given_letter(text, options)
    stated: list[str] = _STATED.findall(text)
    parts = {STATED: float((stated[-1] if stated else letter) == target)}
    return grade_value(float(letter == target), letter, parts)


def short_answer(text: str, accepted: Iterable[str]) -> Score:
    """Score 1 if a key phrase contains one of the accepted answers, or a number equal to one.

    A key phrase follows a word such as "is" or "answer" in one of the lines; without such a word it
    is the whole text. Numbers are equal to two decimals.
    """
    keys = list(_key_phrases(text))
    wanted = {form for answer in accepted for form in _forms(answer)}
    words = [form for form in wanted if isinstance(form, str)]
    found = [
        *keys,
        *(number for key in keys for pattern in _NUMBERS for number in pattern.findall(key)),
    ]
    said = [form for one in found for form in _forms(one)]
    right = float(
        any(
            any(word in form for word in words) if isinstance(form, str) else form in wanted
            for form in said
        )
    )
    return grade_value(right, " | ".join(keys), {STATED: right})


def _key_phrases(text: str) -> Iterator[str]:
    text = text.strip().strip(".").lower()
    lines, any_found = text.split("\n"), False
    for i, line in enumerate(lines):
        shortest = ""
        for mark in (*_MARKS, "=") if i == len(lines) - 1 else _MARKS:
            if mark in line:
                tail = line.rsplit(mark, 1)[1].strip()
                if not shortest or len(tail) < len(shortest):
                    shortest = tail
        if shortest and shortest not in list(":,.!?;'"):
            any_found = True
            yield shortest
    if not any_found:
        yield text


def _forms(text: str) -> list[str | float]:
    """Return the forms that are compared: a number to two decimals, else the text in lower case.

    A single character has a space before or after it.
    """
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
    return [f" {text}", f"{text} "] if len(text) == 1 else [text]
