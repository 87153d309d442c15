"""Measure the time that tasks take without an endpoint.

Run `python bench/tasks.py [DATASET_ROOT | --tiny]`. It measures the prompts of every MMLU question,
and the scores of as many answers as GSM8K has questions. Without a root the data is generated in
the same size, with --tiny for 60 questions. Goals: 2 s and 0.2 s.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from machine import facts

from serve_eval.datasets.generated import write_gsm8k, write_mmlu
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Response, Sample, Spec
from serve_eval.tasks.mmlu import SUBJECTS, TEST_ROWS

ROUNDS = 5
WORKED = "She has 12 apples and buys 3.50 dollars' worth more, so that 12 + 5 = 17 are there.\n" * 6
"""Precedes each answer, which makes it as long as those of models: about 500 characters."""


def main() -> None:
    for line in facts():
        print(line)
    with tempfile.TemporaryDirectory() as made:
        given = sys.argv[1] if len(sys.argv) > 1 else made
        tiny = given == "--tiny"
        root = Path(made if tiny else given)
        if root == Path(made):
            write_gsm8k(root / "gsm8k", train=200 if tiny else 7473)
            write_mmlu(root / "mmlu", SUBJECTS, test=2 if tiny else -(-TEST_ROWS // len(SUBJECTS)))
        roots = DataRoots(roots=(root,))
        if tiny:
            measure(roots, 60, 60, rounds=1)
        else:
            measure(roots, TEST_ROWS, 1319, rounds=ROUNDS)


def measure(roots: DataRoots, of_mmlu: int, of_gsm8k: int, *, rounds: int) -> None:
    """Print the medians of `rounds` rounds."""
    said = partial(print_median, rounds=rounds)
    mmlu = build_task(Spec(name="mmlu", options={"num_samples": of_mmlu}))
    samples = mmlu.load(roots, of_mmlu).samples
    said(
        f"prompts of {len(samples)} MMLU questions, with reading the files",
        lambda: mmlu.load(roots, of_mmlu),
    )
    gsm8k = build_task(Spec(name="gsm8k"))
    questions = gsm8k.load(roots, of_gsm8k).samples
    said(
        f"prompts of {len(questions)} GSM8K questions, with reading the files",
        lambda: gsm8k.load(roots, of_gsm8k),
    )
    answers = [
        Response(text=WORKED + gsm8k.answers(question)[i % 2], finish_reason="stop")
        for i, question in enumerate(questions)
    ]

    def score() -> None:
        tally = ScoreAccumulator(gsm8k, questions)
        for i, answer in enumerate(answers):
            tally.add(i, answer)

    said(f"scores of {len(answers)} GSM8K answers", score)
    letters = [
        Response(text=mmlu.answers(sample)[i % 2], finish_reason="stop")
        for i, sample in enumerate(samples)
    ]

    def judge(sample: Sample, letter: Response) -> float:
        return mmlu.score(sample, letter).value

    said(f"scores of {len(letters)} MMLU answers", lambda: [*map(judge, samples, letters)])


def print_median(what: str, work: Callable[[], object], *, rounds: int) -> None:
    """Print how long the work takes."""
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    print(f"  {what:62} {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
