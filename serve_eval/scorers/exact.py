"""The answer is the expected text, except for case and the punctuation around words."""

from __future__ import annotations

from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._expected import grade_value, kind, place, text_of, text_problems, value_of
from serve_eval.scorers._plain_text import check_alone, clean, plain


def scorer(
    *, ignore_case: bool = True, ignore_punctuation: bool = True, as_biochatter: bool = False
) -> Scorer:
    """Return a scorer that gives 1 for the expected text and nothing else.

    White space never matters; a sign, a decimal point and the like do. `as_biochatter` is the
    strict form of BioChatter's benchmark: the answer in lower case, without any of `.?!` and white
    space around it, must equal the expected text as written. Raises PlanError for other options
    with it.
    """
    check_alone("exact", as_biochatter, ignore_case, ignore_punctuation)

    def form(text: str) -> str:
        if as_biochatter:
            return clean(text)
        return plain(text, ignore_case=ignore_case, ignore_punctuation=ignore_punctuation)

    def score(expected: object, response: Response) -> Score:
        found = form(response.text)
        right = found == (value_of(expected) if as_biochatter else form(text_of(expected)))
        return grade_value(float(right), found)

    def problems(expected: object) -> list[str]:
        wrong = text_problems(expected)
        if as_biochatter and not wrong and not isinstance(value_of(expected), str):
            return [
                f"{place(expected)} must be a text in quotes with as_biochatter, not"
                f" {kind(value_of(expected))}"
            ]
        if not wrong and not form(text_of(expected)):
            option = (
                "is empty as BioChatter reads answers"
                if as_biochatter
                else "set ignore_punctuation: false"
            )
            wrong = [f"{place(expected)} is only punctuation: {option}"]
        return wrong

    def answers(expected: object) -> tuple[str, str]:
        return text_of(expected), f"not {text_of(expected)}"

    version = 1 if as_biochatter else 2
    return Scorer(
        version=version, score=score, answers=answers, problems=problems, scoring="inline"
    )
