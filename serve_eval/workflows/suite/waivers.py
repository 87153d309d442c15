"""Say what became of a waiver. Pure."""

from __future__ import annotations

from serve_eval.report.summary import Row
from serve_eval.schema import WaiverState, WaiverUse


def describe_waiver(use: WaiverUse) -> Row:
    """Return what became of a waiver, with a label."""
    waiver = use.waiver
    what = ", ".join(f"{key} {value}" for key, value in waiver.match.items())
    failing = ", ".join(use.failing)
    said = {
        WaiverState.APPLIED: f"until {waiver.until}: {failing}: {waiver.reason}",
        WaiverState.EXPIRED: (
            f"the waiver for {what} expired on {waiver.until} ({waiver.reason}); "
            + (
                f"it no longer covers {failing}"
                if failing
                else "no task that it matches fails: remove it"
            )
        ),
        WaiverState.NOT_NEEDED: (
            f"the waiver for {what} is no longer needed: every task that it matches passes "
            f"({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.UNDECIDED: (
            f"the waiver for {what} was not needed so far: a task that it matches is still"
            f" undecided ({waiver.reason}, until {waiver.until})"
        ),
        WaiverState.NO_MATCH: (
            f"the waiver for {what} matches no task of this suite ({waiver.reason})"
        ),
    }
    warned = use.state in (WaiverState.EXPIRED, WaiverState.NO_MATCH)
    label = "waived" if use.state is WaiverState.APPLIED else "warning" if warned else "note"
    return label, said[use.state]
