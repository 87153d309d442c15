"""Simulate runs that a bound of tokens ends: their bias, and the tokens beyond the bound.

Answers are wrong more often the longer they are, and a server gives each as many seconds as it has
tokens. `python -m tests.evaluation.engine.budget_bias` prints the table of docs/method.md.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from dataclasses import dataclass

from serve_eval.evaluation.engine.budget import RunBudget
from serve_eval.schema import Response, Sample, SamplingParams, Task, Usage
from tests.evaluation.engine.budget_task import make_task

PROMPT = 100
"""Tokens of a prompt."""


@dataclass(frozen=True)
class Ended:
    """A simulated run: its tokens, and the means of what was asked and of what came first.

    `came` has the answers that had come when the last request started, as if those in flight had
    been given up.
    """

    spent: float
    asked: float
    came: float
    requests: int
    worst_in_flight: float


def draw_answers(rng: random.Random, n: int, spread: float, most: int) -> list[tuple[int, float]]:
    """Return the tokens and the score of n answers; the longest quarter is wrong most often."""
    drawn = []
    for _ in range(n):
        length = min(most, max(1, round(math.exp(rng.gauss(math.log(most / 12), spread)))))
        right = 0.95 if length < most / 6 else 0.35
        drawn.append((length, float(rng.random() < right)))
    return drawn


def run_bounded(drawn: list[tuple[int, float]], task: Task, tokens: int, in_flight: int) -> Ended:
    """Return what a run asks of these answers, in their order, within a bound of tokens."""
    budget = RunBudget(tokens=tokens)
    samples = [Sample(id=f"{i}", prompt="x" * (4 * PROMPT), target="A") for i in range(len(drawn))]
    flying: list[tuple[float, int]] = []
    now, started, finished, came = 0.0, 0, 0, 0.0
    first: list[float] = []
    spent = 0.0
    while True:
        while (
            started < len(drawn)
            and len(flying) < in_flight
            and budget.admits(task, samples[started])
        ):
            heapq.heappush(flying, (now + drawn[started][0], started))
            started += 1
            first = []
        if not flying:
            break
        now, i = heapq.heappop(flying)
        length, score = drawn[i]
        finished, came, spent = finished + 1, came + score, spent + PROMPT + length
        first = first or [came / finished]
        usage = Usage(prompt_tokens=PROMPT, completion_tokens=length)
        answer = Response(text="A", finish_reason="stop", usage=usage, latency_s=1.0, attempts=())
        budget.settle(task, samples[i], answer)
    asked = [score for _, score in drawn[:started]]
    return Ended(
        spent=spent,
        asked=statistics.fmean(asked),
        came=first[0] if first else math.nan,
        requests=started,
        worst_in_flight=in_flight * (PROMPT + task.sampling.max_tokens),
    )


def simulate(
    runs: int, tokens: int, in_flight: int, *, spread: float = 1.0, most: int = 4096, seed: int = 1
) -> list[tuple[Ended, float]]:
    """Return simulated runs, each with the mean score of all its answers."""
    rng = random.Random(f"{seed}:{tokens}:{in_flight}:{spread}")
    task = make_task(SamplingParams(max_tokens=most))
    found = []
    for _ in range(runs):
        drawn = draw_answers(rng, 4000, spread, most)
        whole = statistics.fmean(score for _, score in drawn)
        found.append((run_bounded(drawn, task, tokens, in_flight), whole))
    return found


def describe(ended: list[tuple[Ended, float]], tokens: int) -> str:
    """Return a row: requests, bias of both means in points with its error, tokens of the bound."""
    asked = [100.0 * (one.asked - whole) for one, whole in ended]
    came = [100.0 * (one.came - whole) for one, whole in ended]
    spent = sorted(one.spent / tokens for one, _ in ended)
    error = statistics.stdev(asked) / math.sqrt(len(asked))
    return (
        f"{statistics.fmean(one.requests for one, _ in ended):.0f} |"
        f" {statistics.fmean(asked):+.2f} ± {error:.2f} | {statistics.fmean(came):+.2f} |"
        f" {100.0 * statistics.fmean(spent):.1f} | {100.0 * spent[int(0.99 * len(spent))]:.1f} |"
        f" {100.0 * spent[-1]:.1f}"
    )


def main() -> None:
    """Print the table."""
    print("| bound | in flight | asked | bias of the prefix | of what came | mean | 99 % | most |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens, in_flight in (
        (30_000, 1), (30_000, 64), (100_000, 16), (100_000, 64), (300_000, 64), (1_000_000, 64),
        (1_000_000, 256),
    ):  # fmt: skip
        row = describe(simulate(300, tokens, in_flight), tokens)
        print(f"| {tokens:,} | {in_flight} | {row} |")


if __name__ == "__main__":
    main()
