"""Phrase whether two endpoints differ more than one of them differs from itself."""

from __future__ import annotations

from serve_eval.schema import SelfFlips


def evidence(found: SelfFlips) -> str:
    """Return how far the other endpoint is from the first answers, by the deciding measure."""
    one, other = ("B", "A") if found.endpoint == "A" else ("A", "B")
    p = f"p = {found.p:.2g}"
    if found.measure == "text":
        line = (
            f"{one}'s texts differ from {other}'s first texts in {found.other_texts} of"
            f" {found.prompts} prompts, {other}'s own second texts in {found.own_texts}"
        )
        if found.own_texts:
            line += f"; {one}'s differ sooner in {found.text_farther}, later in {found.text_nearer}"
        return f"{line} ({p})"
    line = (
        f"{one} and {other} differ in the score of {found.other} of {found.prompts} prompts,"
        f" {other} with itself in {found.own}"
    )
    if (found.score_farther, found.score_nearer) not in {
        (None, None),
        (found.only_other, found.only_own),
    }:
        line += (
            f"; {one}'s are farther from {other}'s first in {found.score_farther}, nearer in"
            f" {found.score_nearer}"
        )
    return f"{line} ({p})"


def conclusion(found: SelfFlips) -> str:
    """Return what the p means. Only both measures together can rule out a difference."""
    if found.more:
        return "more than its own nondeterminism"
    if found.other_texts is None:
        return "not more by score; texts were not compared"
    return "no more than its own nondeterminism"
