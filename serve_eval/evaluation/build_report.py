"""What is said of the tasks of a run: each judged against its reference, and the report of all."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from importlib import metadata
from pathlib import Path

import serve_eval
from serve_eval.errors import NotComparableError
from serve_eval.evaluation.attribution import latency, trace
from serve_eval.evaluation.attribution.from_run import attributed
from serve_eval.evaluation.attribution.prompt_kinds import kinds_of
from serve_eval.evaluation.attribution.trace import Served
from serve_eval.evaluation.capabilities import reason
from serve_eval.evaluation.engine.degradation import degradations
from serve_eval.evaluation.engine.degradation import told as told_of
from serve_eval.evaluation.judges import remarks as judge_remarks
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.rerun import archived
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.order_seed import OrderSeeds
from serve_eval.evaluation.task_run import Work, random_order
from serve_eval.plugins.extensions import KINDS, loaded
from serve_eval.plugins.values import LAUNCHERS, VERDICTS, VerdictRule, load_verdict_rule
from serve_eval.protocol.shared import TASKS
from serve_eval.schema import (
    MEAN,
    Ability,
    Endpoint,
    FailureKind,
    Limits,
    Plan,
    Report,
    Spec,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.verdicts import pairing
from serve_eval.verdicts.exit_code import exit_code
from serve_eval.verdicts.rules import _acceptance, _early
from serve_eval.verdicts.validity import remarks

SCHEMA_VERSION = 2


def report_on(
    plan: Plan,
    work: Sequence[Work],
    endpoint: Endpoint,
    folder: Path,
    seeds: OrderSeeds,
    warnings: Sequence[str],
    started_at: datetime,
    wall_s: float,
    *,
    strict: bool,
) -> Report:
    rule, judge = load_verdict_rule(plan.verdict.name), verdict_rule(plan.verdict)
    more = (*_other_versions(work, endpoint), *_other_code(plan, folder), *archived(folder, [w.p.task for w in work]))
    unsupported = run_folder.unsupported(folder)
    loads = run_folder.loads(folder)
    known = trace.read(folder)
    looked_at = run_folder.looked_at(folder)
    limits = [plan.limits, *(load.limits for load in loads)]
    tasks = tuple(
        _report_task(
            w,
            plan,
            rule,
            judge,
            unsupported.get(w.p.task.name),
            known,
            seeds,
            limits,
            looked=w.p.task.name in looked_at,
        )
        for w in work
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        plan=plan,
        endpoint=endpoint,
        environment=environment(),
        tasks=tasks,
        loads=loads,
        exit_code=exit_code([t.verdict for t in tasks], strict=strict),
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=round(wall_s, 3),
        warnings=(*warnings, *more),
    )


def _report_task(
    w: Work,
    plan: Plan,
    rule: VerdictRule,
    judge: Callable[..., Verdict],
    lacks: Ability | None,
    known: Mapping[str, Mapping[str, Sequence[Served]]] | None,
    seeds: OrderSeeds,
    sessions: Sequence[Limits],
    *,
    looked: bool,
) -> TaskReport:
    """`lacks` is what the endpoint cannot do; a task that was answered to its end before stays judged. `known` is who
    answered what, by task and sample; `sessions` are the limits of those in which answers were had. `looked`: a paired
    rule looked at the task on the way, in this session or before."""
    p, tally = w.p, w.tally
    early = None if w.early is None else w.early.result()
    unasked = lacks is not None and w.unfinished
    result = tally.result(spared=unasked or (early is not None and early.stopped))
    if lacks is not None and unasked:
        verdict = _unjudged(p, result, VerdictOutcome.UNSUPPORTED, reason(lacks))
    elif plan.integration_test:
        verdict = _unjudged(p, result, VerdictOutcome.NOT_JUDGED, "INTEGRATION TEST: one sample, no verdict")
    elif result.value is None and result.scored:
        verdict = _unjudged(p, result, VerdictOutcome.ERROR, f"the scores give no value: {result.hook_errors[0]}")
    elif p.reference is None:
        verdict = _unjudged(p, result, VerdictOutcome.NO_REFERENCE, p.why_no_reference or "no reference")
    elif early is not None and early.stopped:
        verdict = _early.decided(result, p.reference, p.hypothesis, early)
    else:
        pairs, note = pairing.with_reference(p.task, p.dataset, p.reference, tally.runs())
        asked = result, p.reference, p.hypothesis, pairs
        if rule.early_stop == "pairs" and (looked or early is not None):
            margin = plan.verdict.options.get("margin", rule.default("margin"))
            verdict = _early.judged_after_looks(judge, *asked, margin=margin)
        else:
            verdict = judge(*asked)
        if note:
            verdict = replace(verdict, warnings=(*verdict.warnings, note))
        verdict = replace(verdict, early=early)
    if w.note and w.note not in verdict.warnings:
        verdict = replace(verdict, warnings=(*verdict.warnings, w.note))
    traffic = tally.traffic
    if p.task.acceptance_length is not None and p.acceptance is not None:
        verdict = _acceptance.judge(verdict, result, traffic.acceptance, p.task.acceptance_length, p.acceptance)
    judges = () if w.judgements is None else w.judgements.figures(p.task, tally.samples, w.journal.records())
    one_token = p.task.sampling.max_tokens <= 2
    planned = random_order(w, seeds, sessions)
    expected, n = p.expected, len(tally.samples)
    worse = () if planned is None else degradations(tally.course(planned), p.task.metric, n, expected)
    said = remarks(result, one_token_answers=one_token, stop=p.task.sampling.stop)
    who = None
    if known is not None and not any(one.choices for one in p.dataset.samples):  # each choice is a request of its own
        who = attributed(
            tally.fates(),
            w.journal.records(),
            known.get(p.task.name, {}),
            p.task.metric,
            expected=expected,
            prompts=len(p.dataset.samples),
            kinds=lambda places: kinds_of(p.task, [p.dataset.samples[place] for place in places]),
        )
    late = [latency.told(row) for row in (() if who is None else who.times) if row.slow]
    extra = (*p.notes, *judge_remarks(plan, judges), *map(told_of, worse), *late, *said)
    return TaskReport(
        spec=p.spec,
        version=p.task.version,
        dataset={"files": p.dataset.files, "total": p.dataset.total},
        fingerprint=p.fingerprint,
        result=result,
        traffic=traffic,
        reference=p.reference,
        verdict=replace(verdict, protocol=p.protocol, warnings=(*verdict.warnings, *extra)),
        isolations=() if w.executions is None else tuple(w.executions.isolations),
        degradations=worse,
        judges=judges,
        attribution=who,
    )


def _unjudged(p: PreparedTask, result: TaskResult, outcome: VerdictOutcome, why: str) -> Verdict:
    if result.scored == 0 and outcome is not VerdictOutcome.UNSUPPORTED:
        outcome = VerdictOutcome.ERROR
        lacks = "a score" if result.failures.get(FailureKind.SCORER_ERROR) else "an answer"
        why = f"nothing_scored: none of {result.planned} samples has {lacks}; {why}"
    return Verdict(
        task=result.task,
        outcome=outcome,
        rule="none",
        evaluated=None if outcome is VerdictOutcome.UNSUPPORTED else result.value,
        bounds=result.bounds,
        num_samples=p.hypothesis.num_samples,
        reasons=(why,),
    )


def verdict_rule(spec: Spec) -> Callable[..., Verdict]:
    rule = load_verdict_rule(spec.name)
    options = rule.check_options(spec.options)
    return lambda *arguments, **more: rule.judge(*arguments, **{**options, **more})


def check_pairs(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raises NotComparableError when the rule compares sample by sample and there is nothing to compare so: the
    reference has no scores per sample, or the value is no mean of them."""
    rule = load_verdict_rule(plan.verdict.name)
    if not rule.needs_pairs:
        return
    for p in prepared:
        if p.reference is not None and p.task.aggregation is not MEAN:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} compares the means of scores, and the value is the "
                f"{p.task.aggregation.name}",
                hint="Judge this task by --verdict classic, in a run of its own.",
            )
        if p.reference is not None and p.reference.runs is None:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} compares sample by sample, and the reference "
                f"({Path(p.reference.file).name}:{p.reference.line}) has no scores per sample",
                hint="Register runs of your own: serve-eval references register RUN... --references-dir DIR.",
            )
        needed = rule.min_reference_runs
        if p.reference is not None and p.reference.runs is not None and len(p.reference.runs.values) < needed:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} needs {needed} reference runs, and the reference "
                f"({Path(p.reference.file).name}:{p.reference.line}) is of {len(p.reference.runs.values)}",
                hint="Register more: serve-eval references register RUN RUN RUN --references-dir DIR --reason '...'.",
            )


def _other_versions(work: Sequence[Work], endpoint: Endpoint) -> list[str]:
    """Where a reference of one's own was taken from another version of the software than answers now."""
    now, found = endpoint.info.version, []
    for w in work:
        runs = None if w.p.reference is None else w.p.reference.runs
        if runs is not None and runs.endpoint is not None and now is not None and runs.endpoint != now:
            found.append(
                f"{w.p.task.name}: the reference was taken at version {runs.endpoint}; this endpoint says {now}"
            )
    return found


def _other_code(plan: Plan, folder: Path) -> list[str]:
    """What code of others made the numbers, and where it has changed since answers were had."""
    named = [*((TASKS, task) for task in plan.tasks), (LAUNCHERS, plan.launcher), (VERDICTS, plan.verdict)]
    used = {f"{KINDS[folder]}.{name}" for folder, spec in named for name in (spec.name, spec.name.partition(":")[0])}
    told = []
    for name, now in loaded().items():
        if name not in used and not name.startswith("scorers."):
            continue
        before = [session.get("extensions", {}).get(name, {}).get("sha256") for session in run_folder.sessions(folder)]
        changed = sorted({digest[:12] for digest in before if digest is not None} - {now.sha256[:12]})
        line = f"{name} is that of {now.origin} (sha256 {now.sha256[:12]})"
        told.append(f"{line}; answers were had when it was {', '.join(changed)}" if changed else line)
    return told


def environment() -> dict[str, object]:
    """Versions of what made the numbers; an optional package counts when it is installed, and is not imported."""
    packages = ("httptools", "lm-eval", "msgspec", "numpy", "scipy", "tensorrt-llm", "uvloop")
    versions = {name: version for name in packages if (version := _version(name))}
    return {
        "serve_eval": serve_eval.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        **({"extensions": extensions} if (extensions := loaded()) else {}),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
