"""Compare the prompts of an imported result with those of our task, and keep equal ones' scores."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import DataRoots, Sample, Task
from serve_eval.workflows.references.imports.found import FoundResult, FoundSample, digest_sample
from serve_eval.workflows.references.imports.protocol import ImportedTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPrompts:
    """A comparison of the prompts of a result with ours.

    `equal` is None if that is unknown; `text` says so. If they are equal, `samples` are ours in
    their order, and `runs` have their scores, one for each answer (none: some answers lack them).
    """

    equal: bool | None
    text: str
    samples: Sequence[Sample] = ()
    runs: Sequence[array[float]] = ()


def compare_prompts(result: FoundResult, made: ImportedTask, roots: DataRoots) -> ComparedPrompts:
    """Return whether the prompts of a result are ours, by their digests."""
    given = result.samples
    if not given or any(one.prompt is None for one in given):
        return ComparedPrompts(equal=None, text="unknown: the file does not hold them")
    try:
        ours = _load(made.task, roots)
    except (DatasetError, PlanError) as error:
        why = str(error).splitlines()[0]
        return ComparedPrompts(equal=None, text=f"unknown: our data cannot be read: {why}")
    by_digest: dict[bytes | None, list[Sample]] = defaultdict(list)
    for sample in ours:
        by_digest[digest_sample(sample)].append(sample)
    answers: dict[bytes, list[FoundSample]] = defaultdict(list)
    for one in given:
        assert one.prompt is not None
        answers[one.prompt].append(one)
    equal = [digest for digest in answers if digest in by_digest]
    if len(equal) < len(answers):
        return ComparedPrompts(
            equal=False, text=f"{len(equal):,} of {len(answers):,} are equal to ours"
        )
    text = f"all {len(answers):,} are equal to ours"
    if any(len(by_digest[digest]) > 1 for digest in answers):
        more = "; several of our samples have one prompt, so no scores of single answers are kept"
        return ComparedPrompts(equal=True, text=f"{text}{more}")
    samples = [one for one in ours if (digest := digest_sample(one)) and digest in answers]
    rows = [answers[digest] for one in samples if (digest := digest_sample(one))]
    runs = _list_runs(rows, made.scores)
    if not runs:
        text += "; answers lack scores, so none are kept"
    return ComparedPrompts(equal=True, text=text, samples=samples, runs=runs)


def digest_all(samples: Sequence[FoundSample]) -> str:
    """Return the number and a checksum of the prompts of a result, in any order."""
    digests = sorted({one.prompt for one in samples if one.prompt is not None})
    content = hashlib.sha256(b"".join(digests)).hexdigest()
    return f"{len(digests)} sha256:{content[:16]}"


def _load(task: Task, roots: DataRoots) -> Sequence[Sample]:
    """Return all samples of a task, also those that it does not ask by default."""
    found = task.load(roots, task.hypothesis.num_samples or 1)
    if found.total > len(found.samples):
        found = task.load(roots, found.total)
    return found.samples


def _list_runs(rows: Sequence[Sequence[FoundSample]], scores: Sequence[str]) -> list[array[float]]:
    """Return a run for each answer to a prompt; none if the numbers of answers or scores differ."""
    times = {len(row) for row in rows}
    if len(times) != 1 or not all(
        name in one.scores for row in rows for one in row for name in scores
    ):
        return []
    return [
        array(
            "d", (math.fsum(row[i].scores[name] for name in scores) / len(scores) for row in rows)
        )
        for i in range(times.pop())
    ]
