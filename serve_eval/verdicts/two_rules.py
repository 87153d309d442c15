"""Say what the classic rule and the paired rule each make of one task.

The same two servers can fail by one rule and pass by the other: one looks at the value, the other
prompt by prompt. A verdict therefore carries the outcome of the rule that did not judge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from serve_eval.schema import OtherRule, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.classic import Decision
from serve_eval.verdicts.rules._classic import decide_result

DISAGREE = "rules_disagree"
"""The name with which the warning about two rules begins."""
_PAIRED_RULES = ("paired", "noninferiority", "anchors")
_OUTCOMES = {
    "PASS": VerdictOutcome.PASS,
    "SMALL_DROP": VerdictOutcome.PASS,
    "FAIL": VerdictOutcome.FAIL,
    "INCONCLUSIVE": VerdictOutcome.INCONCLUSIVE,
}
_DECIDED = {VerdictOutcome.PASS, VerdictOutcome.FAIL}


def add_other(verdict: Verdict, result: TaskResult, *, higher_is_better: bool) -> Verdict:
    """Return the verdict with the outcome of the other rule, if the other can be applied."""
    if verdict.rule == "classic" and verdict.paired is not None:
        other = OtherRule(rule="paired", outcome=_OUTCOMES[verdict.paired.finding])
    elif verdict.rule in _PAIRED_RULES and verdict.threshold is not None:
        decision = Decision.UNDECIDED
        if verdict.bounds is not None and result.scored:
            limits = verdict.bounds, verdict.threshold
            decision = decide_result(result, *limits, higher_is_better=higher_is_better)
        undecided = decision is Decision.UNDECIDED
        outcome = VerdictOutcome.INCONCLUSIVE if undecided else VerdictOutcome(decision.value)
        other = OtherRule(rule="classic", outcome=outcome)
    else:
        return verdict
    return replace(verdict, other=other)


def warn(verdict: Verdict, figure: Callable[[float], str] = "{:.2f}".format) -> Verdict:
    """Return the verdict with a first warning if one rule passes what the other fails."""
    other = verdict.other
    if other is None or {verdict.outcome, other.outcome} != _DECIDED:
        return verdict
    told = (
        f"{DISAGREE}: {verdict.rule} says {verdict.outcome}, {other.rule} says {other.outcome}"
        f" ({describe(verdict, figure)}); --verdict {other.rule} lets it decide"
    )
    return replace(verdict, warnings=(told, *verdict.warnings))


def name_alone(warning: str, rule: str) -> str:
    """Return the warning about two rules for a FAIL that a correction leaves unproven."""
    prefix = f"{DISAGREE}: {rule} says "
    if not warning.startswith(prefix):
        return warning
    return (
        f"{DISAGREE}: {rule} alone, without the suite's correction, says {warning[len(prefix) :]}"
    )


def say_in_words(warning: str) -> str:
    """Return a warning without the internal name of the one about two rules."""
    told = warning.removeprefix(f"{DISAGREE}: ")
    return warning if told == warning else f"the two rules disagree: {told}"


def describe(
    verdict: Verdict, figure: Callable[[float], str] = "{:.2f}".format, *, brief: bool = False
) -> str:
    """Return the figures behind the outcome of the other rule; `brief`: without p."""
    other = verdict.other
    assert other is not None
    if other.rule == "classic":
        assert verdict.threshold is not None
        value = "-" if verdict.evaluated is None else figure(verdict.evaluated)
        threshold = figure(verdict.threshold)
        if brief:
            return f"value {value}, threshold {threshold}"
        return f"the value {value} against the threshold {threshold}"
    paired = verdict.paired
    assert paired is not None
    p = "" if paired.p is None or brief else f", p {paired.p:.2g}"
    drop = -paired.difference
    moved = f"a {'drop' if drop > 0.0 else 'rise'} of {figure(abs(drop))} points"
    found = f"{moved if drop else 'no change'}{p}"
    return found if brief else f"prompt by prompt {found}"
