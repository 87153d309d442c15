"""The test of a verdict that is corrected where many tests are made, in suites and in tables."""

from __future__ import annotations

from serve_eval.schema import Verdict

GATES = ("paired", "anchors")
"""The rules whose verdict follows from the proof of a drop, so that its correction changes it. The
verdicts of the classic threshold and of noninferiority stay; their findings are corrected too."""
UNPROVEN = {"FAIL": "INCONCLUSIVE", "SMALL_DROP": "PASS"}
"""The finding in place of one that a correction does not leave proven."""


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
