"""Apply rules about the course of a run: workers, time, load, retries, an early end."""

from __future__ import annotations

import statistics
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Sequence

from serve_eval.evaluation.results.degradation import describe
from serve_eval.evidence.attribution import AT_FIRST
from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.launchers._logs.last_error import cause
from serve_eval.schema import Attempt, FailureKind, LostAnswer, VerdictOutcome, find_lost
from serve_eval.shell_words import quote_path
from serve_eval.storage.server_logs import LogLine, read
from serve_eval.verdicts.repaired import TRUST_HINT
from serve_eval.workflows.diagnose.evidence import (
    Evidence,
    TaskEvidence,
    describe_end,
    find_end,
    write_continue_command,
)
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    AskedSample,
    Finding,
    about,
    larger_share,
    matters,
)
from serve_eval.workflows.diagnose.unanswered import (
    LAST_LINES,
    find_failure_start,
    name_cause,
    read_logs,
)

LEAST_GROUP, TIMES_MORE, LEAST_GAP = 20, 2.0, 0.1
"""Limits of the rule about load: the samples that each group needs, the ratio of the two loads, and
the difference between the shares of lost samples."""
RETRIED_SHARE = 0.05
"""Share of samples with retries from which a run that did not pass is reported."""
WORKER, SLOW_WORKER, DRIFT = 0.0004, 0.0003, 0.0003
"""Levels at which the report's alarms are repeated: all rules together keep to one budget."""


def worker(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each worker that the run's attribution clearly accuses of bad answers."""
    attribution = None if task.report is None else task.report.attribution
    if attribution is None:
        return
    for row in attribution.rows:
        if row.accused and row.p_holm <= WORKER * task.share:
            told = (
                f"{row.role} {row.worker}: {row.bad} {row.measure} of {row.answers}, compared with"
                f" {row.others_bad} of "
            )
            told += (
                f"{row.others} from other workers (worker identified by {attribution.how} for"
                f" {attribution.joined} of "
            )
            told += (
                f"{attribution.planned} samples). Prompts may stick to servers, such as those of"
                " one subject: attribute asks all servers the same ones"
            )
            yield Finding(
                "worker",
                told,
                change=(
                    f"restart {row.worker}, or take it out of the deployment",
                    run.attribute,
                ),
                count=row.bad,
                of=row.answers,
                explains=None if row.measure == AT_FIRST else min(row.bad, len(task.lost)),
                lost=len(task.lost),
                task=task.name,
                p=row.p_holm,
            )


def slow_worker(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each worker that the run's attribution clearly shows to be slow."""
    attribution = None if task.report is None else task.report.attribution
    for row in () if attribution is None else attribution.times:
        if row.slow and row.p_holm <= SLOW_WORKER * task.share:
            yield Finding(
                "slow_worker",
                describe_slow(row).partition(": ")[2],
                change=(
                    f"check the log, the GPU and the network of {row.worker}",
                    run.attribute,
                ),
                count=row.longer,
                of=row.answers,
                task=task.name,
                p=row.p_holm,
            )


def drift(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each degradation that the run's alarm raised, if the loss confirms it.

    The chart of the alarm, over the lost samples in the order of their starts, must show it at a
    stricter level.
    """
    told_by_report = () if task.report is None else task.report.degradations
    if not told_by_report or not _is_confirmed(task):
        return
    for one in told_by_report:
        later = [asked for asked in task.asked if asked.started_s >= one.started_s - 1e-3]
        told = describe(one)
        apart = (run.attribute,) if run.several_workers else ()
        change = ("restart the server", "read the logs from that time on", *apart)
        yield about(
            task, "drift", told, change, [asked for asked in later if asked.lost], of=len(later)
        )


def _is_confirmed(task: TaskEvidence) -> bool:
    import numpy

    from serve_eval.stats.onset import onset

    lost = [one.lost for one in sorted(task.asked, key=lambda one: one.started_s)]
    return onset(numpy.array(lost), DRIFT * task.share) is not None


def concurrency(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if samples sent under high load are lost more often than under low load.

    This needs a random order of samples: otherwise the hard ones may be those sent under load. If
    the run degraded or the server began to fail, only later samples are compared: otherwise a load
    that rises with time would look like the cause.
    """
    worse = () if task.report is None else task.report.degradations
    failing = find_failure_start(run)
    since = max([0.0 if failing is None else failing[0], *(one.started_s for one in worse)])
    asked = [
        one for one in task.asked if one.attempts and (one.line is not None or one.response is None)
    ]
    asked = [one for one in asked if one.started_s >= since]
    if not run.in_random_order or len(asked) < 2 * LEAST_GROUP:
        return
    loads = count_in_flight(run, asked)
    low_load, _, high_load = statistics.quantiles(loads, n=4)
    low = [one for one, load in zip(asked, loads, strict=True) if load <= low_load]
    high = [one for one, load in zip(asked, loads, strict=True) if load >= high_load]
    if min(len(low), len(high)) < LEAST_GROUP or high_load < TIMES_MORE * low_load:
        return
    bad, others = sum(one.lost for one in high), sum(one.lost for one in low)
    p = larger_share(task, high, low)
    if (
        p > ALPHA * task.share
        or bad / len(high) - others / len(low) < LEAST_GAP
        or not matters(task, high)
    ):
        return
    told = (
        f"{bad} of {len(high)} samples sent with {high_load:.0f} or more requests in flight are"
        " wrong or "
    )
    told += f"missing, compared with {others} of {len(low)} sent with {low_load:.0f} or fewer"
    yield about(
        task,
        "concurrency",
        told,
        (f"--concurrency {max(1, round(low_load))}",),
        high,
        of=len(asked),
        p=p,
    )


def count_in_flight(run: Evidence, asked: Sequence[AskedSample]) -> list[int]:
    """Return the requests in flight, itself included, at each sample's last attempt."""
    attempts = [attempt for task in run.tasks for one in task.asked for attempt in one.attempts]
    starts, ends = sorted(a.start_s for a in attempts), sorted(a.end_s for a in attempts)
    times = [one.attempts[-1].start_s for one in asked]
    return [bisect_right(starts, at) - bisect_left(ends, at) for at in times]


def find_retried(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield findings if streams lost answers, or if many answers took more than one attempt.

    The value of the task does not show either.
    """
    answered = [one for one in task.asked if one.response is not None]
    again = [
        one for one in answered if any(attempt.failure is not None for attempt in one.attempts[:-1])
    ]
    lost_streams = [one for one in again if has_lost_stream(one)]
    if lost_streams:
        told = f"{len(lost_streams)} of {len(task.asked)} streams lost their answer; a retry"
        told += " without streaming returned it"
        change = ("--set limits.stream=false", "update trtllm-serve")
        yield about(task, "lost_streams", told, change, lost_streams, of=len(task.asked))
    streams = {one.id for one in lost_streams}
    others = [
        one
        for one in again
        if one.id not in streams and find_lost(one.attempts) is LostAnswer.NOTHING
    ]
    if not task.passes and len(others) >= max(5, RETRIED_SHARE * len(task.asked)):
        why = Counter(
            f"{attempt.failure}{f' {attempt.status}' if (attempt.status or 0) >= 400 else ''}"
            for one in others
            for attempt in one.attempts[:-1]
            if attempt.failure is not None
        )
        told = f"{len(others)} of {len(answered)} answers took more than one attempt, after "
        told += ", ".join(f"{name} ({count})" for name, count in why.most_common(3))
        change = ("--concurrency N, with a lower N", "read the logs of the servers")
        yield about(task, "retried", told, change, others, of=len(answered))


def has_lost_stream(asked: AskedSample) -> bool:
    """Return True if a stream lost its answer, so that it was asked for without a stream."""
    return any(
        before.streamed and not after.streamed
        for before, after in zip(asked.attempts, asked.attempts[1:], strict=False)
    )


def find_hidden_retries(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if the orchestrator counts retries of its own."""
    noted = [session.endpoint.info.hidden_retries or {} for session in run.sessions]
    again = {role: sum(one.get(role, 0) for one in noted) for one in noted for role in one}
    if total := sum(again.values()):
        requests = sum(len(one.attempts) for task in run.tasks for one in task.asked)
        by_role = ", ".join(f"{role} {count}" for role, count in again.items() if count)
        yield Finding(
            "hidden_retries",
            (
                f"the orchestrator retried {total} times on its own for {requests} requests"
                f" ({by_role}); these failures are counted nowhere else"
            ),
            change=(
                "read the logs of the workers",
                "trtllm-serve disaggregated ... -r 7200, if answers take longer than -r",
            ),
            count=total,
            of=requests,
        )


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
    yield about(
        task,
        "repaired",
        told,
        change,
        sorted(found, key=lambda one: one.started_s),
        of=len(task.asked),
        log=log,
    )


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


RULE = "unfinished"
LOG_TAIL = 200
"""Last lines of a server's log that are read."""


def find_unfinished(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if the run did not finish, because it or a server of its own was stopped.

    The finding shows the errors at the end of each log, or else its last lines.
    """
    if run.report is not None:
        return
    asked = sum(len(task.asked) for task in run.tasks)
    planned = sum(task.planned for task in run.tasks)
    end = describe_end(find_end(run.folder))
    failed = sum(len(task.missing) for task in run.tasks)
    told = f"{end or 'the run did not finish'}; {asked - failed} of {planned} samples were answered"
    told += f" before, {failed} failed"
    again, log, read_too = write_continue_command(run.folder, run.resume), [], []
    change = again
    for path in run.logs:
        lines = [line.text for line in deque(read(path), LOG_TAIL)]
        if (found := cause("\n".join(lines))) is not None:
            told += f"; {path.name} shows that {name_cause(found[0])}"
            change = found[1]
        errors = [text for text in lines if LogLine(None, text).error]
        log += [f"{path.name}: {run.mask(text)}" for text in (errors or lines)[-LAST_LINES:]]
        read_too.append(f"read {quote_path(path)}")
    known = () if change == again else (change,)
    yield Finding(
        RULE,
        told,
        change=(*known, *read_too[:LAST_LINES], again),
        count=asked,
        of=planned,
        log=tuple(log),
    )
