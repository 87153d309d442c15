"""Apply rules about requests without an answer: their kinds, start, and servers' messages."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

from serve_eval.client.attempts.outcome import is_refused_behind
from serve_eval.launchers._logs.last_error import cause
from serve_eval.schema import Attempt, FailureKind
from serve_eval.storage.server_logs import errors_near, read
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    AskedSample,
    Finding,
    about,
    capsule_of,
    ids,
)

LOG_BEFORE_S, LOG_AFTER_S, LOG_LINES = 60.0, 15.0, 6
"""Seconds before and after the first failure in which a log is searched, and the lines shown."""
LAST_LINES = 2
"""Last lines of a server's log that are shown."""
LIMIT_LEAST_S, LIMIT_SPREAD = 1.0, 0.1
"""Errors are attributed to a time limit if they come after at least this number of seconds, none of
them earlier than the median by more than this share, and LIMIT_MOST of them not later by more.
A limit never ends early, but a busy machine may report its end late."""
LIMIT_MOST = 0.75
MOST_GROUPS = 5
"""Number of kinds of failures that are reported for a task, the most frequent first."""
MANY_LATER = 10
"""Later requests that have to be answered before a failure is attributed to its prompts."""
RULES = frozenset(
    (
        *("refused", "failed", "wrapped_400", "time_limit", "timeout", "worker_gone"),
        *("these_prompts", "server_errors"),
    )
)
"""Rules about answers that are missing, named by their causes."""
QUOTED = 200
"""Number of characters quoted from a server's message."""

_UNREACHED = re.compile(r"Cannot connect to host|Connect call failed|Connection refused")
_PORT = re.compile(r"[:'\" ,](\d{2,5})\b")
_DIGITS = re.compile(r"[0-9a-f]{8,}|\d+")


def failures(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each group of samples with the same failure.

    The finding names the cause if the message of the failure is known.
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
            f"{len(shown)} of {len(task.missing)} missing answers failed with"
            f" {kind}{f' {status}' if status else ''}"
        )
        told += f": {message}" if one.shown else ""  # Servers quote the prompts they reject.
        starts = [one.started_s for one in shown if one.attempts]
        log = () if onset or not starts else read_logs(run, min(starts))
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
    """Return the rule's name, the reason of a group of failures, and what to change."""
    if status == 500 and is_refused_behind(message):
        reason = (
            "an orchestrator returns a worker's 400 as a 500, in version 1.2 without the worker's"
            " message"
        )
        worker = f"{capsule_of(run, task, shown)}, then BASE_URL=<a worker's> sh curl.sh"
        return "wrapped_400", reason, (worker, *find_known(run, task, message)[1])
    if (name := _find_gone(run, message)) is not None:
        return (
            "worker_gone",
            f"{name} can no longer be reached",
            (f"read logs/{name}.log for the reason",),
        )
    if (limit := _time_limit(shown)) is not None:
        usual = [one.response.latency_s for one in task.texts if one.response is not None]
        beside = f" (answers took {statistics.median(usual):.3g} s)" if usual else ""
        reason = (
            f"each failed after {limit:.3g} s{beside}: a time limit in front of the server, such as"
            " the orchestrator's "
        )
        reason += "-r (180 s by default, two attempts, 1 s between them)"
        return (
            "time_limit",
            reason,
            ("trtllm-serve disaggregated ... -r 7200", "--concurrency N, with a lower N"),
        )
    if kind is FailureKind.TIMEOUT:
        return (
            "timeout",
            "serve-eval's own time limit was reached",
            (
                "--set limits.stall_timeout_s=S",
                "--set limits.sample_timeout_s=S",
                "--concurrency N",
            ),
        )
    reason, change = find_known(run, task, message)
    if change:
        return "refused" if status and status < 500 else "failed", reason, change
    if status is not None and status < 500:
        return (
            "refused",
            "the server rejects the request",
            ("serve-eval smoke URL, which shows the accepted fields",),
        )
    if (tries := _each_time(task, shown)) is not None:
        reason = (
            f"these prompts fail each time they are sent ({tries} times or more), and no other"
            " prompt ever fails"
        )
        return "these_prompts", reason, (capsule_of(run, task, shown),)
    return (
        "failed",
        "",
        ("read the server's log of that time", run.resume),
    )


def _each_time(task: TaskEvidence, shown: Sequence[AskedSample]) -> int | None:
    """Return the smallest number of attempts if the failures depend on the prompts, else None.

    They do if these samples failed each time, while all others, many of them sent later, were
    answered at the first attempt.
    """
    tries = min(sum(attempt.failure is not None for attempt in one.attempts) for one in shown)
    answered = [one for one in task.asked if one.response is not None and one.attempts]
    first_s = min((one.attempts[0].end_s for one in shown if one.attempts), default=0.0)
    later = sum(one.started_s > first_s for one in answered)
    errs = any(attempt.failure is not None for one in answered for attempt in one.attempts)
    return None if tries < 2 or errs or later < MANY_LATER else tries


def _find_gone(run: Evidence, message: str) -> str | None:
    """Return the server of the launcher that a message reports as unreachable, or None."""
    if not _UNREACHED.search(message):
        return None
    ports = {str(urlsplit(url).port): name for name, url in (run.info.servers or {}).items()}
    return next((ports[port] for port in _PORT.findall(message) if port in ports), None)


def _time_limit(shown: Sequence[AskedSample]) -> float | None:
    """Return the time in seconds after which all attempts ended in a 5xx or lost connection.

    None if the times differ.
    """
    ended = [attempt for one in shown for attempt in one.attempts if attempt.failure is not None]
    if len(ended) < 3 or not all(_server_failed(attempt) for attempt in ended):
        return None
    times = [attempt.end_s - attempt.start_s for attempt in ended]
    middle = statistics.median(times)
    late = sum(time > (1.0 + LIMIT_SPREAD) * middle for time in times)
    alike = min(times) >= (1.0 - LIMIT_SPREAD) * middle and late <= (1.0 - LIMIT_MOST) * len(times)
    return middle if alike and middle >= LIMIT_LEAST_S else None


def server_errors(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if the server failed from some time on.

    The chart of `stats.onset` tests the first attempts in the order of their starts.
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
    log = read_logs(run, at_s)
    told = (
        f"the server fails from request {number} of {of} on (started at {moment} UTC): {before:.1%}"
        " of the first attempts "
    )
    told += f"failed before it, {after:.1%} from it on"
    known = cause("\n".join(log))
    if known is not None:
        told += f"; the server's log shows that {name_cause(known[0])}"
    where = known[1] if known is not None else "restart the server, and read its log of that time"
    yield Finding(
        "server_errors",
        told,
        change=(where, run.resume),
        count=round(after * (of - number + 1)),
        of=of,
        explains=len(lost),
        lost=sum(len(task.lost) for task in run.tasks),
        samples=ids(lost),
        log=log,
    )


def find_failure_start(run: Evidence) -> tuple[float, int, float, float, int] | None:
    """Return when the server began to fail, or None if it did not.

    The tuple holds the start time in seconds since 1970, the number of that request, the shares of
    failed requests before it and from it on, and the number of requests.
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

    found = onset(numpy.array(bad), ALPHA * run.share)
    if found is None:
        return None
    return first[found.since - 1].start_s, found.since, found.before, found.after, len(first)


def _server_failed(attempt: Attempt) -> bool:
    """Return True if the attempt failed because of the server, not because of the request."""
    if attempt.failure is FailureKind.HTTP_ERROR:
        return (attempt.status or 0) >= 500
    return attempt.failure is not None


def read_logs(run: Evidence, at_s: float) -> tuple[str, ...]:
    """Return the errors in the servers' logs around a time, in seconds since 1970."""
    lines = []
    for path in run.logs:
        near = errors_near(path, at_s, before_s=LOG_BEFORE_S, after_s=LOG_AFTER_S, most=LOG_LINES)
        lines += [f"{path.name}: {run.mask(line)}" for line in near]
    return tuple(lines)


def _end_of_log(run: Evidence, name: str) -> tuple[str, ...]:
    """Return the last lines of a server's log."""
    return tuple(
        f"{path.name}: {run.mask(line.text)}"
        for path in run.logs
        if path.stem == name
        for line in deque(read(path), LAST_LINES)
    )


def name_cause(text: str) -> str:
    """Return a cause so that it can stand in a sentence."""
    return text if text.startswith(("it ", "its ", "a ", "the ", "this ")) else f"it is {text}"


_KNOWN = (
    (
        (
            r"maximum context length|max_model_len|max_seq_len|max_num_tokens|prompt is too"
            r" long|should not exceed"
        ),
        "the prompt is longer than the server accepts",
        ("trtllm-serve ... --max_seq_len N --max_num_tokens N", "--set {task}.num_fewshot=0"),
    ),
    (
        r"max_completion_tokens",
        "the server requires the other name of max_tokens",
        ("--set connection.max_tokens_field=max_completion_tokens",),
    ),
    (
        (
            r"extra_forbidden|Extra inputs are not permitted|[Uu]nknown"
            r" (?:field|parameter)|[Uu]nsupported (?:field|param)"
        ),
        "the server rejects a field of the request",
        ("--set {task}.truncate_prompt_tokens=null", "--set {task}.temperature=null"),
    ),
    (
        (
            r"Input should be|parameter=\w+, value=|(?:[Ii]nvalid|[Uu]nsupported) value"
            r"|must be (?:at least|at most|between|non-)"
        ),
        "the server knows the field and rejects its value",
        ("--set {task}.OPTION=VALUE, or another value in protocol.extra_body",),
    ),
    (
        r"^HTTP 40[13]\b",
        "the key is missing or wrong",
        ("export OPENAI_API_KEY=...", "--api-key-env NAME"),
    ),
    (
        r"^HTTP 404\b.*model|model .*(?:not found|does not exist)",
        "the server has no model of that name",
        ("--model NAME, as curl BASE_URL/models lists it",),
    ),
    (
        r"^HTTP 404\b|^HTTP 405\b",
        "the route does not exist: the base URL or the kind of endpoint is wrong",
        ("--base-url URL", "--set protocol.apply_chat_template=true"),
    ),
    (
        r"^HTTP 429\b",
        "the server rejects this many requests",
        ("--set limits.rate_limit=R", "--concurrency {concurrency}"),
    ),
    (
        r"No \d+ servers available|Cluster is not ready",
        "the orchestrator had no worker available",
        ("check curl BASE_URL/cluster_info and the logs of the workers",),
    ),
    (
        r"finished early|Invalid disaggregated params in context phase",
        "a 1.2 orchestrator fails if the context server finishes an answer",
        ("update trtllm-serve", "--set {task}.stop=[]"),
    ),
    (
        r"ended without an answer: finish_reason",
        "the server broke the generation off",
        ("read the server's log of that time",),
    ),
    (
        r"which is not read, may hold it|different texts in its fields|has two texts",
        "the server puts the text into a field of its own, which OpenAI's clients do not read",
        ("serve-eval smoke URL", "the options of the server or gateway that form its answers"),
    ),
    (
        r"an error (?:object|within|in place)|status of an error|event that names an error",
        "the server answered with an error under HTTP 200",
        ("read the server's log of that time",),
    ),
    (
        r"lost|empty stream|stream .*(?:ended|without)",
        "a stream ended without its answer",
        ("--set limits.stream=false",),
    ),
    (
        r"^no connection within|refused",
        "no server responds at that address",
        ("--base-url URL", "read the server's log"),
    ),
)
"""Pattern of a message, reason, and changes, in which {task} and {concurrency} are filled in."""


def find_known(run: Evidence, task: TaskEvidence, message: str) -> tuple[str, tuple[str, ...]]:
    """Return the reason of a message and what to change, or empty ones if it is unknown."""
    told = None if run.last.limits is None else run.last.limits.concurrency
    fewer = max(1, told // 4) if isinstance(told, int) else 8
    for pattern, reason, change in _KNOWN:
        if re.search(pattern, message):
            return reason, tuple(one.format(task=task.word, concurrency=fewer) for one in change)
    return "", ()
