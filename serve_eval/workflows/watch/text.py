"""Format the rounds of a watch as lines of text."""

from __future__ import annotations

import math
from collections import Counter

from serve_eval.workflows.watch import bets, day, judging
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.record import Seen, State


def line(state: State, seen: Seen, rules: WatchRules) -> str:
    """Return the line that describes a round."""
    parts = [f"{seen.started_at[:19].replace('T', ' ')}  round {seen.round}", *_answers(seen)]
    if seen.checks is not None:
        counts = Counter(seen.checks.values())
        parts.append(
            "smoke "
            + ", ".join(f"{counts[name]} {name}" for name in ("PASS", "FAIL", "UNSUPPORTED"))
        )
    parts += [describe_accuracy(state, rules), *describe_probes(state, seen)]
    if seen.first_failure:
        parts.append(f"first failure: {seen.first_failure}")
    if seen.unscored:
        parts.append(
            f"the scorer failed on {seen.unscored} answers, for example {seen.first_unscored}"
        )
    return "; ".join([*parts, f"{seen.tokens} tokens"])


def _answers(seen: Seen) -> list[str]:
    """Return the number of answers and their accuracy; empty if no question was sent."""
    if not seen.asked:
        return []
    values = [value for value in seen.values if value is not None]
    mean = f", accuracy {sum(values) / len(values):.1%}" if values else ""
    failed = f" of {len(seen.asked)}" if len(values) < len(seen.asked) else ""
    return [f"{len(values)}{failed} answered{mean}"]


def describe_accuracy(state: State, rules: WatchRules) -> str:
    """Return the progress of the baseline or, once it is complete, the evidence for a fall."""
    if state.accuracy is None:
        return f"baseline {math.floor(100 * judging.learnt(state, rules))}%"
    if state.bets.get(bets.ACCURACY) is None:
        least = state.accuracy.floor - rules.tolerance
        return f"baseline complete: {state.accuracy.mean:.1%}, alarm if below {least:.1%}"
    words = [
        f"{kind} {_wealth(bets.evidence(state, kind))} of {1 / a:.0f}"
        for kind, a in bets.levels(state).items()
        if kind != bets.NUMERICS
    ]
    return f"evidence {', '.join(words)}"


def describe_probes(state: State, seen: Seen) -> list[str]:
    """Return how many probes are as the reference, and the evidence if any is not."""
    found = seen.probes
    if found is None:
        return []
    if not found.asked:
        return ["no probes were asked"]
    came = len(found.measured)
    missing = f", {len(found.asked) - came} without an answer" if came < len(found.asked) else ""
    if not came:
        why = f": {found.first_failure}" if found.first_failure else ""
        return [f"probes: none of {len(found.asked)} can be compared{why}"]
    weight = ""
    if state.probes is not None and state.probes.in_cycle.beyond:
        most = 1 / bets.levels(state)[bets.NUMERICS]
        weight = f" (evidence {_wealth(bets.evidence(state, bets.NUMERICS))} of {most:.0f})"
    return [f"{came - found.beyond} of {came} probes are like the reference{missing}{weight}"]


def say_gap(state: State, rules: WatchRules) -> str | None:
    """Return what a learnt baseline may not conclude, with the option that mends it, or None."""
    if state.accuracy is None or rules.reference is not None or not state.blocks:
        return None
    gap = day.describe_gap(state)
    return (
        None if gap is None else f"{gap} (--set watch.baseline_hours={day.FULL_DAY:g} covers a day)"
    )


def describe_unjudged(state: State, rules: WatchRules) -> str | None:
    """Return the last line of a watch whose baseline is incomplete, or None if it is complete."""
    if state.accuracy is not None:
        return None
    if (share := judging.learnt(state, rules)) == 1.0:
        return (
            f"Accuracy was not judged: the baseline does not cover {rules.baseline_hours:g} hours"
            " yet. Resume with the same command."
        )
    had = sum(map(len, state.answers))
    rounds = math.ceil(state.rounds * (1.0 / share - 1.0)) if share else None
    more = (
        "" if rounds is None else f" It needs about {rounds} more round{'s' if rounds > 1 else ''}."
    )
    return (
        f"Accuracy was not judged: the baseline is at {math.floor(100 * share)}% ({had} answers)."
        f"{more} Resume with the same command."
    )


def _wealth(nats: float) -> str:
    """Return evidence as a factor."""
    return f"{math.exp(nats):.3g}" if nats < 700.0 else "more than 1e300"
