"""Convert answers to the form in which BioChatter's benchmark compares them."""

from __future__ import annotations

from serve_eval.errors import PlanError

_LEFT_OUT = str.maketrans("", "", ".?!")


def clean(text: str) -> str:
    """Return an answer in lower case, stripped, without any of `.?!`."""
    return text.lower().translate(_LEFT_OUT).strip()


def check_alone(scorer: str, as_biochatter: bool, *usual: bool) -> None:
    """Raise PlanError if an option other than `as_biochatter` is set: it would have no effect."""
    if as_biochatter and not all(usual):
        raise PlanError(
            f"{scorer}: as_biochatter decides how answers are compared: leave out the other options"
        )
