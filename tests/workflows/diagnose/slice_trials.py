"""Count how often slices are named and healthy runs accused: `python -m` this module prints it.

Seeded and printed as Markdown; `test_slices` asserts a part of it.

With the word `other`: how often the line about another model names a slice. The simulated endpoint
is right on 70 or 75 % of the prompts, whatever they are, and is judged against the reference of the
embedded model.

With the word `healthy`: what diagnose says of healthy runs of a real model. The embedded model
answers each prompt in 30 real runs at temperature 1. A healthy run then has for each prompt the
answer of one of them, drawn at random, and the times of one whole run. The reference is registered
from all of them. About 8 minutes.
"""

import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from serve_eval.evaluation.evaluate import evaluate, judge_again
from serve_eval.plan.resolve import resolve
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    AnsweringServers,
    Attempt,
    Dataset,
    Limits,
    Outcome,
    Plan,
    Response,
    Sample,
    Spec,
    Usage,
)
from serve_eval.storage.scores import ScoreRecord
from serve_eval.storage.sessions import SessionRecord
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, read
from serve_eval.workflows.diagnose.finding import AskedSample
from serve_eval.workflows.diagnose.judged import read_folder
from serve_eval.workflows.diagnose.run_rules import TESTS, findings
from serve_eval.workflows.diagnose.slicing import compare_slices, find_slices
from serve_eval.workflows.diagnose.story import find_leads
from serve_eval.workflows.references import register

TASK = "word_problems"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """The prompts of a run, and how it is served; a number for each prompt."""

    chance: NDArray[Any]
    subject: NDArray[Any]
    tokens: NDArray[Any]
    cached: NDArray[Any]
    start_s: NDArray[Any]
    end_s: NDArray[Any]
    load: NDArray[Any]
    worker: NDArray[Any]


def draw_prompts(random, n, subjects=8):
    """Draw prompts with subjects of different difficulty, sent in random order."""
    subject = random.integers(0, subjects, n)
    hardness = random.normal(size=n) + 0.4 * (subject % 5 - 2)
    tokens = numpy.maximum(20, 250 * numpy.exp(0.5 * hardness + 0.5 * random.normal(size=n)))
    gaps = random.exponential(0.05, n) * random.choice((0.2, 3.0), n)
    start = numpy.cumsum(gaps)[random.permutation(n)]
    end = start + random.exponential(0.3, n)
    load = numpy.searchsorted(numpy.sort(start), start, "right") - numpy.searchsorted(
        numpy.sort(end), start, "left"
    )
    return Prompts(
        chance=1.0 / (1.0 + numpy.exp(1.5 * hardness - 1.2)),
        subject=subject,
        tokens=tokens.astype(int),
        cached=numpy.where(random.random(n) < 0.3, 16, 0),
        start_s=start,
        end_s=end,
        load=load,
        worker=random.integers(0, 4, n),
    )


def draw_right(random, prompts):
    """Draw which prompts are answered rightly."""
    return numpy.asarray(random.random(len(prompts.chance)) < prompts.chance)


def draw_pair(
    random,
    prompts,
    broken,
    *,
    same=0.0,
    rate=0.9,
    longer=1.0,
    unrelated=None,
):
    """Return sides A and B; B answers `rate` of the broken prompts wrongly.

    Answers that are broken are `longer` than others by this factor. An `unrelated` B is right with
    this probability, whatever the prompt.
    """
    n = len(prompts.chance)
    right = draw_right(random, prompts)
    hit = broken & (random.random(n) < rate)
    other = numpy.where(random.random(n) < same, right, draw_right(random, prompts)) & ~hit
    if unrelated is not None:
        other = random.random(n) < unrelated
    factor = numpy.where(hit, longer, 1.0)
    return (
        build_evidence(random, prompts, right, numpy.ones(n)),
        build_evidence(random, prompts, other, factor),
    )


def build_evidence(random, prompts, right, factor):
    """Return a run without a report whose order was random."""
    length = numpy.where(right, 1.0, 1.6) * numpy.exp(random.normal(size=len(right)) * 0.4)
    length = (40 * factor * length / prompts.chance**0.3).astype(int)
    asked = [
        _ask(i, bool(right[i]), int(prompts.tokens[i]), int(length[i]), prompts)
        for i in range(len(right))
    ]
    task = TaskEvidence(name=TASK, fingerprint={"task": TASK}, asked=tuple(asked), report=None)
    return Evidence(
        folder=Path("run"),
        plan=Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name=TASK),)),
        sessions=[SessionRecord(limits=Limits(order="random", concurrency=16))],
        report=None,
        tasks=(task,),
        logs=(),
    )


def _ask(i, right, tokens, length, prompts):
    attempt = Attempt(
        start_s=1e9 + float(prompts.start_s[i]),
        end_s=1e9 + float(prompts.end_s[i]),
        failure=None,
        status=200,
        request_id="r",
        servers=AnsweringServers(context="c0", generation=f"g{prompts.worker[i]}"),
    )
    usage = Usage(
        prompt_tokens=tokens, completion_tokens=length, cached_tokens=int(prompts.cached[i])
    )
    response = Response(
        text="17" if right else "18", finish_reason="stop", usage=usage, attempts=(attempt,)
    )
    line = ScoreRecord(
        id=f"{i}",
        outcome=Outcome.CORRECT if right else Outcome.WRONG,
        value=float(right),
        target="17",
    )
    return AskedSample(
        id=f"{i}", response=response, failure=None, attempts=(attempt,), line=line, bad=not right
    )


def build_data(prompts):
    """Return the data set of the prompts, with their subjects as metadata."""
    samples = [
        Sample(id=f"{i}", prompt="", target="17", metadata={"subject": f"s{subject}"})
        for i, subject in enumerate(prompts.subject)
    ]
    dataset = Dataset(samples=samples, files=(), total=len(samples))
    return {TASK: (build_task(Spec(name=TASK, options={"num_samples": len(samples)})), dataset)}


FAULTS = {
    "residue of the prompt length": (
        lambda one: one.tokens % 32 == 5,
        "prompts whose length leaves 5 modulo 32",
    ),
    "only above a length": (lambda one: one.tokens > 512, "prompts of more than 512 tokens"),
    "cache hits only": (lambda one: one.cached > 0, "prompts with tokens from the prefix cache"),
    "from n in flight": (
        lambda one: one.load >= 8,
        "samples sent with 8 or more requests in flight",
    ),
    "one worker": (lambda one: one.worker == 2, "answers of generation server g2"),
    "one subject": (lambda one: one.subject == 3, "samples with subject 's3'"),
    "from a time on": (lambda one: one.start_s > numpy.quantile(one.start_s, 0.7), "samples "),
}
"""Faults: the prompts that they hit, and the words by which they are named."""


SIZES = (400, 1319)
GREEDY = 0.9
"""Share of the prompts that a second run answers as the first."""
UNRELATED = (0.4, 0.65)
"""Shares of right answers of unrelated models; that of the prompts is about .7."""


def break_none(prompts):
    return numpy.zeros(len(prompts.chance), dtype=bool)


def break_all(prompts):
    return numpy.ones(len(prompts.chance), dtype=bool)


def run_trial(
    seed,
    n,
    broken,
    *,
    alone=False,
    same=GREEDY,
    rate=0.9,
    longer=1.0,
    unrelated=None,
):
    """Return what is found of B with A as its reference, or of B alone."""
    random = numpy.random.default_rng(seed)
    prompts = draw_prompts(random, n)
    hit = broken(prompts)
    a, b = draw_pair(random, prompts, hit, same=same, rate=rate, longer=longer, unrelated=unrelated)
    data = build_data(prompts)
    return list(find_slices(b, (), data) if alone else compare_slices(a, b, (), data))


def count_named(words, n, broken, seeds, *, alone=False):
    """Return how many trials name the slice with these words."""
    found = [run_trial(seed, n, broken, alone=alone) for seed in seeds]
    return sum(len(one) == 1 and one[0].told.startswith(words) for one in found)


def _print_faults(seeds):
    heads = [f"n = {n}, {how}" for how in ("reference", "alone") for n in SIZES]
    print(f"| named of {len(seeds)} | {' | '.join(heads)} |\n{'|---' * (1 + len(heads))}|")
    for name, (broken, words) in FAULTS.items():
        cells = [
            f"{count_named(words, n, broken, seeds, alone=alone)}"
            for alone in (False, True)
            for n in SIZES
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def _print_false(runs):
    print("| runs without a slice | n | found |\n|---|---|---|")
    for name, broken, same, rate, count in (
        ("healthy, two independent draws per prompt", break_none, 0.0, 0.0, runs),
        ("healthy, greedy", break_none, GREEDY, 0.0, runs // 4),
        ("uniform loss of 3 %", break_all, GREEDY, 0.03, runs // 20),
        ("uniform loss of 10 %", break_all, GREEDY, 0.1, runs // 20),
        ("uniform loss of 30 %", break_all, GREEDY, 0.3, runs // 20),
        ("uniform loss of 30 %, two independent draws", break_all, 0.0, 0.3, runs // 20),
    ):
        for alone in (False, True):
            found = [
                run_trial(seed, 400, broken, alone=alone, same=same, rate=rate)
                for seed in range(count)
            ]
            how = "alone" if alone else "with a reference"
            accused = sum(map(bool, found))
            print(f"| {name}, {how} | 400 | {accused} of {count} |", flush=True)
    count = runs // 25
    for same, how in ((GREEDY, ""), (0.0, ", two independent draws")):
        found = [run_trial(s, 100, break_all, same=same, rate=0.3) for s in range(count)]
        name = f"uniform loss of 30 %{how}, with a reference"
        print(f"| {name} | 100 | {sum(map(bool, found))} of {count} |", flush=True)
    for share in UNRELATED:
        for n in (100, 400):
            found = [run_trial(s, n, break_none, unrelated=share) for s in range(count)]
            name = f"another model, {100 * share:.0f} % right"
            print(f"| {name} | {n} | {sum(map(bool, found))} of {count} |", flush=True)


PROMPTS, SEEDS = 100, range(20)
ACCURACIES = (0.7, 0.75)


def run_other_model(folder, accuracy, seed):
    """Return the report of a run of another model, and the likeliest cause that its line names."""
    plan = resolve(
        {
            "launcher": {"name": "simulated", "accuracy": accuracy, "seed": seed},
            "model": "embedded",
            "tasks": ["word_problems"],
            "limit": PROMPTS,
        },
        {},
        {},
    ).plan
    report = asyncio.run(evaluate(plan, folder))
    return report, find_leads(read_folder(folder)).causes.get("word_problems", "")


def main_other() -> None:
    """Print a row of the table in docs/measured/diagnose-slices.md."""
    named, runs = 0, len(ACCURACIES) * len(SEEDS)
    with tempfile.TemporaryDirectory() as scratch:
        for accuracy in ACCURACIES:
            for seed in SEEDS:
                _, cause = run_other_model(Path(scratch) / f"{accuracy}_{seed}", accuracy, seed)
                named += bool(cause)
    print(f"| `simulated` against the embedded model | {PROMPTS} | {named} of {runs} |")


RUNS, HEALTHY_PROMPTS, TRIALS, SEED = 30, 300, 1000, 5


def make_plan(references, *, max_tokens):
    options = {"num_samples": HEALTHY_PROMPTS, "temperature": 1.0, "max_tokens": max_tokens}
    return Plan(
        model="embedded",
        launcher=Spec(name="embedded", options={}),
        tasks=(Spec(name=TASK, options=options),),
        references_dir=None if references is None else str(references),
        no_reference=references is None,
        limits=Limits(concurrency=16),
    )


def ask_runs(folder, runs, max_tokens):
    """Run the task again and again, and return the folders."""
    found = []
    for number in range(runs):
        plan = make_plan(None, max_tokens=max_tokens)
        limits = replace(plan.limits, order_seed=number)
        out = folder / f"run{number}"
        asyncio.run(evaluate(replace(plan, limits=limits), out, environ={}))
        found.append(out)
    return found


def draw_run(runs, out, rng):
    """Write a run folder with the times of one run and answers of all."""
    base = rng.choice(runs)
    shutil.copytree(base, out)
    answers = [_lines(one / f"samples/{TASK}.jsonl") for one in runs]
    drawn = []
    for name, own in _lines(base / f"samples/{TASK}.jsonl").items():
        line = json.loads(json.dumps(rng.choice(answers)[name]))
        line["response"]["attempts"] = own["response"]["attempts"]
        drawn.append(json.dumps(line))
    (out / f"samples/{TASK}.jsonl").write_text("\n".join(drawn) + "\n")
    (out / f"scores/{TASK}.jsonl").unlink()


def _lines(file):
    return {line["id"]: line for line in map(json.loads, file.read_text().splitlines())}


def run_trials(runs, references, folder, trials):
    """Print what diagnose says of the drawn runs."""
    outcomes, said, tested = Counter[str](), Counter[str](), 0
    for trial in range(trials):
        rng = random.Random(f"{SEED}:{trial}")
        out = folder / f"trial{trial}"
        draw_run(runs, out, rng)
        saved = read(out).plan
        plan = replace(saved, references_dir=str(references), no_reference=False)
        report = judge_again(plan, out)
        evidence = read(out)
        tasks = tuple(replace(one, report=report.tasks[0]) for one in evidence.tasks)
        found = findings(replace(evidence, report=report, tasks=tasks))
        outcome = report.tasks[0].verdict.outcome.value
        outcomes[outcome] += 1
        said.update({f"{one.rule} ({outcome})" for one in found})
        tested += any(one.rule in TESTS for one in found)
        shutil.rmtree(out)
    print(f"{trials} healthy runs of {HEALTHY_PROMPTS} prompts: {dict(outcomes)}")
    print(f"accused by a test: {tested}; findings: {dict(said.most_common())}")


def main_healthy():
    """Ask the runs, register the reference, and print the trials: `healthy RUNS TRIALS`."""
    runs, trials = map(int, sys.argv[2:] or (RUNS, TRIALS))
    for max_tokens in (256, 24):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            asked = ask_runs(folder, runs, max_tokens)
            register(asked, folder / "references")
            print(f"max_tokens {max_tokens}:", end=" ")
            run_trials(asked, folder / "references", folder, trials)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["other"]:
            main_other()
        case ["healthy", *_]:
            main_healthy()
        case runs:
            _print_false(int(runs[0]) if runs else 1000)
            print()
            _print_faults(range(20))
