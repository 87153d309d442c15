"""Correct the verdicts of many tests: those of a run or comparison, of a suite and of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serve_eval.schema import Verdict, VerdictOutcome
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.two_rules import DISAGREE

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
    """Return the p that counts among those of a run; an early stop has used its own test."""
    if verdict.rule not in GATES:
        return None
    if verdict.early is not None and verdict.early.stopped:
        return 0.0 if verdict.outcome is VerdictOutcome.FAIL else 1.0
    return find_test(verdict)[0]


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
