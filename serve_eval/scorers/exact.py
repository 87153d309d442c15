"""The answer is the expected text, but for case and the punctuation around words."""

from __future__ import annotations

from serve_eval.schema import Outcome, Response, Score, Scorer
from serve_eval.scorers._expected import place, text_of, text_problems
from serve_eval.scorers._words import plain


def scorer(*, ignore_case: bool = True, ignore_punctuation: bool = True) -> Scorer:
    """1 for the expected text and nothing else. White space never matters; a sign, a decimal point and the like do."""

    def form(text: str) -> str:
        return plain(text, ignore_case=ignore_case, ignore_punctuation=ignore_punctuation)

    def score(expected: object, response: Response) -> Score:
        found = form(response.text)
        right = found == form(text_of(expected))
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG, answer=found)

    def problems(expected: object) -> list[str]:
        wrong = text_problems(expected)
        if not wrong and not form(text_of(expected)):
            wrong = [f"{place(expected)} is nothing but punctuation: say ignore_punctuation: false"]
        return wrong

    def answers(expected: object) -> tuple[str, str]:
        return text_of(expected), f"not {text_of(expected)}"

    return Scorer(version=1, score=score, answers=answers, problems=problems, scoring="inline")
