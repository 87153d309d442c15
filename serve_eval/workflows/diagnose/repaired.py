"""A rule about answers that came only after an earlier answer to their sample was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from serve_eval.launchers._logs.last_error import cause
from serve_eval.schema import Attempt, FailureKind, LostAnswer, VerdictOutcome, find_lost
from serve_eval.verdicts.repaired import TRUST_HINT
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.course import has_lost_stream
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, about
from serve_eval.workflows.diagnose.unanswered import read_logs

MOST_KINDS, MOST_SERVERS = 3, 3
"""Number of kinds of failures, and of servers, that a finding names, the most frequent first."""
_CAUSES = {
    FailureKind.HTTP_ERROR: "the server failed, perhaps while it generated",
    FailureKind.TIMEOUT: "no data came in time: long or looping answers are lost first",
    FailureKind.DISCONNECTED: "the connection ended before the answer was whole",
    FailureKind.INVALID_RESPONSE: "what came was no answer",
}
_CHANGES = {
    FailureKind.HTTP_ERROR: "read the server's log of that time",
    FailureKind.TIMEOUT: (
        "--set limits.stall_timeout_s=S and --set limits.sample_timeout_s=S, with a larger S"
    ),
    FailureKind.DISCONNECTED: "read the log of the server and of the proxy in front of it",
    FailureKind.INVALID_RESPONSE: "read the log of the server and of the proxy in front of it",
}


def find_repaired(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if first answers were lost and a later attempt was answered.

    The value does not show what was lost. The finding names the likely cause and, if the replies
    name their servers, those behind the failed attempts. Streams that lost their answer have a
    finding of their own.
    """
    found = [
        one
        for one in task.asked
        if one.response is not None
        and find_lost(one.attempts) is not LostAnswer.NOTHING
        and not has_lost_stream(one)
    ]
    if not found:
        return
    lost = [
        attempt
        for one in found
        for attempt in one.attempts
        if attempt.lost_answer is not LostAnswer.NOTHING
    ]
    restarted = sum(attempt.lost_answer is LostAnswer.RESTART for attempt in lost)
    kinds = Counter(_name(attempt) for attempt in lost)
    named = ", ".join(f"{name} ({count})" for name, count in kinds.most_common(MOST_KINDS))
    kind = Counter(attempt.failure for attempt in lost).most_common(1)[0][0]
    assert kind is not None
    told = (
        f"{len(found)} of {len(task.asked)} samples lost an answer before the one that counts:"
        f" {named}; {_CAUSES.get(kind, 'the answer was lost')}"
    )
    if restarted:
        told += f"; {restarted} were in flight when the server ended"
    told += _describe_servers(lost)
    log = read_logs(run, min(attempt.start_s for attempt in lost))
    if (known := cause("\n".join(log))) is not None:
        told += f"; the server's log shows: {known[0]}"
    change = [_CHANGES.get(kind, "read the server's log of that time")]
    if task.outcome is VerdictOutcome.INCONCLUSIVE:
        change.append(TRUST_HINT)
    yield about(task, "repaired", told, change, _order(found), of=len(task.asked), log=log)


def _name(attempt: Attempt) -> str:
    """Return the kind of a failed attempt, with the HTTP status if it is an error."""
    error = attempt.status is not None and attempt.status >= 400
    return f"{attempt.failure} {attempt.status}" if error else f"{attempt.failure}"


def _describe_servers(lost: Sequence[Attempt]) -> str:
    """Return which servers the replies of the failed attempts named, if any did."""
    servers = Counter(
        name
        for attempt in lost
        if attempt.servers is not None
        for name in (attempt.servers.generation, attempt.servers.context)
        if name
    )
    if not servers:
        return ""
    most = ", ".join(f"{name} ({count})" for name, count in servers.most_common(MOST_SERVERS))
    return f"; their replies name {most}"


def _order(found: Sequence[AskedSample]) -> list[AskedSample]:
    """Return the samples in the order of their starts."""
    return sorted(found, key=lambda one: one.started_s)
