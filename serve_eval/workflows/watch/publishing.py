"""Publish the state of a watch: alarms to commands and webhooks, metrics to Prometheus.

Neither can stop the watch or receive keys that it was not given.

The names include the units. Shares are 0..1.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec

from serve_eval.checks.row import CheckOutcome
from serve_eval.client.connection import expand
from serve_eval.errors import PlanError, install_hint
from serve_eval.processes.child_process import inherit
from serve_eval.report.one_line import OneLine
from serve_eval.schema import Connection
from serve_eval.workflows.watch import bets, judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State, WatchAlarm

BROKEN = ("failures", "down")
"""Kinds of alarms that are about the endpoint's answering, not about its answers."""
COMMAND_S, WEBHOOK_S = 60.0, 10.0
"""Time limits in seconds of a command and of each attempt at a webhook."""
ATTEMPTS, PAUSE_S = 3, 1.0
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The destinations of alarms.

    A `${VARIABLE}` in `webhook` is filled in when it is called. `pass_env` names the variables that
    the command gets in addition to those that every program needs.
    """

    command: tuple[str, ...] = ()
    pass_env: tuple[str, ...] = ()
    webhook: str | None = None


def delivery(
    command: str | None,
    webhook: str | None,
    environ: Mapping[str, str],
    pass_env: Sequence[str] = (),
) -> Delivery:
    """Return the destinations of alarms.

    Raises PlanError for a command that is empty or cannot be split, a webhook that is not an
    address, and a variable that is not in the environment.
    """
    try:
        words = tuple(shlex.split(command or ""))
    except ValueError as error:
        raise PlanError(f"--on-alarm-command: {error}") from error
    if command is not None and not words:
        raise PlanError("--on-alarm-command: the command is empty")
    if webhook is not None and not _is_address(expand(webhook, environ, "--webhook")):
        raise PlanError("--webhook: expected http://... or https://...")
    if pass_env and command is None:
        raise PlanError("watch.alarm_env needs --on-alarm-command")
    if missing := [name for name in pass_env if name not in environ]:
        raise PlanError(f"watch.alarm_env: not set in the environment: {', '.join(missing)}")
    return Delivery(command=words, webhook=webhook, pass_env=tuple(pass_env))


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # A port above 65535, or an incomplete IPv6 address.
        return False


def make_alarm_line(alarm: WatchAlarm, model: str | None, base_url: str) -> OneLine:
    """Return the line about an alarm. Its words have the figures and the likeliest cause."""
    about = " ".join(filter(None, (alarm.name, model, f"at {base_url}")))
    return OneLine(outcome="ALARM", about=about, cause=alarm.told, sure=True)


async def deliver(
    to: Delivery,
    alarm: Mapping[str, object],
    connection: Connection,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> dict[str, bool]:
    """Send an alarm to all destinations concurrently, and return whether each accepted it.

    `notify` receives the errors.
    """
    body = msgspec.json.encode(alarm)
    ways = {}
    if to.command:
        ways["command"] = _run(to.command, body, _for_command(environ, connection, to.pass_env))
    if to.webhook is not None:
        ways["webhook"] = _post(expand(to.webhook, environ, "--webhook"), body)
    results = await asyncio.gather(*ways.values())
    for way, problem in zip(ways, results, strict=True):
        if problem:
            notify(f"warning: the alarm's {way} failed: {problem}")
    return {way: not problem for way, problem in zip(ways, results, strict=True)}


def _for_command(
    environ: Mapping[str, str], connection: Connection, named: Sequence[str]
) -> dict[str, str]:
    """Return the variables for a command: those that every program needs, and the named ones.

    Variables of the endpoint's key, headers and proxy are left out unless they are named.
    """
    texts = [*connection.headers.values(), connection.proxy or ""]
    hidden = {
        "OPENAI_API_KEY",
        connection.api_key_env,
        *(name for text in texts for name in _VARIABLE.findall(text)),
    }
    return {
        name: value
        for name, value in inherit(environ, named).items()
        if name in named or name not in hidden
    }


async def _run(command: tuple[str, ...], body: bytes, environ: Mapping[str, str]) -> str:
    """Run the command with the alarm on its standard input, and return the error, if any."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=dict(environ)
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    try:
        async with asyncio.timeout(COMMAND_S):
            # uvloop raises RuntimeError if the command closed its input without reading it.
            with contextlib.suppress(RuntimeError):
                await process.communicate(body + b"\n")
            await process.wait()
    except TimeoutError:
        return f"{command[0]} did not finish within {COMMAND_S:g} s"
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return f"{command[0]} exited with {process.returncode}" if process.returncode else ""


async def _post(url: str, body: bytes) -> str:
    """Send the alarm, with retries, and return the error, if any.

    The error does not name the address, which may be secret.
    """
    import httpx

    problem = ""
    async with httpx.AsyncClient(timeout=WEBHOOK_S) as client:
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(PAUSE_S * attempt)
            try:
                async with asyncio.timeout(WEBHOOK_S):
                    headers = {"Content-Type": "application/json"}
                    # The body of the reply says nothing, and is left unread.
                    async with client.stream("POST", url, content=body, headers=headers) as reply:
                        pass
            except Exception as error:  # An unresolvable name may raise any exception.
                problem = type(error).__name__
                continue
            if reply.is_success:
                return ""
            problem = f"HTTP {reply.status_code}"
            if reply.is_client_error and reply.status_code != 429:
                break
    return problem


try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
except ImportError as error:
    raise PlanError(
        "--metrics-port needs the package prometheus_client", hint=install_hint("watch")
    ) from error

HOST = "127.0.0.1"
PREFIX = "serve_eval_watch"


class Metrics:
    """The metrics of one watch. Counters start at 0 with the process; gauges show the state."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        self._rounds = counter("rounds", "Rounds of this process.")
        self._answers = counter("answers", "Answers that were scored.")
        self._failures = counter("failed_requests", "Requests without an answer.", "kind")
        self._tokens = counter("tokens", "Prompt and generated tokens of all requests.")
        self._raised = counter("alarms", "Alarms that were raised.", "kind")
        self._delivered = counter(
            "deliveries", "Deliveries of alarms to the command or the webhook.", "way", "result"
        )
        self._latency = Histogram(
            f"{PREFIX}_answer_latency_seconds", "Latency of an answer.", registry=registry
        )
        self._last = gauge("last_round_timestamp_seconds", "When the last round ended.")
        self._duration = gauge("round_duration_seconds", "Duration of the last round.")
        self._accuracy = gauge("accuracy_ratio", "Mean score of the answers of the last rounds.")
        self._baseline = gauge(
            "baseline_accuracy_ratio", "Mean score of the answers of the baseline."
        )
        self._floor = gauge("accuracy_floor_ratio", "Accuracy below which a fall is bet on.")
        self._learnt = gauge("baseline_learnt_ratio", "Share of the baseline that is complete.")
        self._evidence = gauge(
            "evidence_nats", "Evidence of a change for the worse, natural logarithm.", "watched"
        )
        self._limit = gauge(
            "evidence_limit_nats", "Evidence that raises an alarm, natural logarithm.", "watched"
        )
        self._alarm = gauge("alarm", "1 while an alarm of the kind is active.", "kind")
        self._rehearsal = gauge("rehearsal", "1 if the stand-in of a rehearsal answers, else 0.")
        self._check = gauge("check_passed", "1 if the last smoke test passed the check.", "check")
        self._beyond = gauge(
            "probes_beyond_ratio", "Share of the last round's probes that lie beyond the floor."
        )

    def state(self, state: State, rules: WatchRules) -> None:
        """Set the gauges from the state."""
        _, _, accuracy = judging.recent(state)
        if accuracy is not None:
            self._accuracy.set(accuracy)
        if state.accuracy is not None:
            self._baseline.set(state.accuracy.mean)
            self._floor.set(state.accuracy.floor - rules.tolerance)
        self._rehearsal.set(state.rehearsal)
        self._learnt.set(1.0 if state.accuracy is not None else judging.learnt(state, rules))
        standing = {alarm.kind for alarm in state.standing}
        for kind in (*bets.levels(state), judging.DOWN, judging.CHECK):
            self._alarm.labels(kind).set(kind in standing)
        for kind in bets.levels(state):
            self._limit.labels(kind).set(bets.limit(state, kind))
            self._evidence.labels(kind).set(bets.evidence(state, kind))

    def round(self, seen: Seen, alarms: list[str]) -> None:
        """Count a round, and the kinds of the alarms that it raised."""
        self._rounds.inc()
        self._answers.inc(seen.answered)
        self._tokens.inc(seen.tokens)
        for kind, count in seen.failures.items():
            self._failures.labels(kind).inc(count)
        for latency in seen.latencies_s:
            self._latency.observe(latency)
        for name, outcome in (seen.checks or {}).items():
            self._check.labels(name).set(outcome == CheckOutcome.PASS)
        if seen.probes is not None and seen.probes.measured:
            self._beyond.set(seen.probes.beyond / len(seen.probes.measured))
        for kind in alarms:
            self._raised.labels(kind).inc()
        self._duration.set(seen.seconds)
        self._last.set(time.time())

    def count_deliveries(self, results: dict[str, bool]) -> None:
        """Count the deliveries of an alarm by their results."""
        for way, took in results.items():
            self._delivered.labels(way, "taken" if took else "failed").inc()


@contextmanager
def serve(metrics: Metrics, port: int) -> Iterator[int]:
    """Serve the metrics at http://127.0.0.1:PORT/metrics, and yield the port.

    Port 0 selects a free one. Raises PlanError if the port is in use.
    """
    try:
        server, thread = start_http_server(port, addr=HOST, registry=metrics.registry)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "the largest port is 65535"
        raise PlanError(f"--metrics-port: {port} cannot be used: {why}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
