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


def describe_one_seed(runs: int, seed: int | None, temperature: float | None) -> str | None:
    """Return why the runs of a reference are one draw by their seed; None if they may be several.

    At temperature 0 nothing is drawn, so that equal runs are no fault.
    """
    if runs < 2 or seed is None or temperature == 0:
        return None
    return (
        f"one_draw: each of the {runs} runs has sampling seed {seed}: they are no independent"
        " draws, and the reference looks more stable than it is; take it without a seed"
        " (--sampling-seed, protocol.seed, TASK.seed)"
    )


def describe_equal_runs(
    runs: int, prompts: int, identical: int, temperature: float | None
) -> str | None:
    """Return why runs with the same texts are one draw; None if they differ or draw nothing."""
    if runs < 2 or temperature == 0 or not 0 < prompts <= identical:
        return None
    return (
        f"one_draw: the answers of the {runs} runs to each of {prompts} prompts are the same text:"
        " the server may repeat its seed or keep its replies; the runs are one draw, and the"
        " reference looks more stable than it is; make the server draw each time"
    )
