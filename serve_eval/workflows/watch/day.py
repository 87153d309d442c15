"""The course of a day in a baseline: which hours it covers, and the worst of them.

Many endpoints are worse at some hours: more load, other batches, another replica. A baseline of one
night knows nothing of that, and the first busy hour looks like a fault. One that covers a day is
compared by its worst hours instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from serve_eval.stats.betting import mean_lower_bound
from serve_eval.workflows.watch.record import State

BLOCK_HOURS = 3
BLOCKS = 24 // BLOCK_HOURS
"""Blocks of a day. Each needs enough answers of its own for a bound."""
FULL_DAY = 24.0
"""Hours of a baseline that covers a day."""


def find_block(at: str) -> int:
    """Return the block of the day, in UTC, of a time in ISO 8601."""
    return datetime.fromisoformat(at).astimezone(UTC).hour // BLOCK_HOURS


def measure_hours(first: str, last: str) -> float:
    """Return the hours from one time in ISO 8601 to another."""
    return (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds() / 3600.0


def list_unknown(state: State) -> list[int]:
    """Return the blocks of the day in which the baseline has no answer."""
    known = {block for blocks in state.blocks for block in blocks}
    return [block for block in range(BLOCKS) if block not in known]


def describe_blocks(blocks: Sequence[int]) -> str:
    """Return blocks of the day as words: 00:00 to 06:00 and 21:00 to 24:00 UTC."""
    spans: list[list[int]] = []
    for block in blocks:
        if spans and spans[-1][1] == block:
            spans[-1][1] = block + 1
        else:
            spans.append([block, block + 1])
    shown = [f"{a * BLOCK_HOURS:02}:00 to {b * BLOCK_HOURS:02}:00" for a, b in spans]
    *first, last = shown
    return f"{', '.join(first)} and {last} UTC" if first else f"{last} UTC"


def describe_gap(state: State) -> str | None:
    """Return what a baseline that does not cover the day may not conclude; None if it covers it."""
    unknown = list_unknown(state)
    if not unknown:
        return None
    return (
        f"the baseline has no answer from {describe_blocks(unknown)}: a fall at these hours may be"
        " the usual course of a day, and is no proof of a fault"
    )


def doubt_alarm(state: State, at: str) -> str:
    """Return the doubt about an alarm at an hour that the baseline does not know, or nothing."""
    block = find_block(at)
    if not state.blocks or block not in list_unknown(state):
        return ""
    return (
        f"; the baseline has no answer from {describe_blocks([block])}, so this may be the usual"
        " course of a day"
    )


def find_worst_floor(
    answers: Sequence[Sequence[float]], blocks: Sequence[Sequence[int]], alpha: float
) -> float:
    """Return a lower bound of the mean chance of a right answer in the worst block of the day.

    `answers` has the scores of each prompt, at least two, and `blocks` their blocks. Each answer is
    compared with the mean of the others to the same prompt, which removes the differences between
    prompts; the bound of each block holds with probability 1 - alpha / BLOCKS.
    """
    values: dict[int, list[float]] = {}
    for scores, places in zip(answers, blocks, strict=True):
        total = math.fsum(scores)
        for score, block in zip(scores, places, strict=True):
            others = (total - score) / (len(scores) - 1)
            values.setdefault(block, []).append(score - others)
    mean = math.fsum(map(math.fsum, answers)) / math.fsum(map(len, answers))
    worst = min(mean_lower_bound(one, alpha / BLOCKS) for one in values.values())
    return max(0.0, mean + worst)
