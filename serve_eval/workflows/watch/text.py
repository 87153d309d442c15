"""The lines in which a watch says what a round came to."""

from __future__ import annotations

import math
from collections import Counter

from serve_eval.workflows.watch import judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State


def line(state: State, seen: Seen, rules: WatchRules) -> str:
    """Return a round in a line."""
    parts = [f"{seen.started_at[:19].replace('T', ' ')}  round {seen.round}", *_answers(seen)]
    if seen.checks is not None:
        counts = Counter(seen.checks.values())
        parts.append(
            "smoke "
            + ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNSUPPORTED"))
        )
    parts.append(_accuracy(state, rules))
    if seen.first_failure:
        parts.append(f"without an answer: {seen.first_failure}")
    if seen.unscored:
        parts.append(
            f"{seen.unscored} answers that the scorer could not judge, such as"
            f" {seen.first_unscored}"
        )
    return "; ".join([*parts, f"{seen.tokens} tokens"])


def _answers(seen: Seen) -> list[str]:
    """Return how many questions were answered, and how well; empty where none was asked."""
    if not seen.asked:
        return []
    values = [value for value in seen.values if value is not None]
    mean = f", {sum(values) / len(values):.1%}" if values else ""
    failed = f" of {len(seen.asked)}" if len(values) < len(seen.asked) else ""
    return [f"{len(values)}{failed} answered{mean}"]


def _accuracy(state: State, rules: WatchRules) -> str:
    """Return how far the baseline is or, behind it, the evidence for a fall."""
    if state.accuracy is None:
        return f"baseline {math.floor(100 * judging.learnt(state, rules))}%"
    if state.bets.get(judging.ACCURACY) is None:
        least = state.accuracy.floor - rules.tolerance
        return f"baseline complete: {state.accuracy.mean:.1%}; a fall below {least:.1%} is bet on"
    words = [
        f"{kind} {_wealth(judging.evidence(state, kind))} of {1 / a:.0f}"
        for kind, a in judging.ALPHA.items()
    ]
    return f"evidence {', '.join(words)}"


def describe_unjudged(state: State, rules: WatchRules) -> str | None:
    """Return the last line of a watch whose baseline is not complete; None where it is."""
    if state.accuracy is not None:
        return None
    share, had = judging.learnt(state, rules), sum(map(len, state.answers))
    rounds = math.ceil(state.rounds * (1.0 / share - 1.0)) if share else None
    more = "" if rounds is None else f", some {rounds} round{'s' if rounds > 1 else ''} from here"
    return (
        f"Accuracy was not judged: the baseline is at {math.floor(100 * share)}% ({had} answers),"
        f" and a fall is bet on once it is complete{more}. The same command goes on."
    )


def _wealth(nats: float) -> str:
    """Return evidence as a factor."""
    return f"{math.exp(nats):.3g}" if nats < 700.0 else "more than 1e300"
