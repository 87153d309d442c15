"""Phrase whether two endpoints differ more than one of them differs from itself."""

from __future__ import annotations

from serve_eval.schema import SelfFlips


def evidence(found: SelfFlips) -> str:
    """Return how far the other endpoint is from the first answers, by the deciding measure."""
    one, other = ("B", "A") if found.endpoint == "A" else ("A", "B")
    p = f"p = {found.p:.2g}"
    if found.repeats is not None:
        by = f", by {found.measure}" if found.measure else ""
        return f"{describe_repeated(found)} ({p}{by})"
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


def describe_repeated(found: SelfFlips) -> str:
    """Return how often two answers to a prompt differ, of one endpoint and across both."""
    one, other = ("A", "B") if found.endpoint == "A" else ("B", "A")
    assert found.repeats is not None
    times, others = found.repeats
    own = _list_shares(found.own, found.own_texts, found.own_pairs)
    across = _list_shares(found.other, found.other_texts, found.other_pairs)
    return (
        f"{found.prompts} prompts, {times} answers of {one} and {others} of {other} to each: two of"
        f" {one} differ in {own}, one of {one} and one of {other} in {across}"
    )


def _list_shares(scores: int, texts: int | None, pairs: int) -> str:
    """Return the shares of pairs with other scores, and with other texts if there are any."""
    said = "" if texts is None else f" and in {texts / pairs:.1%} of texts"
    return f"{scores / pairs:.1%} of scores{said}"


def name_p(found: SelfFlips) -> str:
    """Return the p, and the measure that decided it."""
    return f"p {found.p:.2g}" + (f" by {found.measure}" if found.measure else "")


def conclusion(found: SelfFlips) -> str:
    """Return what the p means. Only both measures together can rule out a difference."""
    if found.more:
        return "more than its own nondeterminism"
    if found.other_texts is None:
        return "not more by score; texts were not compared"
    return "no more than its own nondeterminism"
