"""Requests that got no answer: of which kind, from when on, and what the servers' logs say at that
time.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from launchers._logs.causes import cause
from serve_eval.client.attempts.retry import is_refused_behind
from serve_eval.evaluation.storage.server_logs import LogLine, errors_near, read
from serve_eval.schema import Attempt, FailureKind
from serve_eval.workflows.diagnose.evidence import AskedSample, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import ALPHA, Finding, about, capsule_of, ids

LOG_BEFORE_S, LOG_AFTER_S, LOG_LINES = 60.0, 15.0, 6
"""Around the first failure: where a log is searched, and how many of its lines are shown."""
LOG_TAIL, LAST_LINES = 200, 2
"""Of the log of a server of a run that was ended: how many lines are looked at, and how many are
shown."""
LIMIT_LEAST_S, LIMIT_SPREAD = 1.0, 0.1
"""Errors that all come after the same time, of at least so many seconds, and by at most this share
apart, come from a time limit on the way."""
MOST_GROUPS = 5
"""Kinds of failures of a task that are told: those of most samples."""
MANY_LATER = 10
"""Answers to requests that were sent after the first failure, before it lies with the prompts."""
QUOTED = 200
"""Characters that are quoted of a server's message."""

_UNREACHED = re.compile(r"Cannot connect to host|Connect call failed|Connection refused")
_PORT = re.compile(r"[:'\" ,](\d{2,5})\b")
_DIGITS = re.compile(r"[0-9a-f]{8,}|\d+")
# What a message says, and what to do about it. {task} and {concurrency} are filled in.
_KNOWN = (
    (
        (
            r"maximum context length|max_model_len|max_seq_len|max_num_tokens|prompt is too"
            r" long|should not exceed"
        ),
        "the prompt is longer than the server takes",
        ("trtllm-serve ... --max_seq_len N --max_num_tokens N", "--set {task}.num_fewshot=0"),
    ),
    (
        r"max_completion_tokens",
        "the server wants the other name of max_tokens",
        ("--max-tokens-field max_completion_tokens",),
    ),
    (
        (
            r"extra_forbidden|Extra inputs are not permitted|[Uu]nknown"
            r" (?:field|parameter)|[Uu]nsupported (?:field|param)"
        ),
        "the server refuses a field that is sent",
        ("--set {task}.truncate_prompt_tokens=null", "--set {task}.temperature=null"),
    ),
    (
        r"^HTTP 40[13]\b",
        "the key is missing or wrong",
        ("export OPENAI_API_KEY=...", "--api-key-env NAME"),
    ),
    (
        r"^HTTP 404\b.*model|model .*(?:not found|does not exist)",
        "the server knows no model of that name",
        ("--model NAME, as curl BASE_URL/models lists it",),
    ),
    (
        r"^HTTP 404\b|^HTTP 405\b",
        "there is no such route: the wrong base URL, or an endpoint of the other kind",
        ("--base-url URL", "--apply-chat-template"),
    ),
    (
        r"^HTTP 429\b",
        "the server refuses so many requests",
        ("--rate-limit R", "--concurrency {concurrency}"),
    ),
    (
        r"No \d+ servers available|Cluster is not ready",
        "the orchestrator had no worker at hand",
        ("curl BASE_URL/cluster_info, and the logs of the workers",),
    ),
    (
        r"finished early|Invalid disaggregated params in context phase",
        "a 1.2 orchestrator errs where the context server finishes an answer",
        ("a newer trtllm-serve", "--set {task}.stop=[]"),
    ),
    (
        r"lost|empty stream|stream .*(?:ended|without)",
        "a stream ended without its answer",
        ("--no-stream",),
    ),
    (
        r"^no connection within|refused",
        "nobody answers at that address",
        ("--base-url URL", "the server's log"),
    ),
)


def failures(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Every group of samples that failed alike: facts, whose message tells what is wrong where it
    is known.
    """
    groups: dict[tuple[str, int | None, str], list[AskedSample]] = defaultdict(list)
    for one in task.missing:
        if one.failure is not None:
            message = _DIGITS.sub("N", one.failure.message)[:QUOTED]
            groups[one.failure.kind, one.failure.status, message].append(one)
    onset = find_failure_start(run) is not None
    largest = sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_GROUPS]
    for (kind, status, _), shown in largest:
        one = next((one for one in shown if one.shown), shown[0])
        assert one.failure is not None
        message = one.failure.message[:QUOTED]
        rule, reason, change = _reason(run, task, FailureKind(kind), status, message, shown)
        told = (
            f"{len(shown)} of {len(task.missing)} missing answers are"
            f" {kind}{f' {status}' if status else ''}"
        )
        told += f": {message}" if one.shown else ""  # servers quote what they refuse
        starts = [one.started_s for one in shown if one.attempts]
        log = () if onset or not starts else _log(run, min(starts))
        if rule == "worker_gone":
            log = _end_of_log(run, _find_gone(run, message) or "")
        yield about(
            task,
            rule,
            f"{told}; {reason}" if reason else told,
            change,
            shown,
            of=len(task.asked),
            log=log,
        )


def _reason(
    run: Evidence,
    task: TaskEvidence,
    kind: FailureKind,
    status: int | None,
    message: str,
    shown: Sequence[AskedSample],
) -> tuple[str, str, tuple[str, ...]]:
    """The rule's name, what is behind a group of failures, and what to change."""
    if status == 500 and is_refused_behind(message):
        reason = (
            "an orchestrator hands on what a worker refuses (400) as a 500, in 1.2 without the"
            " worker's words"
        )
        worker = f"{capsule_of(run, task, shown)}, and BASE_URL=a worker's sh curl.sh"
        return "wrapped_400", reason, (worker, *_find_known(run, task, message)[1])
    if (name := _find_gone(run, message)) is not None:
        return (
            "worker_gone",
            f"{name} is not reached any more",
            (f"logs/{name}.log says why it ended",),
        )
    if (limit := _time_limit(shown)) is not None:
        usual = [one.response.latency_s for one in task.texts if one.response is not None]
        beside = f", and answers took {statistics.median(usual):.3g} s" if usual else ""
        reason = (
            f"each came after {limit:.3g} s{beside}: a time limit before the server, such as the"
            " orchestrator's "
        )
        reason += "-r (180 s unless it is told otherwise, twice, and a second between)"
        return (
            "time_limit",
            reason,
            ("trtllm-serve disaggregated ... -r 7200", "--concurrency N, fewer at a time"),
        )
    if kind is FailureKind.TIMEOUT:
        return (
            "timeout",
            "our own limit was reached",
            ("--stall-timeout S", "--sample-timeout S", "--concurrency N"),
        )
    reason, change = _find_known(run, task, message)
    if change:
        return "refused" if status and status < 500 else "failed", reason, change
    if status is not None and status < 500:
        return (
            "refused",
            "the server refuses the request as it is",
            ("serve-eval smoke URL tells which fields it takes",),
        )
    if (tries := _each_time(task, shown)) is not None:
        reason = (
            f"these prompts fail each time they are asked ({tries} times or more), and no other"
            " fails once"
        )
        return "these_prompts", reason, (capsule_of(run, task, shown),)
    return "failed", "", ("the server's log at that time", f"serve-eval run --resume {run.place}")


def _each_time(task: TaskEvidence, shown: Sequence[AskedSample]) -> int | None:
    """How often samples were asked at least that failed each time, while the others, many of them
    asked later, were answered at once; None where that is not so.
    """
    tries = min(sum(attempt.failure is not None for attempt in one.attempts) for one in shown)
    answered = [one for one in task.asked if one.response is not None and one.attempts]
    first_s = min((one.attempts[0].end_s for one in shown if one.attempts), default=0.0)
    later = sum(one.started_s > first_s for one in answered)
    errs = any(attempt.failure is not None for one in answered for attempt in one.attempts)
    return None if tries < 2 or errs or later < MANY_LATER else tries


def _find_gone(run: Evidence, message: str) -> str | None:
    """The server behind the door that a message says nobody reaches, of those that the launcher
    tells of.
    """
    if not _UNREACHED.search(message):
        return None
    ports = {str(urlsplit(url).port): name for name, url in (run.info.servers or {}).items()}
    return next((ports[port] for port in _PORT.findall(message) if port in ports), None)


def _find_known(run: Evidence, task: TaskEvidence, message: str) -> tuple[str, tuple[str, ...]]:
    told = None if run.last.limits is None else run.last.limits.concurrency
    fewer = max(1, told // 4) if isinstance(told, int) else 8
    for pattern, reason, change in _KNOWN:
        if re.search(pattern, message):
            return reason, tuple(one.format(task=task.name, concurrency=fewer) for one in change)
    return "", ()


def _time_limit(shown: Sequence[AskedSample]) -> float | None:
    """The time after which all attempts of these samples ended in a 5xx, or a lost connection; None
    where it was not the same for all.
    """
    ended = [attempt for one in shown for attempt in one.attempts if attempt.failure is not None]
    if len(ended) < 3 or not all(_server_failed(attempt) for attempt in ended):
        return None
    times = [attempt.end_s - attempt.start_s for attempt in ended]
    middle = statistics.median(times)
    alike = max(times) - min(times) <= LIMIT_SPREAD * middle
    return middle if alike and middle >= LIMIT_LEAST_S else None


def server_errors(run: Evidence) -> Iterator[Finding]:
    """From one moment on the server failed: first attempts in the order of their starts, by the
    chart of `stats.onset`.
    """
    if (since := find_failure_start(run)) is None:
        return
    at_s, number, before, after, of = since
    lost = [
        one
        for task in run.tasks
        for one in task.missing
        if one.attempts and one.attempts[-1].end_s >= at_s
    ]
    moment = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
    log = _log(run, at_s)
    told = (
        f"the server fails from request {number} of {of} on, started at {moment} UTC: {before:.1%}"
        " of the requests "
    )
    told += f"before it failed at first, {after:.1%} from it on"
    known = cause("\n".join(log))
    if known is not None:
        told += f"; its log says that {_lower(known[0])}"
    where = (
        known[1] if known is not None else "restart the server, and look at its log of that time"
    )
    yield Finding(
        rule="server_errors",
        told=told,
        change=(where, f"serve-eval run --resume {run.place}"),
        count=round(after * (of - number + 1)),
        of=of,
        explains=len(lost),
        lost=sum(len(task.lost) for task in run.tasks),
        samples=ids(lost),
        log=log,
    )


def find_unfinished(run: Evidence) -> Iterator[Finding]:
    """The run did not come to its end: it was ended, or a server of its own was. The logs are told
    by their last lines, where no cause is known.
    """
    if run.report is not None:
        return
    asked = sum(len(task.asked) for task in run.tasks)
    planned = sum(task.planned for task in run.tasks)
    told = (
        f"the run did not come to its end: {asked} of {planned} samples have an answer or a failure"
        " on file"
    )
    change, log = f"serve-eval run --resume {run.place}", []
    for path in run.logs:
        lines = [line.text for line in deque(read(path), LOG_TAIL)]
        if (known := cause("\n".join(lines))) is not None:
            told += f"; {path.name} says that {_lower(known[0])}"
            change = known[1]
        errors = [text for text in lines if LogLine(None, text).error]
        log += [f"{path.name}: {run.mask(text)}" for text in (errors or lines)[-LAST_LINES:]]
    yield Finding(
        rule="unfinished", told=told, change=(change,), count=asked, of=planned, log=tuple(log)
    )


def find_failure_start(run: Evidence) -> tuple[float, int, float, float, int] | None:
    """When the server began to fail: the time, the number of that request, the shares of failed
    ones before it and from it on, and how many requests there were.
    """
    first = sorted(
        (one.attempts[0] for task in run.tasks for one in task.asked if one.attempts),
        key=lambda a: a.start_s,
    )
    bad = [_server_failed(attempt) for attempt in first]
    if not any(bad):
        return None
    import numpy

    from serve_eval.stats.onset import onset

    found = onset(numpy.array(bad), ALPHA)
    if found is None:
        return None
    return first[found.since - 1].start_s, found.since, found.before, found.after, len(first)


def _server_failed(attempt: Attempt) -> bool:
    """Whether it failed for a reason that lies with the server and not with the request."""
    if attempt.failure is FailureKind.HTTP_ERROR:
        return (attempt.status or 0) >= 500
    return attempt.failure is not None


def _log(run: Evidence, at_s: float) -> tuple[str, ...]:
    lines = []
    for path in run.logs:
        near = errors_near(path, at_s, before_s=LOG_BEFORE_S, after_s=LOG_AFTER_S, most=LOG_LINES)
        lines += [f"{path.name}: {run.mask(line)}" for line in near]
    return tuple(lines)


def _end_of_log(run: Evidence, name: str) -> tuple[str, ...]:
    """The last lines of a server's log."""
    return tuple(
        f"{path.name}: {run.mask(line.text)}"
        for path in run.logs
        if path.stem == name
        for line in deque(read(path), LAST_LINES)
    )


def _lower(text: str) -> str:
    return text if text.startswith(("it ", "its ", "a ", "the ", "this ")) else f"it is {text}"
