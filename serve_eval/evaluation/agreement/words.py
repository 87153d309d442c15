"""Put into words whether two endpoints differ more than one of them does from itself."""

from __future__ import annotations

from serve_eval.schema import SelfFlips


def evidence(found: SelfFlips) -> str:
    """Say how far the other endpoint is from the first answers, by the measure that carried the
    p.
    """
    one, other = ("B", "A") if found.endpoint == "A" else ("A", "B")
    p = f"p = {found.p:.2g}"
    if found.measure == "text":
        line = (
            f"{one}'s texts differ from {other}'s first in {found.other_texts} of {found.prompts}"
            f" prompts, {other}'s own second ones in {found.own_texts}"
        )
        if found.own_texts:
            line += f"; {one}'s depart sooner in {found.text_farther}, later in {found.text_nearer}"
        return f"{line} ({p})"
    line = (
        f"{one} and {other} give another score to {found.other} of {found.prompts} prompts, where"
        f" {other} with itself does so to {found.own}"
    )
    if (found.score_farther, found.score_nearer) not in {
        (None, None),
        (found.only_other, found.only_own),
    }:
        line += (
            f"; {one}'s lie farther from {other}'s first in {found.score_farther}, nearer in"
            f" {found.score_nearer}"
        )
    return f"{line} ({p})"


def conclusion(found: SelfFlips) -> str:
    """Say what the p means. Only both measures together can tell that nothing is beyond the own
    nondeterminism.
    """
    if found.more:
        return "more than its own nondeterminism"
    if found.other_texts is None:
        return "not more by score; texts were not compared"
    return "no more than by its own nondeterminism"
