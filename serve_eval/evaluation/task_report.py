"""Report on one task of a run: its result, verdict, remarks and cut answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import ExternalCodeError
from serve_eval.evaluation import unfinished
from serve_eval.evaluation.capabilities import reason
from serve_eval.evaluation.capabilities.sampling import put_kept
from serve_eval.evaluation.judges import remarks as judge_remarks
from serve_eval.evaluation.results.degradation import degradations, describe
from serve_eval.evaluation.results.examples import break_down_reference, pick_example
from serve_eval.evaluation.task_run import TaskRun, random_order
from serve_eval.evidence.attribution import attribute_task, kinds_of, latency
from serve_eval.frozen import freeze
from serve_eval.plan.command_line import permissions
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import (
    Ability,
    Attribution,
    BudgetEnd,
    Degradation,
    EarlyStop,
    FailureKind,
    JudgeReport,
    Limits,
    Plan,
    Reference,
    SamplingDefaults,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.shell_words import quote_path
from serve_eval.storage.answer_origins import Served
from serve_eval.storage.order_seed import OrderSeeds
from serve_eval.verdicts import many_tests, pairing, reference_noise, repaired, validity
from serve_eval.verdicts.rules import _acceptance, _classic
from serve_eval.verdicts.rules._classic import NO_PAIRS
from serve_eval.verdicts.validity import remarks

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


@freeze
class RunFacts:
    """Facts about a run that are needed to judge its tasks.

    `unsupported` has what the endpoint cannot do, by task. `served` has the workers behind each
    answer, by task and sample. `limits` are those of the sessions that produced answers. A paired
    rule has examined the tasks in `looked_at` during the run, in this session or before.
    `defaults` are the sampling defaults of the endpoint (None: not probed). The limit `ended_by`
    ended the last session before everything was asked ("": none did).
    """

    folder: Path
    plan: Plan
    unsupported: Mapping[str, Ability]
    served: Mapping[str, Mapping[str, Sequence[Served]]] | None
    seeds: OrderSeeds
    limits: Sequence[Limits]
    looked_at: Collection[str]
    defaults: SamplingDefaults | None = None
    ended_by: str = ""


IDENTICAL = "identical: the probes are those of the reference, and nothing else was asked"


def report_task(task_run: TaskRun, run: RunFacts) -> TaskReport:
    """Return the report of a task.

    A task that was finished before the endpoint lost an ability is still judged.
    """
    p, accumulator = task_run.prepared, task_run.accumulator
    verdict, result, end = _judge_so_far(task_run, run)
    if end is not None:
        verdict = unfinished.note_end(verdict, end)
    if task_run.note and task_run.note not in verdict.warnings:
        verdict = replace(verdict, warnings=(*verdict.warnings, task_run.note))
    traffic = accumulator.traffic
    if p.task.acceptance_length is not None and p.acceptance is not None:
        verdict = _acceptance.judge(
            verdict, result, traffic.acceptance, p.task.acceptance_length, p.acceptance
        )
    judges = (
        ()
        if task_run.judgements is None
        else task_run.judgements.figures(p.task, accumulator.samples, task_run.journal.records())
    )
    worse = _degradations(task_run, run)
    who = _attribution(task_run, run)
    before, means = break_down_reference(p.task, p.dataset, p.reference)
    if task_run.scores is not None:
        task_run.scores.flush()
    extra = _warnings(task_run, run, result, judges, worse, who)
    return TaskReport(
        spec=p.spec,
        version=p.task.version,
        dataset={"files": p.dataset.files, "total": p.dataset.total},
        fingerprint=put_kept(p.fingerprint, run.defaults, p.task),
        result=result,
        traffic=traffic,
        reference=p.reference,
        verdict=replace(
            verdict,
            protocol=p.protocol,
            rule_named=run.plan.rule_named,
            warnings=(*verdict.warnings, *extra),
            identity=task_run.identity,
        ),
        isolations=() if task_run.executions is None else tuple(task_run.executions.isolations),
        degradations=worse,
        judges=judges,
        attribution=who,
        reference_breakdown=before,
        example=pick_example(run.folder, accumulator, means),
    )


def judge_task(task_run: TaskRun, run: RunFacts) -> Verdict:
    """Return the verdict by the answers so far, as if the run ended now by `run.ended_by`.

    Remarks that change no outcome are left out.
    """
    return _judge_so_far(task_run, run)[0]


def _judge_so_far(task_run: TaskRun, run: RunFacts) -> tuple[Verdict, TaskResult, BudgetEnd | None]:
    """Return the verdict of a task with its result, and how far it was asked if not wholly."""
    early = None if task_run.early is None else task_run.early.result()
    lacks = run.unsupported.get(task_run.prepared.task.name) if task_run.unfinished else None
    stopped = early is not None and early.stopped
    end = None if stopped or task_run.identical else _find_end(task_run, run)
    spared = lacks is not None or stopped or end is not None or task_run.identical
    result = task_run.accumulator.result(spared=spared)
    if task_run.identical:
        return (
            Verdict(
                task=result.task,
                outcome=VerdictOutcome.PASS_BY_IDENTITY,
                rule="identity",
                evaluated=None,
                reasons=(IDENTICAL,),
            ),
            result,
            end,
        )
    return _verdict(task_run, run, result, early, lacks, end), result, end


def _verdict(
    task_run: TaskRun,
    run: RunFacts,
    result: TaskResult,
    early: EarlyStop | None,
    lacks: Ability | None,
    end: BudgetEnd | None,
) -> Verdict:
    """Judge the result of a task, or state why it is not judged.

    `lacks` is what the endpoint cannot do. `end` exists if a limit left samples unasked.
    """
    p = task_run.prepared
    if lacks is not None:
        return _build_unjudged(p, result, VerdictOutcome.UNSUPPORTED, reason(lacks))
    if run.plan.shard is not None:
        return _build_unjudged(
            p,
            result,
            VerdictOutcome.SHARD,
            "a shard is not judged: serve-eval runs merge judges all shards together",
        )
    if run.plan.integration_test:
        return _build_unjudged(
            p, result, VerdictOutcome.NOT_JUDGED, "INTEGRATION TEST: one sample, no verdict"
        )
    if result.value is None and result.scored:
        why = f"the scores give no value: {result.hook_errors[0]}; {_tell_how_to_mend(run)}"
        return _build_unjudged(p, result, VerdictOutcome.ERROR, why)
    if p.reference is None:
        return _judge_without_reference(p, result, end)
    if early is not None and early.stopped:
        decided = _classic.judge_decided(result, p.reference, p.hypothesis, early)
        return validity.warn_of_stopped(decided, result)
    if end is not None:
        judged = _judge_asked(task_run, run, result, end, p.reference, looked=early is not None)
        return replace(judged, early=early)
    try:
        judged = _judge(task_run, run, result, p.reference, looked=early is not None)
    except ExternalCodeError as error:
        why = f"{error}; {_tell_how_to_mend(run)}"
        return _build_unjudged(p, result, VerdictOutcome.ERROR, why)
    if result.scored == 0 and judged.outcome is not VerdictOutcome.ERROR:
        why = f"the rule {judged.rule} said {judged.outcome.value}"
        return _build_unjudged(p, result, VerdictOutcome.ERROR, why)
    return replace(judged, early=early)


def _judge_asked(
    task_run: TaskRun,
    run: RunFacts,
    result: TaskResult,
    end: BudgetEnd,
    reference: Reference,
    *,
    looked: bool,
) -> Verdict:
    """Judge a task of which a limit left samples unasked; `looked` as in `_judge`."""
    p = task_run.prepared
    whole = task_run.accumulator.result()
    bounds = whole.bounds if whole.doubted_bounds is None else whole.doubted_bounds
    judged = unfinished.judge_asked(p, reference, result, end, bounds)
    if judged.outcome is VerdictOutcome.INCONCLUSIVE and unfinished.may_prove(p, end):
        pairs = _judge(task_run, run, whole, reference, looked=looked)
        judged = unfinished.take_proven(judged, pairs, end)
    return judged


def _judge_without_reference(
    prepared: PreparedTask, result: TaskResult, end: BudgetEnd | None
) -> Verdict:
    if end is not None and end.unasked == end.planned:
        why = f"{end.ended_by}: {unfinished.describe_end(end)}"
        return _build_unjudged(prepared, result, VerdictOutcome.NOT_ASKED, why)
    why = prepared.why_no_reference or "no reference"
    return _build_unjudged(prepared, result, VerdictOutcome.NO_REFERENCE, why)


def _find_end(task_run: TaskRun, run: RunFacts) -> BudgetEnd | None:
    """Return how far a task was asked when a limit ended the run, if samples were not asked."""
    if not run.ended_by:
        return None
    order = random_order(task_run, run.seeds, run.limits, run.looked_at)
    if order is None and task_run.early is not None:
        order = task_run.early.order
    return unfinished.find_end(task_run, run.ended_by, order)


def _tell_how_to_mend(run: RunFacts) -> str:
    """Return what to do after a function of the user failed on the answers of a run."""
    again = f"serve-eval judge {quote_path(run.folder)}{permissions([run.plan])}"
    return f"the answers are kept: mend it, then judge them with {again}"


def _judge(
    task_run: TaskRun, run: RunFacts, result: TaskResult, reference: Reference, *, looked: bool
) -> Verdict:
    """Judge a task; `looked` is True if an early stop examined it.

    Samples that the run did not ask count as missing.
    """
    p = task_run.prepared
    accumulator, sums = task_run.accumulator, p.task.aggregation.sums
    parts = [] if sums is None else accumulator.part_runs(sums.parts)
    pairs, note = pairing.with_reference(p.task, p.dataset, reference, accumulator.runs(), parts)
    options, rule = p.rule.options, load_verdict_rule(p.rule.name)
    by_rule = rule.with_options(options)
    higher = pairing.is_higher_better(p.task.metric, reference)

    def judge(
        result: TaskResult,
        pairs: Pairs | None,
        against: Reference = reference,
        **more: object,
    ) -> Verdict:
        asked = result, against, p.hypothesis, pairs
        if rule.early_stop == "pairs" and (looked or p.task.name in run.looked_at):
            margin = options.get("margin", rule.default("margin"))
            verdict = _classic.judge_after_looks(partial(by_rule, **more), *asked, margin=margin)
        else:
            verdict = by_rule(*asked, **more)
        return many_tests.add_other(verdict, result, higher_is_better=higher)

    def judge_bounded() -> Verdict:
        """Judge the task as if the samples whose first answers are unknown were missing."""
        known = accumulator.without_doubted()
        rest = [] if sums is None else known.part_runs(sums.parts)
        fewer, _ = pairing.with_reference(p.task, p.dataset, reference, known.runs(), rest)
        more = repaired.allow_more(rule, result.doubted / result.planned, options)
        return judge(repaired.as_bounded(result), fewer, reference, **more)

    verdict = judge(result, pairs)
    if result.doubted:
        means, _ = pairing.reference_means(p.dataset, reference)
        chance = repaired.measure_dependence(accumulator.list_doubted(), means)
        doubt, policy = repaired.doubt_of(result, chance), repaired.read_policy(options)
        verdict = repaired.settle(verdict, judge_bounded, doubt, policy, result)
    verdict = many_tests.warn(add_cut_effect(verdict, task_run, result, reference, judge))
    if note is None:
        return verdict
    why = pairing.explain_unpaired(p.task, reference)
    cause = tuple(f"no_pairs: {note}" if one == NO_PAIRS else one for one in verdict.reasons)
    told: tuple[str, ...] = (note,)
    if why is not None and cause != verdict.reasons:
        cause = (*cause, why)
    elif why is not None:
        told = (why, note)
    return replace(verdict, reasons=cause, warnings=(*verdict.warnings, *told))


def _build_unjudged(
    prepared: PreparedTask, result: TaskResult, outcome: VerdictOutcome, why: str
) -> Verdict:
    asked = result.spared < result.planned
    if result.scored == 0 and asked and outcome is not VerdictOutcome.UNSUPPORTED:
        outcome = VerdictOutcome.ERROR
        lacks = "a score" if result.failures.get(FailureKind.SCORER_ERROR) else "an answer"
        why = f"nothing_scored: none of {result.planned} samples has {lacks}; {why}"
    return Verdict(
        task=result.task,
        outcome=outcome,
        rule="none",
        evaluated=None if outcome is VerdictOutcome.UNSUPPORTED else result.value,
        bounds=result.bounds,
        num_samples=prepared.hypothesis.num_samples,
        reasons=(why,),
    )


def _degradations(task_run: TaskRun, run: RunFacts) -> tuple[Degradation, ...]:
    """Return what got worse during the run, if the samples were started in a random order."""
    planned = random_order(task_run, run.seeds, run.limits, run.looked_at)
    if planned is None:
        return ()
    return degradations(
        task_run.accumulator.course(planned),
        task_run.prepared.task.metric,
        len(task_run.accumulator.samples),
        task_run.prepared.expected,
        courses=run.plan.courses,
    )


def _attribution(task_run: TaskRun, run: RunFacts) -> Attribution | None:
    """Return which worker gave which answers, if known."""
    p = task_run.prepared
    if run.served is None or any(one.choices for one in p.dataset.samples):
        return None  # Each choice is a separate request.
    return attribute_task(
        task_run.accumulator.fates(),
        task_run.journal.records(),
        run.served.get(p.task.name, {}),
        p.task.metric,
        expected=p.expected,
        prompts=len(p.dataset.samples),
        kinds=lambda places: kinds_of(p.task, [p.dataset.samples[place] for place in places]),
        tasks=len(run.plan.tasks),
    )


def _warnings(
    task_run: TaskRun,
    run: RunFacts,
    result: TaskResult,
    judges: Sequence[JudgeReport],
    worse: Sequence[Degradation],
    who: Attribution | None,
) -> tuple[str, ...]:
    """Return what a reader of the verdict should know, except for the rule's own warnings."""
    sampling = task_run.prepared.task.sampling
    late = [latency.describe_slow(row) for row in (() if who is None else who.times) if row.slow]
    drawn = reference_noise.describe_one_draw(result.stability)
    said = remarks(result, max_tokens=sampling.max_tokens, stop=sampling.stop)
    return (
        *task_run.prepared.notes,
        *judge_remarks(run.plan, judges),
        *map(describe, worse),
        *late,
        *([] if drawn is None else [drawn]),
        *said,
    )


def add_cut_effect(
    verdict: Verdict,
    task_run: TaskRun,
    result: TaskResult,
    reference: Reference,
    judge: Callable[..., Verdict],
) -> Verdict:
    """Return the verdict with what it would be if cut answers of either side were right.

    `judge(result, pairs, against)` is the rule; `against` is the reference unless it is given.
    """
    task, dataset = task_run.prepared.task, task_run.prepared.dataset
    right = task_run.accumulator.with_cuts_right() if result.cut else None
    better = validity.with_cuts_right(task, dataset, reference)

    def judge_own() -> Verdict:
        assert right is not None
        pairs, _ = pairing.with_reference(task, dataset, reference, right.runs())
        return judge(replace(result, value=result.cut_value, bounds=result.cut_bounds), pairs)

    def judge_theirs() -> Verdict:
        assert better is not None
        assert better.reference is not None
        runs = task_run.accumulator.runs()
        pairs, _ = pairing.with_reference(task, dataset, reference, runs, cuts_right=True)
        return judge(result, pairs, against=better.reference)

    return validity.add_effect(
        verdict,
        result,
        own=judge_own if right is not None and result.cut_value is not None else None,
        reference_cut=None if better is None else better.cut,
        reference_answers=None if better is None else better.answers,
        theirs=judge_theirs if better is not None and better.reference and better.cut else None,
        reference_name="the reference"
        if better is None or better.runs == 1
        else f"the reference's {better.runs} runs",
    )
