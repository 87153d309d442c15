"""Read the runs that a reference is made of: scores, seeds, first answers, deployments."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from serve_eval.errors import EndpointError, RunFolderError
from serve_eval.evaluation.capabilities import reason
from serve_eval.evaluation.capabilities.sampling import list_kept
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.task_run import open_scoring, take
from serve_eval.evidence.answer_texts import find_scripts, is_loop, mark_shared
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Plan, Response, Sample, Spec, Task, VerdictOutcome
from serve_eval.series.deployments import describe_deployment
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import keep_standing, run_proofs
from serve_eval.storage.assessments import Executions, Judgements
from serve_eval.storage.file_names import executions_file, judgements_file, samples_file
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.sessions import read_defaults, read_sessions, read_unsupported
from serve_eval.verdicts import references
from serve_eval.verdicts.reference_samples import StoredAnswers


class ScoredRun(NamedTuple):
    """The scores of a run per sample, its value in points, and the parts that its value sums up.

    The first answers to `doubted` of the samples are unknown. `cut` says of each answer whether
    anything cut it off.
    """

    scores: array[float]
    value: float
    parts: Sequence[array[float]]
    doubted: int = 0
    cut: tuple[bool, ...] = ()


def read_scores(run: Path, plan: Plan, prepared: Sequence[PreparedTask]) -> list[list[ScoredRun]]:
    """Return the scores of every task of a run, for each of its repeats, from its journal.

    `prepared` may lack the sampling seeds of `plan`. Raises RunFolderError if a score is missing.
    """
    saved = run_folder.read_fingerprints(run)
    fingerprints = {p.task.name: with_seed(p.fingerprint, saved[p.task.name]) for p in prepared}
    found = []
    with ExitStack() as stack:
        folder = stack.enter_context(run_folder.open_folder(run, plan, fingerprints))
        scoring = stack.enter_context(open_scoring(plan, prepared))
        for p in prepared:
            records = stack.enter_context(Journal(samples_file(folder, p.task.name))).records()
            executions = Executions(executions_file(folder, p.task.name), keep=False)
            judgements = Judgements(judgements_file(folder, p.task.name))
            accumulator = ScoreAccumulator(
                p.task,
                p.dataset.samples,
                repeats=plan.times(p.task.name),
                executions=executions,
                judgements=judgements,
                apart=scoring.of(p.task.name),
            )
            take(keep_standing(records, run_proofs(folder)), accumulator)
            missing = len(accumulator.samples) - accumulator.scored
            if missing:
                raise _explain_missing(run, p.task.name, missing, len(accumulator.samples))
            found.append(_list_runs(accumulator))
    return found


def check_supported(run: Path) -> None:
    """Raise EndpointError if a finished run found that its endpoint lacks what a task needs."""
    report = read_report(run) if has_report(run) else None
    for one in () if report is None else report.tasks:
        name, verdict = one.result.task, one.verdict
        if verdict.outcome is VerdictOutcome.UNSUPPORTED:
            why = "; ".join(reason.removeprefix("unsupported: ") for reason in verdict.reasons)
            raise EndpointError(
                f"{run}: {name} is UNSUPPORTED: {why}",
                hint=f"Leave {name} out, or take it from an endpoint that can do this.",
            )


def _explain_missing(run: Path, task: str, missing: int, total: int) -> RunFolderError:
    """Return the error for samples without a score, and what gives them one."""
    if (lacks := read_unsupported(run).get(task)) is not None:
        return RunFolderError(
            f"{run}: {task} is UNSUPPORTED there and has no scores: {reason(lacks)}",
            hint="To ask again would change nothing. Take the reference at an endpoint that can"
            " answer the task, or register a run without it.",
        )
    return RunFolderError(
        f"{run}: {missing} of {total} samples of {task} have no answer or no score",
        hint="A reference needs every score: resume the run first, with --no-early-stop if it"
        " stopped early.",
    )


def _list_runs(accumulator: ScoreAccumulator) -> list[ScoredRun]:
    sums = accumulator.task.aggregation.sums
    parts = accumulator.part_runs(() if sums is None else sums.parts)
    n = len(accumulator.samples) // accumulator.repeats
    doubted = [0] * accumulator.repeats
    for place in accumulator.list_doubted():
        doubted[place // n] += 1
    cut = [[False] * n for _ in doubted]
    for place in accumulator.list_cut():
        cut[place // n][place % n] = True
    cuts = map(tuple, cut)
    rows = zip(accumulator.runs(), accumulator.run_values(), parts, doubted, cuts, strict=True)
    return [ScoredRun(*row) for row in rows]


def join_parts(task: Task, scored: Sequence[ScoredRun]) -> Mapping[str, Sequence[array[float]]]:
    """Return the parts of all runs by name, none for a value that does not depend on sums."""
    sums = task.aggregation.sums
    names = () if sums is None else sums.parts
    return {name: [run.parts[i] for run in scored] for i, name in enumerate(names)}


def find_range(task: Task, runs: Sequence[array[float]]) -> tuple[float, float] | None:
    """Return the range of the stored scores.

    The verdict on sums does not depend on it, so that it may end at the highest score. Scores of a
    mean without a range cannot be stored: None.
    """
    lo, hi = task.metric.lo, task.metric.hi
    if lo is not None and hi is None and task.aggregation.sums is not None:
        hi = math.ceil(max(lo + 1.0, *map(max, runs)))
    return None if lo is None or hi is None else (lo, hi)


def list_failed(runs: Sequence[Path], task: str) -> Iterator[str]:
    """Yield a warning about each run that its own reference failed."""
    for run in runs:
        report = read_report(run) if has_report(run) else None
        for one in () if report is None else report.tasks:
            verdict = one.verdict
            if one.result.task == task and verdict.outcome is VerdictOutcome.FAIL:
                against = "" if verdict.reference is None else f" against {verdict.reference:.3f}"
                yield (
                    f"{run} was FAIL{against}: the reference takes a value as sound that was judged"
                    " too low or too high"
                )


SEED = "seed"
"""The option and the field of a task's protocol with the sampling seed."""


def leave_distinct_seeds(
    plans: Sequence[Plan], prints: Sequence[Mapping[str, Mapping[str, str]]]
) -> tuple[list[Plan], list[Mapping[str, Mapping[str, str]]]]:
    """Leave out the seeds of tasks that each run asked once, with a seed of its own.

    Such runs are draws as those without a seed are, so their mean is a reference without one. Runs
    that share a seed keep it: they are one draw. `prints` are the fingerprints of the runs.
    """
    seeds: dict[str, list[object]] = {}
    for plan in plans:
        for spec in plan.tasks:
            seeds.setdefault(spec.name, []).append(spec.options.get(SEED))
    drawn = {
        name
        for name, found in seeds.items()
        if len(found) == len(plans) > 1
        and None not in found
        and len(set(found)) == len(found)
        and all(plan.times(name) == 1 for plan in plans)
    }
    return (
        [replace(plan, tasks=tuple(_drop(one, drawn) for one in plan.tasks)) for plan in plans],
        [
            {
                name: {**found, SEED: "null"} if name in drawn else found
                for name, found in of.items()
            }
            for of in prints
        ],
    )


def _drop(spec: Spec, drawn: Collection[str]) -> Spec:
    if spec.name not in drawn:
        return spec
    return replace(spec, options={k: v for k, v in spec.options.items() if k != SEED})


def with_seed(fingerprint: Mapping[str, str], saved: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint with the seed of a saved one."""
    kept = {k: v for k, v in fingerprint.items() if k != SEED}
    return {**kept, SEED: saved[SEED]} if SEED in saved else kept


def describe_seeds(task: Task, plans: Sequence[Plan]) -> str:
    """Return how the runs of a task were drawn: by their plans, or by the seed of the task."""
    if task.sampling.temperature == 0:
        return "temperature 0, so that no seed matters"
    found = [
        spec.options.get(SEED, task.sampling.seed)
        for plan in plans
        for spec in plan.tasks
        if spec.name == task.name
    ]
    repeats = sum(plan.times(task.name) for plan in plans)
    more = f", and the {repeats} repeats have seeds of their own" if repeats > len(plans) else ""
    named = ", ".join(str(seed) for seed in found if seed is not None)
    if not named:
        return "no sampling seed: the server drew"
    if len(set(found)) == 1:
        each = f" in each of {len(found)} runs" if len(found) > 1 else ""
        return f"sampling seed {found[0]}{each}{more}"
    return f"{len(set(found))} sampling seeds: {named}{more}"


def describe_answers(samples: Sequence[Sample], records: Iterable[Record]) -> StoredAnswers | None:
    """Return the lengths of the answers and their signs of damage, in the order of the samples.

    None unless every sample has an answer that is a text.
    """
    found: dict[str, Response] = {}
    for record in records:
        if record.response is not None:
            found.setdefault(record.id, record.response)
    answers = [found[sample.id] for sample in samples if sample.id in found]
    if len(answers) < len(samples) or not all(map(_is_text, answers)):
        return None
    texts = [one.text for one in answers]
    counts = [one.usage.completion_tokens for one in answers]
    return StoredAnswers(
        counted=all(counts),
        lengths=tuple(counts if all(counts) else map(len, texts)),
        cut=tuple(one.truncated for one in answers),
        looping=tuple(map(is_loop, texts)),
        shared=tuple(mark_shared(texts, ())),
        scripts=frozenset(script for text in texts for script in find_scripts(text)),
    )


def count_equal(samples: Sequence[Sample], runs: Iterable[Iterable[Record]]) -> int:
    """Return the number of samples to which all runs have the same text, or 0 without texts.

    Repeats within a run have ids of their own and are not compared.
    """
    first: dict[str, int] | None = None
    for records in runs:
        texts = {
            record.id: hash((record.response.reasoning, record.response.text))
            for record in records
            if record.response is not None and _is_text(record.response)
        }
        first = texts if first is None else first
        first = {name: text for name, text in first.items() if texts.get(name) == text}
    return 0 if first is None else sum(sample.id in first for sample in samples)


def _is_text(response: Response) -> bool:
    return response.prompt_logprobs is None and response.choice_logprobs is None


def list_deployments(runs: Sequence[Path], plans: Sequence[Plan]) -> list[dict[str, str]]:
    """Return the different deployments that answered in runs, each without its specification."""
    found: list[dict[str, str]] = []
    for run, plan in zip(runs, plans, strict=True):
        for one in read_sessions(run):
            known = describe_deployment(plan, one.endpoint, {})
            deployment = {k: v for k, v in known.items() if k not in references.SPEC_KEYS}
            found += [deployment] if deployment not in found else []
    return found


def find_version(run: Path) -> str | None:
    sessions = read_sessions(run)
    return sessions[-1].endpoint.info.version if sessions else None


def list_added(runs: Sequence[Path], task: Task) -> list[str] | None:
    """Return the sampling fields that the servers of runs added, None if one was not probed.

    Raises RunFolderError if they are not the same for all runs, whose mean would mix two settings.
    """
    found = [read_defaults(run) for run in runs]
    if None in found:
        return None
    added = [sorted(list_kept(one, task)) for one in found]
    for run, names in zip(runs, added, strict=True):
        if names != added[0]:
            one, other = (", ".join(of_run) or "nothing" for of_run in (names, added[0]))
            raise RunFolderError(
                f"{task.name}: in {run}, the server added {one} to requests, and {other} in"
                f" {runs[0]}",
                hint="Take all runs at one server, with the same server_defaults.",
            )
    return added[0]
