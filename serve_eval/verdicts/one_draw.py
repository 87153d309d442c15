"""Say when repeats are the same draw, so that their spread is none of the sampling."""

from __future__ import annotations

from serve_eval.schema import Stability

VARY = "leave --sampling-seed out, or run once for each seed"


def describe_one_draw(stability: Stability | None) -> str | None:
    """Return why the repeats of a task are no independent draws; None if they may be.

    They are none if every request had the same seed, or if all answers to each prompt are the same
    text.
    """
    if stability is None or stability.identical is None:
        return None
    greedy = stability.temperature == 0
    same = 0 < stability.prompts <= stability.identical
    if not same and (stability.seed is None or greedy):
        return None
    seeded = f"every repeat was asked with sampling seed {stability.seed}"
    if not same:
        return (
            f"one_draw: {seeded}: the repeats are no independent draws, and their spread is only"
            f" the noise of the server; {VARY}"
        )
    if greedy:
        why, then = "at temperature 0 a server may choose alike each time", "sample to see a spread"
    elif stability.seed is not None:
        why, then = seeded, VARY
    else:
        why, then = (
            "the server may repeat its seed or keep its replies",
            "run once for each --sampling-seed",
        )
    return (
        f"one_draw: the {stability.repeats} answers to each of {stability.prompts} prompts are the"
        f" same text: {why}; the repeats are one draw, so that their spread of"
        f" {stability.sd:.1f} measures no uncertainty; {then}"
    )
