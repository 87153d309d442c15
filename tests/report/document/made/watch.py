"""Documents of a watch, by outcome."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import replace

from serve_eval.workflows.watch.document import make_document
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import LearntLevel, Seen, SeenProbes, State, WatchAlarm

URL = "http://127.0.0.1:8000/v1"
T0 = datetime(2026, 10, 1, 12, tzinfo=UTC)


def make_documents(text="some text"):
    """Return a document for each outcome, with `text` where the server or a user wrote it."""
    alarm = WatchAlarm(
        kind="accuracy", round=3, at="2026-10-01T15:00:00+00:00", told=f"accuracy fell {text}"
    )
    over = replace(alarm, kind="check", subject=text, told=text, over=True)
    several = [replace(alarm, kind=kind) for kind in ("numerics", "accuracy", "down", "failures")]
    state = _make_state(text)
    states = {
        "ALARM": replace(state, alarms=[alarm]),
        "NO ALARM": state,
        "over": replace(state, alarms=[over]),
        "BASELINE": replace(state, accuracy=None, answers=[[1.0], [1.0], []], usable=[[], [], []]),
        "several": replace(state, alarms=[*several, over]),
        "rehearsal": replace(state, rehearsal=True),
    }
    rules = WatchRules(passes=2, tolerance=0.02, max_error_rate=0.1)
    return {
        name: make_document(
            one,
            make_rounds(text),
            rules,
            URL,
            int(bool(one.standing)),
            folder=Path("outputs/watch"),
        )
        for name, one in states.items()
    }


def _make_state(text):
    return State(
        bound={},
        seed=1,
        model=text,
        chat=True,
        answers=[],
        usable=[],
        misses=[],
        prompt_tokens=[],
        rounds=3,
        accuracy=LearntLevel(mean=0.8, floor=0.78),
        recent=[(4, 3, 2.0)],
    )


def make_rounds(text):
    """Return three rounds, the last one with a smoke test and probes."""
    rounds = [
        Seen(
            round=i + 1,
            started_at=(T0 + timedelta(hours=i)).isoformat(),
            seconds=1.0,
            asked=[0, 1, 2, 3],
            values=[1.0, 1.0, float(i < 2), None],
            usable="111",
            prompt_tokens=[9] * 4,
            failures={"timeout": 1},
            first_failure=text,
            latencies_s=[0.1, 0.2, 0.4],
            tokens=100,
        )
        for i in range(3)
    ]
    probes = SeenProbes(asked=["a", "b"], nats=[0.0, 0.5], limit=0.08, beyond=1)
    checks = {"chat": "PASS", "json": "FAIL"}
    return [*rounds[:2], replace(rounds[2], checks=checks, told={"json": text}, probes=probes)]
