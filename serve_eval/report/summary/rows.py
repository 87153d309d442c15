"""Yield the rows of a task's summary, the most important first, then the next commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from serve_eval.evaluation.results.examples import name_target
from serve_eval.frozen import freeze_places
from serve_eval.plan.applicable_reference import write_taking
from serve_eval.plan.command_line import HOW_TO_TAKE, write_larger, write_resume_command
from serve_eval.plugins.registry import name_folders
from serve_eval.report import lines
from serve_eval.report.summary import figures
from serve_eval.report.summary.figures import SummaryTask, figure
from serve_eval.schema import (
    CERTAIN,
    CutEffect,
    EarlyStop,
    Metric,
    Outcome,
    Report,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
    WrongExample,
    is_mutable,
)
from serve_eval.schema.task import REQUESTS
from serve_eval.shell_words import quote_argument, quote_path, quote_word
from serve_eval.verdicts import many_tests, validity

Row = tuple[str, str]
SHOWN_ERRORS = 3
"""Number of different scorer errors that are shown per task."""
LONGEST = 60
"""Characters of an answer that are shown in an example."""
_WORDS = {
    Outcome.UNPARSED: "unreadable",
    Outcome.EMPTY: "empty",
    Outcome.REASONING_ONLY: "reasoning only",
    Outcome.REFUSED: "refused",
}


def rows_of(task: SummaryTask) -> Iterator[Row]:
    """Yield the rows of one task."""
    verdict, result = task.verdict, task.result
    if verdict.outcome is VerdictOutcome.PASS_BY_IDENTITY and verdict.identity is not None:
        yield from figures.describe_identity(verdict.identity)
        yield from warnings_of(task)
        return
    if verdict.outcome is not VerdictOutcome.PASS or verdict.rule == "none":
        yield from (("why", reason) for reason in dict.fromkeys(verdict.reasons))
    if verdict.early is not None:
        yield "stopped", _describe_early(verdict.early)
    if verdict.identity is not None:
        yield from figures.describe_identity(verdict.identity)
    yield from describe_repeats(task)
    yield from _uncertainty(task)
    if verdict.other is not None:
        agree = verdict.other.outcome is verdict.outcome
        yield "rule" if agree else "rules", describe_rules(task)
    if verdict.outcome is not VerdictOutcome.UNSUPPORTED:
        left_out = "not needed" if verdict.budget is None else "not asked"
        yield "asked", describe_answers(result, left_out)
        yield from describe_cuts(task)
    yield from describe_breakdown(task)
    if task.example is not None and verdict.outcome in _EXAMPLES:
        yield "e.g.", describe_example(task.example, result.task)
    yield from _more(task)
    yield from warnings_of(task)


def _more(task: SummaryTask) -> Iterator[Row]:
    """Yield the rows that few tasks have."""
    verdict, result = task.verdict, task.result
    if result.modes:
        yield "wrong by", ", ".join(f"{mode} {n}" for mode, n in result.modes.items())
    if task.acceptance is not None:
        yield "drafts", lines.acceptance(task.acceptance, verdict.acceptance)
    if "mismatch" in (verdict.protocol or ""):
        yield "note", f"protocol: {verdict.protocol}"
    if verdict.outcome is VerdictOutcome.PASS and verdict.rule != "none":
        yield from (("note", reason) for reason in verdict.reasons)


def describe_repeats(task: SummaryTask) -> Iterator[Row]:
    """Yield the line about the repeats of a task and how far they agree."""
    if task.result.stability is not None:
        whose = f"{task.names[0]}: " if task.names[0] else ""
        yield "repeats", f"{whose}{lines.describe_repeats(task.result)}"
        yield "spread", f"{whose}{lines.describe_agreement(task.result.stability)}"


def describe_cuts(task: SummaryTask) -> Iterator[Row]:
    """Yield how many answers were cut off, the causes, and the value if these were right."""
    result, effect = task.result, task.verdict.cut
    said = []
    if result.cut:
        asked = result.planned - result.spared
        said.append(f"{result.cut_answers:,} of {asked:,}: {validity.describe_kinds(result)}")
        said += filter(None, [figures.describe_bound(task)])
    if effect is not None and effect.reference_cut:
        said.append(f"{task.names[1]}: {_describe_reference_cuts(effect, task)}")
    if said:
        yield "cut", "; ".join(said)


def _describe_reference_cuts(effect: CutEffect, task: SummaryTask) -> str:
    """Return how many answers of the reference were cut, and its value if they were right."""
    whose, result = task.names[1], task.result
    cut = effect.reference_cut or 0
    of = "" if effect.reference_answers is None else f" of {effect.reference_answers:,}"
    told = f"{cut:,}{of} cut"
    if effect.reference_value is None:
        return told if whose != "reference" else f"{told} in its first run, the others not known"
    value = figures.figure(effect.reference_value, result.metric)
    return f"{told}, {value} if {'it was' if cut == 1 else 'they were'} right"


def tell_how_to_score_again(resume: str) -> str:
    """Return what to do about a failed scorer; `resume` is the command that resumes the run."""
    return (
        f"after fixing the scorer, {resume} scores these answers without new requests;"
        " limits.scorer_timeout_s gives the scorer more time"
    )


_EXAMPLES = (VerdictOutcome.FAIL, VerdictOutcome.NO_REFERENCE)
"""Outcomes after which a wrong answer is shown."""


def warnings_of(task: SummaryTask) -> Iterator[Row]:
    """Yield errors and warnings about a task."""
    result = task.result
    yield from (("error", error.line) for error in result.scorer_errors[:SHOWN_ERRORS])
    if (more := len(result.scorer_errors) - SHOWN_ERRORS) > 0:
        yield "error", f"{figures.count(more, 'more scorer error')} in report.json"
    if result.scorer_errors:
        yield "fix", tell_how_to_score_again(task.resume)
    yield from (("error", f"left out of the figures: {line}") for line in result.hook_errors)
    yield from (("warning", warning) for warning in task.verdict.warnings)


def _uncertainty(task: SummaryTask) -> Iterator[Row]:
    """Yield the interval of the change if answers were compared in pairs, else of the value."""
    result, paired = task.result, task.verdict.paired
    if paired is not None and paired.interval is not None:
        label, said = describe_change(task.verdict, result.metric)
        yield label, f"{said}{_explain_zero(task.verdict)}"
    elif (end := task.verdict.budget) is not None and end.interval is not None:
        ends = figures.span(end.interval, result.metric)
        yield "value", f"{ends} (95 % interval by the first {figures.count(end.asked, 'sample')})"
    elif result.interval is not None:
        ends = figures.span(result.interval, result.metric)
        kind = "" if result.aggregation == "mean" else f"of {result.aggregation} "
        prompts = result.planned // (1 if result.stability is None else result.stability.repeats)
        yield "value", f"{ends} (95 % interval {kind}over {figures.count(prompts, 'prompt')})"


def _explain_zero(verdict: Verdict) -> str:
    """Return why a paired FAIL can have an interval with 0 in it, or ""."""
    paired, alpha = verdict.paired, verdict.alpha
    if verdict.outcome is not VerdictOutcome.FAIL or verdict.rule != "paired" or alpha is None:
        return ""
    if paired is None or paired.interval is None or paired.interval[1] < 0.0:
        return ""
    return f"; FAIL by one-sided p < {alpha:g}: the two-sided interval may contain 0"


def describe_change(verdict: Verdict, metric: Metric) -> Row:
    """Return the row about the difference on the same prompts."""
    paired = verdict.paired
    assert paired is not None
    assert paired.interval is not None
    low, high = paired.interval
    unit = " points" if figures.in_points(metric) else ""
    if high < 0.0 or low > 0.0:
        label = "drop" if high < 0.0 else "rise"
        ends = sorted((abs(low), abs(high)))
        shown = f"{figures.figure(ends[0], metric)} to {figures.figure(ends[1], metric)}{unit}"
    else:
        label = "change"
        shown = f"{figures.add_sign(low, metric)} to {figures.add_sign(high, metric)}{unit}"
    prompts, runs = figures.count(paired.pairs, "prompt"), paired.reference_runs
    repeated = min(runs, paired.candidate_runs) > 1
    groups = "" if paired.groups is None else f" in {paired.groups} groups"
    answers = f"on these {prompts}, {runs} and {paired.candidate_runs} answers to each"
    said = [f"{shown} (95 % interval {answers if repeated else f'over {prompts}{groups}'})"]
    if paired.down is not None and paired.up is not None:
        said.append(lines.count_turned(paired))
    if paired.p is not None:
        null = ", against any build of equal accuracy" if repeated else ""
        said.append(f"{figures.p_in_words(paired.p)}{null}")
    if paired.inflation > 1.0:
        said.append(f"errors times {paired.inflation:.2f}, since the runs of one side differ")
    if verdict.p_holm is not None and verdict.tests is not None:
        holm = figures.p_in_words(verdict.p_holm).removeprefix(figures.ONE_SIDED)
        said.append(f"{holm} by Holm for {figures.count(verdict.tests, 'test')}")
    return label, "; ".join(said)


def describe_rules(task: SummaryTask) -> str:
    """Return which rule judged and why, and what the other rule says."""
    verdict = task.verdict
    assert verdict.other is not None
    usual = task.default_rule in (None, verdict.rule) and not verdict.rule_named
    why = "default" if usual else "chosen"
    figure = partial(figures.figure, metric=task.result.metric)
    other, found = verdict.other, many_tests.describe(verdict, figure, brief=True)
    return f"{verdict.rule} ({why}); {other.rule} would say {other.outcome.value}: {found}"


def describe_answers(result: TaskResult, left_out: str = "not needed") -> str:
    """Return how many samples were asked, and how many failed, were repaired or cut off.

    `left_out` says why samples that do not count were not asked.
    """
    known = sum(result.failures.values())
    unasked = 0 if result.spared else max(0, result.failed - known)
    failed = f"{result.failed - unasked} failed"
    if result.failures:
        kinds = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in result.failures.items())
        failed += f" ({kinds})"
    said = [failed, *lines.count_lost(result), f"{result.cut_answers or result.truncated} cut off"]
    said += [f"{result.looping} looping"] if result.looping else []
    said += [f"{n} {word}" for kind, word in _WORDS.items() if (n := result.outcomes.get(kind, 0))]
    spared = f", {result.spared:,} {left_out}" if result.spared else ""
    asked = (
        f"{result.planned - unasked:,} of {figures.count(result.planned, 'sample')}"
        if unasked
        else figures.count(result.planned, "sample")
    )
    return f"{asked}: {', '.join(said)}{spared}"


def _describe_early(early: EarlyStop) -> str:
    if not early.stopped:
        return lines.early_stop(early)
    whole = "" if early.groups is None else " in whole groups"
    whole = whole if early.rounds is None else f" in rounds ({early.rounds} in all)"
    said = f"after {early.looked_at:,} of {early.planned:,}{whole}, {early.saved:,} saved"
    if early.margin is None:
        return f"{said}; the verdict of all prompts differs with probability {early.eps:g} at most"
    did = "ruled out" if early.decision == "PASS" else "proven"
    return f"{said}; a drop of {early.margin:.1f} points is {did}"


def describe_example(example: WrongExample, task: str) -> str:
    """Return what an example answered and what was expected."""
    answer = "nothing readable" if example.answer is None else brief(example.answer)
    return f"{example.id}: answered {answer}, expected {brief(name_expected(task, example.target))}"


def name_expected(task: str, target: str) -> str:
    """Return the expected answer, without the reasoning or the scorer that a target also holds."""
    if is_mutable(task) and target.startswith("{"):
        import msgspec

        return msgspec.json.encode(msgspec.json.decode(target)["expected"]).decode()
    return name_target(target) or target


def brief(text: str) -> str:
    """Return a text on one line, shortened at its end."""
    flat = " ".join(text.split())
    return flat if len(flat) <= LONGEST else f"{flat[: LONGEST - 3]}..."


FEW = 8
"""A table with at most this number of slices is shown whole."""
SHOWN = 3
"""Number of slices that are shown of a larger table."""


@freeze_places
class BreakdownSlice:
    """A slice of a breakdown with its value, and that of the reference (None: not known)."""

    name: str
    scored: int
    value: float
    before: float | None

    @property
    def badness(self) -> float:
        """Order slices by their drop in standard errors, or by their value without a reference."""
        if self.before is None:
            return -self.value
        return (self.before - self.value) * math.sqrt(self.scored)


def describe_breakdown(task: SummaryTask) -> Iterator[tuple[str, str]]:
    """Yield a label and a text for each table: the smaller ones whole, of others the worst.

    At most one table of either kind is shown: the one whose slices differ most. A last row names
    the others, which only the page has.
    """
    metric = task.result.metric
    tables = {
        name: list(list_slices(table, task.before.get(name)))
        for name, table in task.result.breakdown.items()
    }
    several = [(name, slices) for name, slices in tables.items() if len(slices) > 1]
    shown = [
        max(alike, key=lambda one: measure_spread(one[1]))
        for large in (False, True)
        if (alike := [one for one in several if (len(one[1]) > FEW) is large])
    ]
    for name, slices in shown:
        if len(slices) <= FEW:
            yield f"by {name}", "   ".join(_describe(one, metric) for one in slices)
        else:
            better = metric.higher_is_better
            worst = sorted(slices, key=lambda one: -one.badness if better else one.badness)
            said = "   ".join(_describe(one, metric) for one in worst[:SHOWN])
            yield f"by {name}", f"worst of {len(slices)}:   {said}"
    if left := [name for name, _ in several if name not in dict(shown)]:
        yield "by ...", f"not shown here: {', '.join(left)}"


def measure_spread(slices: Sequence[BreakdownSlice]) -> float:
    """Return the variance between slices, in squared points times samples.

    By chance alone it is the same on average for any field, however many slices that has. If the
    reference of every slice is known, it is that of the changes.
    """
    known = all(one.before is not None for one in slices)
    changes = [one.value - (one.before or 0.0) * known for one in slices]
    total = sum(one.scored for one in slices)
    if total == 0 or len(slices) < 2:
        return 0.0
    mean = math.fsum(one.scored * d for one, d in zip(slices, changes, strict=True)) / total
    between = (one.scored * (d - mean) ** 2 for one, d in zip(slices, changes, strict=True))
    return round(math.fsum(between) / (len(slices) - 1), 9)


def list_slices(table: object, before: object) -> Iterator[BreakdownSlice]:
    """Yield the slices of a table in which each has a value and a number of scored samples."""
    if not isinstance(table, Mapping):
        return
    earlier = before if isinstance(before, Mapping) else {}
    for name, entry in table.items():
        value, scored = _number(entry, "value"), _number(entry, "scored")
        if value is not None and scored is not None:
            yield BreakdownSlice(str(name), int(scored), value, _number(earlier.get(name), "value"))


def _number(entry: object, key: str) -> float | None:
    value = entry.get(key) if isinstance(entry, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _describe(one: BreakdownSlice, metric: Metric) -> str:
    was = "" if one.before is None else f" (was {_brief(one.before, metric)})"
    return f"{one.name}: {_brief(one.value, metric)}{was}"


def _brief(value: float, metric: Metric) -> str:
    return figure(value, metric).removesuffix(".0") if value < 10.0 else f"{value:.0f}"


RED = (VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE, VerdictOutcome.ERROR)
"""Outcomes that a diagnosis explains."""
_LACKING = VerdictOutcome.NO_REFERENCE


def diagnose_command(out_dir: Path, include_path: Sequence[str] = ()) -> str:
    """Return the command that explains a red verdict; it may need folders of code."""
    return f"serve-eval diagnose {quote_path(out_dir)}{name_folders(include_path)}"


def _pay_for_the_rest(report: Report) -> str:
    """Return the option with which a resumed run asks all, if the rest costs as much as the asked.

    A tenth is added, and the sum has two digits.
    """
    ends = [end for task in report.tasks if (end := task.verdict.budget) is not None]
    if ends[0].ended_by == CERTAIN:
        return write_larger(CERTAIN)
    limit, had = ends[0].ended_by, getattr(report.plan.limits, ends[0].ended_by)
    planned = sum(task.result.planned for task in report.tasks)
    asked = max(planned - sum(end.unasked for end in ends), 1)
    needed = 1.1 * (had or 1) * planned / asked
    digits = 10 ** max(math.floor(math.log10(needed)) - 1, 0)
    return write_larger(limit, math.ceil(needed / digits) * digits)


def next_steps(report: Report, out_dir: Path) -> Iterator[str]:
    """Yield commands, the most useful one first."""
    folder = quote_path(out_dir)
    outcomes = {task.verdict.outcome for task in report.tasks}
    if outcomes & set(RED):
        yield diagnose_command(out_dir, report.plan.include_path)
    if any(task.verdict.budget for task in report.tasks):
        yield f"{write_resume_command(out_dir, report.plan)} {_pay_for_the_rest(report)}"
    if any(task.result.failed for task in report.tasks):
        yield write_resume_command(out_dir, report.plan)
        yield f"serve-eval show {folder} --failed"
    if (shown := next(filter(_has_example, report.tasks), None)) is not None:
        assert shown.example is not None
        several = f" --task {quote_word(shown.result.task)}" if len(report.tasks) > 1 else ""
        yield f"serve-eval show {folder}{several} {quote_argument(shown.example.id)}"
    if lacks_reference(report):
        yield write_taking(report.plan, list_unreferenced(report))


def lacks_reference(report: Report) -> bool:
    """Return True if the next steps of a run name the command that takes a reference."""
    return not report.rehearsal and bool(list_unreferenced(report))


def explain_taking(report: Report) -> Iterator[str]:
    """Yield where the reference must come from, if the next steps take one."""
    if lacks_reference(report):
        yield HOW_TO_TAKE


def list_unreferenced(report: Report) -> list[str]:
    """Return the tasks of a plan that had no reference."""
    pairs = zip(report.plan.tasks, report.tasks, strict=True)
    return [
        spec.name
        for spec, task in pairs
        if task.verdict.outcome is _LACKING and spec.name != REQUESTS
    ]


def _has_example(task: TaskReport) -> bool:
    return task.example is not None and task.verdict.outcome in (
        VerdictOutcome.FAIL,
        _LACKING,
    )
