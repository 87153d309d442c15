"""Compare the scores of a run with those of another run, or of its reference, prompt by prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evidence.agreement.answer_texts import join_text, part
from serve_eval.report.samples.known import ReferenceScores, prepare_again, score_reference
from serve_eval.report.samples.samples import SampleSource, ShownSample
from serve_eval.schema import Parting
from serve_eval.storage.reports.report_file import find_report
from serve_eval.verdicts.reference_samples import as_stored
from serve_eval.workflows.show.folders import ChosenRun

AGAINST = "Compare it with another run: serve-eval show RUN --against OTHER."


@dataclass(frozen=True, slots=True, kw_only=True)
class FlippedPair:
    """A prompt with the samples of A and B, and the place at which their answers part.

    `parts_at` is None if one of them is missing or hidden, or if the answers are equal.
    """

    a: ShownSample
    b: ShownSample
    parts_at: Parting | None


def pair_samples(a: ShownSample, b: ShownSample) -> FlippedPair:
    """Return two answers to a prompt, with the place at which they part."""
    place = None
    if a.response is not None and b.response is not None:
        place = part(join_text(a.response), join_text(b.response))
    return FlippedPair(a=a, b=b, parts_at=place)


def list_flips(a: SampleSource, b: SampleSource) -> tuple[list[str], list[str]]:
    """Return the prompts whose score fell from A to B, and those whose score rose.

    "Fell" means for a metric of which more is better.
    """
    before, after = a.scores(), b.scores()
    both = [
        (name, after[name].value - line.value) for name, line in before.items() if name in after
    ]
    return [name for name, by in both if by < 0.0], [name for name, by in both if by > 0.0]


def read_reference(
    run: ChosenRun, source: SampleSource, include_path: Sequence[str]
) -> ReferenceScores:
    """Return the scores of the reference of a task.

    Raises PlanError if it has no scores per sample, or if the data set, which is needed to find
    them, is not on this machine.
    """
    report = find_report(run.folder)
    task = next((t for t in report.tasks if t.result.task == source.task), None) if report else None
    if task is None or task.reference is None or task.reference.runs is None:
        raise PlanError(
            f"--flips: {run.folder} has no reference with scores per sample for {source.task}",
            hint=AGAINST,
        )
    try:
        dataset = prepare_again(run.plan, task.spec, include_path).dataset
        stored = score_reference(dataset, task.reference)
    except ServeEvalError as error:
        raise PlanError(
            f"--flips needs the data set and the reference of {source.task}: {error}", hint=AGAINST
        ) from error
    if stored is None:
        raise PlanError(
            f"--flips: the reference of {source.task} has no scores of these samples", hint=AGAINST
        )
    return stored


def list_reference_flips(
    source: SampleSource, reference: ReferenceScores
) -> tuple[list[str], list[str]]:
    """Return the samples whose score fell from the reference's first run, and those that rose."""
    changes = [
        (name, as_stored(line.value, reference.lo, reference.hi) - before[0])
        for name, line in source.scores().items()
        if (before := reference.scores.get(source.base(name)))
    ]
    return [name for name, by in changes if by < 0.0], [name for name, by in changes if by > 0.0]
