"""Say when repeats are the same draw, so that their spread is none of the sampling."""

from __future__ import annotations

from serve_eval.schema import Stability


def describe_one_draw(stability: Stability | None) -> str | None:
    """Return why the repeats of a task are no independent draws; None if they may be.

    They are none if all answers to each prompt are the same text.
    """
    if stability is None or stability.identical is None:
        return None
    if not 0 < stability.prompts <= stability.identical:
        return None
    if stability.temperature == 0:
        why, then = "at temperature 0 a server may choose alike each time", "sample to see a spread"
    else:
        why = "the server may ignore or repeat its seed, or keep its replies"
        then = "make it draw each time"
    return (
        f"one_draw: the {stability.repeats} answers to each of {stability.prompts} prompts are the"
        f" same text: {why}; the repeats are one draw, so that their spread of"
        f" {stability.sd:.1f} measures no uncertainty; {then}"
    )


def describe_one_seed(runs: int, seed: int | None, temperature: float | None) -> str | None:
    """Return why the runs of a reference are one draw by their seed; None if they may be several.

    `runs` counts run folders: the repeats of one run have seeds of their own. At temperature 0
    nothing is drawn, so that equal runs are no fault.
    """
    if runs < 2 or seed is None or temperature == 0:
        return None
    return (
        f"one_draw: each of the {runs} runs has sampling seed {seed}: they are no independent"
        " draws, and the reference looks more stable than it is; take it without a seed"
        " (protocol.seed, TASK.seed), or from one run with --repeats, which have"
        " seeds of their own"
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
