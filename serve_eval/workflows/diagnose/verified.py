"""Collect the outcomes of a verification: of each server, or how its command ended."""

from __future__ import annotations

from pathlib import Path

from serve_eval.evidence.probes.judging import UNSOUND
from serve_eval.schema import Verification
from serve_eval.shell_words import quote_path, quote_word
from serve_eval.storage.reports.folder_results import KILLED, list_ended_early
from serve_eval.workflows.diagnose.outcomes import ENDED_EARLY, FolderOutcome, FolderOutcomes

MEASURED = "word_problems"
"""The task that measures whether another model is worse; it needs no data."""


def judge_servers(found: Verification, page: str) -> FolderOutcomes:
    """Return the outcome of each server with its reason, and the comparison that measures it.

    That needs the addresses of the reference and of a server, which those of a launcher have not:
    they ended with the verification.
    """
    named = "; ".join(found.named)
    judged = [
        FolderOutcome(name=one.name, outcome=one.outcome.value, why=one.why) for one in found.sides
    ]
    judged += [
        FolderOutcome(name=one.name, outcome=ENDED_EARLY, why=f"not verified: {one.why}")
        for one in found.lost
    ]
    red = [one.name for one in found.sides if one.outcome in UNSOUND and one.part_of is None]
    pair = [found.reference, *red[:1]]
    both = len(pair) > 1 and all(one.startswith(("http://", "https://")) for one in pair)
    a, b = map(quote_word, pair) if both else ("", "")
    measure = "compare it with a sound server: that measures whether its answers are worse"
    return FolderOutcomes(
        judged=tuple(judged),
        noun="servers",
        model=found.model,
        started_at=found.started_at,
        rehearsal=found.rehearsal,
        again="; ".join(filter(None, (named, measure if red else ""))),
        commands=(f"serve-eval compare {a} {b} --tasks {MEASURED}",) if both else (),
        page=page,
    )


def judge_stopped(folder: Path) -> FolderOutcomes:
    """Return how a verification without a result ended."""
    why = f"the verification in {folder} did not finish: it has no verdict"
    ended = next(list_ended_early(folder, most_deep=1, most_folders=1), None)
    outcome = ENDED_EARLY
    if ended is not None:
        outcome = ENDED_EARLY if ended.outcome == KILLED else ended.outcome
        cause = "it was killed" if ended.outcome == KILLED else ended.cause
        why = "; ".join(filter(None, (why, cause)))
    return FolderOutcomes(
        judged=(FolderOutcome(name="verify", outcome=outcome, why=why),),
        noun="servers",
        again=f"the same serve-eval verify command with -o {quote_path(folder)}",
    )
