"""The answer is one of a few given letters or words, in any phrasing."""

from __future__ import annotations

import re

from serve_eval.errors import PlanError
from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import grade_value, is_text, kind, place, text_of, value_of
from serve_eval.scorers._stated import find_stated

FIRST, LAST = "first_answer", "last_answer"

_LETTER = re.compile(r"\s*([A-Za-z])(?![A-Za-z])")
_ANSWER = re.compile(r"(?i)Answer[ \t]*:[ \t]*([A-D])")
_MARKED_ANSWER = re.compile(r"(?i)\bAnswer\b[*_\s]*:[*_\s]*(?:\\?\$?\\boxed\{)?\(?([A-D])\b")
_CORRECT_ANSWER = (
    re.compile(r"The correct answer is \(([A-D])\)"),
    re.compile(r"The correct answer is ([A-D])"),
    re.compile(r"\b([A-D])\b"),
)


def scorer(*, choices: tuple[str, ...] = ("A", "B", "C", "D")) -> Scorer:
    """Return a scorer that gives 1 for the expected one of `choices`.

    An answer that states none, or several, is unparsed. Raises PlanError for fewer than two
    choices, or one that is given twice.
    """
    by_form = {choice.strip().casefold(): choice for choice in choices}
    if len(by_form) < max(2, len(choices)) or "" in by_form:
        raise PlanError(
            "choice: `choices` needs two or more different letters or words, such as [A, B, C, D]"
        )
    meanings = {choice: choice for choice in choices}

    def read_meant(expected: object) -> str | None:
        return by_form.get(text_of(expected).strip().casefold())

    def score(expected: object, response: Response) -> Score:
        said = find_stated(response.text, meanings)
        if said is None:
            return Score(value=0.0, outcome=Outcome.UNPARSED)
        return grade_value(float(said == read_meant(expected)), said, mode="another choice")

    def problems(expected: object) -> list[str]:
        value = value_of(expected)
        if is_text(value) and read_meant(expected) is not None:
            return []
        told = repr(value) if is_text(value) else kind(value)
        return [f"{place(expected)} must be one of {', '.join(choices)}, not {told}"]

    def answers(expected: object) -> tuple[str, str]:
        right = read_meant(expected) or ""
        return right, next(choice for choice in choices if choice != right)

    return Scorer(version=2, score=score, answers=answers, problems=problems, scoring="inline")


def prefix_match(text: str, target: str) -> Score:
    """Score 1 if the stripped text starts with the target, as in TensorRT-LLM's MMLU evaluator.

    The comparison is case-sensitive and uses only the prefix, so "Apple" is right for "A". The
    extracted answer is a letter that stands alone; without one a wrong text is `unparsed`.
    """
    match = _LETTER.match(text)
    letter = match.group(1) if match else None
    if text.strip().startswith(target):
        return grade_value(1.0, target)
    return grade_value(0.0, letter)


def answer_letter(text: str, target: str) -> Score:
    """Score 1 if the letter of the first `Answer: X` is the target, as in TensorRT-LLM's GPQA.

    The first one counts even in the middle of reasoning, and `**Answer**: B` is missed. The parts
    also have the last such letter with markup, a box or parentheses around it allowed.
    """
    first = _ANSWER.search(text)
    letter = first.group(1).upper() if first else None
    marked: list[str] = _MARKED_ANSWER.findall(text)
    parts = {
        FIRST: float(letter == target),
        LAST: float([m.upper() for m in marked[-1:]] == [target]),
    }
    return grade_value(float(letter == target), letter, parts)


def score_stated_letter(text: str, target: str) -> Score:
    """Score 1 if the letter after "The correct answer is" is the target, as in LongBench v2.

    Without the phrase the first capital A to D that stands alone counts, even if it is an article.
    The parts say how often the phrase itself gave the right letter.
    """
    text = text.rsplit("</think>", 1)[-1].strip().replace("*", "")
    found = [
        match.group(1) if (match := pattern.search(text)) else None for pattern in _CORRECT_ANSWER
    ]
    letter = next((one for one in found if one), None)
    parts = {"phrase": float(target in found[:2])}
    return grade_value(float(letter == target), letter, parts)
