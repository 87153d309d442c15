"""Correct the verdicts of many tests, and compare those of two rules.

The same two servers can fail by one rule and pass by the other: one looks at the value, the other
prompt by prompt. A verdict therefore carries the outcome of the rule that did not judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from serve_eval.schema import OtherRule, PairedComparison, TaskResult, Verdict, VerdictOutcome
from serve_eval.stats.classic import Decision
from serve_eval.stats.multiplicity import holm
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


def find_rise_p(paired: PairedComparison) -> float:
    """Return the one-sided p of "no rise"; 1 if there is none, or if it cannot be tested.

    1 - p would ignore ties, which count on both sides. With one run of right or wrong answers on
    each side it is McNemar's mid-p, else that of the paired t test.
    """
    if paired.difference <= 0.0:
        return 1.0
    single = paired.reference_runs == paired.candidate_runs == 1 and paired.inflation == 1.0
    if single and paired.down is not None and paired.up is not None:
        from serve_eval.stats.sign_tests import mcnemar

        return mcnemar(paired.up, paired.down).p_mid
    if not paired.se:
        return 1.0
    from serve_eval.stats.paired_t import PairedT

    return PairedT(-paired.difference, paired.se, paired.df or max(1, paired.pairs - 1)).p


GATES = ("paired", "anchors")
"""The rules whose verdict follows from the proof of a drop, so that its correction changes it. The
verdicts of the classic threshold and of noninferiority stay; their findings are corrected too."""
UNPROVEN = {"FAIL": "INCONCLUSIVE", "SMALL_DROP": "PASS"}
"""The finding in place of one that a correction does not leave proven."""
SMALL_DROP = "small_drop"
"""The name with which the warning about a proven drop below the margin begins."""


def find_test(verdict: Verdict) -> tuple[float | None, str | None]:
    """Return the p of "no drop" of a verdict and the finding that follows from it.

    Under the anchors rule they are those of the anchors, else of the paired comparison. None: the
    verdict has no such test.
    """
    paired = verdict.paired
    if verdict.rule == "anchors":
        anchors = None if paired is None else paired.anchors
        return None if anchors is None else anchors.p, verdict.outcome.value
    return (None, None) if paired is None else (paired.p, paired.finding)


def correct(verdicts: Sequence[Verdict], whose: str) -> list[Verdict]:
    """Return the verdicts of one run or comparison, which `whose` names, with one error for all.

    Holm's correction keeps the chance that any of the rules in GATES fails a deployment that is no
    worse at that of a single test, however the tests depend. A drop that it does not leave proven
    is INCONCLUSIVE in place of FAIL, and none in place of a small one. No verdict becomes worse.
    An unproven drop gets no warning, since one of eight healthy tasks often seems to drop.
    What stopped early has its share of alpha already: see `early_stop.watch`.
    """
    p = {i: one for i, verdict in enumerate(verdicts) if (one := _find_p(verdict)) is not None}
    if len(p) < 2:
        return list(verdicts)
    adjusted = dict(zip(p, holm(list(p.values())), strict=True))
    return [
        _correct(verdict, adjusted[i], len(p), whose) if i in p else verdict
        for i, verdict in enumerate(verdicts)
    ]


def explain_unproven(p: float, corrected: float, whose: str) -> str:
    """Return why a drop is not proven after a correction for the tests that `whose` names."""
    return f"not proven after correction for {whose}: p {p:.4f} becomes {corrected:.4f} (Holm)"


def _find_p(verdict: Verdict) -> float | None:
    """Return the p that counts among those of a run; an early stop has used its own test.

    A test that was not made counts as one that shows nothing, so that others gain nothing by it.
    """
    if verdict.rule not in GATES:
        return None
    if verdict.early is not None and verdict.early.stopped:
        return 0.0 if verdict.outcome is VerdictOutcome.FAIL else 1.0
    p = find_test(verdict)[0]
    return 1.0 if p is None and verdict.budget is not None else p


def _correct(verdict: Verdict, corrected: float, tests: int, whose: str) -> Verdict:
    p, finding = find_test(verdict)
    if p is None:
        return verdict
    verdict = replace(verdict, p_holm=corrected, tests=tests)
    paired = verdict.paired
    assert paired is not None
    if finding not in UNPROVEN or corrected <= paired.alpha:
        return verdict
    why = explain_unproven(p, corrected, f"the {tests} tests of the {whose}")
    warnings = tuple(one for one in verdict.warnings if not one.startswith((DISAGREE, SMALL_DROP)))
    if verdict.rule == "anchors":
        told = f"a loss among the anchors is {why}"
        return replace(verdict, outcome=VerdictOutcome.PASS, reasons=(), warnings=(*warnings, told))
    verdict = replace(verdict, paired=replace(paired, finding=UNPROVEN[finding]))
    if finding == "FAIL":
        return replace(
            verdict,
            outcome=VerdictOutcome.INCONCLUSIVE,
            reasons=(*verdict.reasons, f"margin_not_excluded: {why}"),
            warnings=warnings,
        )
    return replace(verdict, warnings=warnings)
