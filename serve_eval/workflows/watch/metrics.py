"""What Prometheus may know of a watch, on a port of this machine alone. Units stand in the names;
shares are 0..1.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from serve_eval.checks.row import CheckOutcome
from serve_eval.errors import PlanError, install_hint
from serve_eval.workflows.watch import judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State

try:
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
except ImportError as error:
    raise PlanError(
        "--metrics-port needs the package prometheus_client", hint=install_hint("watch")
    ) from error

HOST = "127.0.0.1"
PREFIX = "serve_eval_watch"


class Metrics:
    """The figures of one watch. Counters begin at 0 with the process, gauges tell the state."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"{PREFIX}_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"{PREFIX}_{name}", text, labels, registry=registry)

        self._rounds = counter("rounds", "Rounds of this process.")
        self._answers = counter("answers", "Answers that were scored.")
        self._failures = counter("failed_requests", "Requests without an answer.", "kind")
        self._tokens = counter("tokens", "Tokens read and generated, of questions and smoke tests.")
        self._raised = counter("alarms", "Alarms that were raised.", "kind")
        self._delivered = counter(
            "deliveries", "Alarms given to the command or the webhook.", "way", "result"
        )
        self._latency = Histogram(
            f"{PREFIX}_answer_latency_seconds", "Time of an answer.", registry=registry
        )
        self._last = gauge("last_round_timestamp_seconds", "When the last round ended.")
        self._duration = gauge("round_duration_seconds", "How long the last round took.")
        self._accuracy = gauge(
            "accuracy_ratio", "Mean of what the answers of the last rounds were worth."
        )
        self._baseline = gauge("baseline_accuracy_ratio", "The same of the baseline.")
        self._floor = gauge("accuracy_floor_ratio", "Accuracy below which bets speak for a fall.")
        self._learnt = gauge("baseline_learnt_ratio", "How much of the baseline is there.")
        self._evidence = gauge(
            "evidence_nats", "Evidence of a change for the worse, natural logarithm.", "watched"
        )
        self._limit = gauge(
            "evidence_limit_nats", "The evidence from which on there is an alarm.", "watched"
        )
        self._alarm = gauge("alarm", "1 while an alarm of the kind stands.", "kind")
        self._check = gauge(
            "check_passed", "1 where the last smoke test passed the check.", "check"
        )
        for kind, _ in judging.ALPHA.items():
            self._limit.labels(kind).set(judging.limit(kind))

    def state(self, state: State, rules: WatchRules) -> None:
        """Sets the gauges to what is known."""
        _, _, accuracy = judging.recent(state)
        if accuracy is not None:
            self._accuracy.set(accuracy)
        if state.accuracy is not None:
            self._baseline.set(state.accuracy.mean)
            self._floor.set(state.accuracy.floor - rules.tolerance)
        self._learnt.set(1.0 if state.accuracy is not None else judging.learnt(state, rules))
        standing = {alarm.kind for alarm in state.standing}
        for kind in (*judging.ALPHA, judging.DOWN, judging.CHECK):
            self._alarm.labels(kind).set(kind in standing)
        for kind in judging.ALPHA:
            self._evidence.labels(kind).set(judging.evidence(state, kind))

    def round(self, seen: Seen, alarms: list[str]) -> None:
        """Counts a round, and the kinds of the alarms that it raised."""
        self._rounds.inc()
        self._answers.inc(seen.answered)
        self._tokens.inc(seen.tokens)
        for kind, count in seen.failures.items():
            self._failures.labels(kind).inc(count)
        for latency in seen.latencies_s:
            self._latency.observe(latency)
        for name, outcome in (seen.checks or {}).items():
            self._check.labels(name).set(outcome == CheckOutcome.PASS)
        for kind in alarms:
            self._raised.labels(kind).inc()
        self._duration.set(seen.seconds)
        self._last.set(time.time())

    def count_deliveries(self, results: dict[str, bool]) -> None:
        """Counts what became of the deliveries of an alarm."""
        for way, took in results.items():
            self._delivered.labels(way, "taken" if took else "failed").inc()


@contextmanager
def serve(metrics: Metrics, port: int) -> Iterator[int]:
    """Serves the figures at http://127.0.0.1:PORT/metrics; gives the port, which is chosen where 0
    is asked for.

    Raises PlanError for a port that is taken.
    """
    try:
        server, thread = start_http_server(port, addr=HOST, registry=metrics.registry)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "ports end at 65535"
        raise PlanError(f"--metrics-port: {port} cannot be used: {why}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
