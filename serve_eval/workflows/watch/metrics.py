"""Serve the figures of a watch to Prometheus, which needs the extra watch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from serve_eval.checks.row import CheckOutcome
from serve_eval.errors import PlanError, install_hint
from serve_eval.workflows.watch import bets, judging
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
