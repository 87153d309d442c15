"""What a round says: the baseline while it is learnt, the evidence after it, and alarms. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serve_eval.checks.row import CheckOutcome
from serve_eval.stats import sequential_monitor
from serve_eval.stats.betting import GRID
from serve_eval.workflows.watch.record import (
    Bets,
    CheckHistory,
    LearntLevel,
    Seen,
    State,
    WatchAlarm,
)

ACCURACY, USABLE, FAILURES, DOWN, CHECK = "accuracy", "usable", "failures", "down", "check"
ALPHA: Mapping[str, float] = {ACCURACY: 0.005, USABLE: 0.0015, FAILURES: 0.001}
"""The chance that a watch of a healthy endpoint ever alarms by these bets."""
FLOOR_ALPHA: Mapping[str, float] = {ACCURACY: 0.002, USABLE: 0.0005}
"""The chance that a floor that was learnt lies too high. With ALPHA .01 in all."""
SILENT = 3
"""Rounds in a row without any answer: down."""
LEARNT, FAILING = 3, 3
"""A check is watched that passed in the first LEARNT smoke tests, and has failed when FAILING in a
row did not pass."""
MISSES = 3
"""So often a prompt of the baseline may have no answer in a round in which others have one."""
RECENT = 10
"""Rounds by which an alarm says how things are now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRules:
    """`passes` through the pool make the baseline. `tolerance` is how far accuracy, and the share
    of usable answers, may lie below it, 0..1; `reference` the accuracy of the pool where it is
    known otherwise. Up to `max_error_rate` of the requests may fail. `round_means`: one value of
    each round is bet on, instead of each answer.
    """

    passes: int
    tolerance: float
    max_error_rate: float
    reference: float | None = None
    round_means: bool = False


def questions_of(state: State, rules: WatchRules, most: int) -> list[int]:
    """Choose the prompts of the next round, `most` at the most: the baseline's next ones, after it
    a random subset.

    Draw each subset from the whole pool, independently of earlier rounds: the bets rest on that
    alone. With `round_means` a subset holds hard and easy prompts in the pool's shares.
    """
    left = _list_left(state)
    rng = random.Random(f"{state.seed}:{state.rounds + 1}")
    if state.accuracy is not None:
        most = min(most, len(left))
        if not rules.round_means:
            return sorted(rng.sample(left, most))
        rng.shuffle(left)  # those that are equally hard, in an order of this round
        left.sort(key=lambda i: _usual(state.answers[i]))
        return sorted(
            left[place] for place in sequential_monitor.spread_subset(len(left), most, rng.random())
        )
    rng.shuffle(left)
    due = [i for i in left if len(state.answers[i]) < rules.passes]
    return sorted(due, key=lambda i: len(state.answers[i]))[:most]


def judge(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    """Takes a round into the state. Returns the alarms that are new, which are in the state as
    well.
    """
    state.rounds = seen.round
    _count(state, seen)
    raised = [*_availability(state, seen, rules)]
    if seen.asked:
        total = math.fsum(value for value in seen.values if value is not None)
        state.recent = [*state.recent[1 - RECENT :], (len(seen.asked), seen.answered, total)]
    if seen.answered and state.accuracy is not None:
        raised += _worse(state, seen, rules)
    elif seen.answered:
        _learn(state, seen, rules)
    if seen.checks is not None and not seen.stopped:
        raised += _checks(state, seen)
    new = [alarm for alarm in raised if alarm.name not in {known.name for known in state.standing}]
    state.alarms += new
    return new


def _count(state: State, seen: Seen) -> None:
    """Notes how many tokens prompts have. Where one has more than was estimated, so may those not
    counted yet, which are those without an answer.
    """
    counted = {
        i: tokens for i, tokens in zip(seen.asked, seen.prompt_tokens, strict=True) if tokens
    }
    new = [i for i, answers in enumerate(state.answers) if not answers]
    excess = max((counted[i] - state.prompt_tokens[i] for i in new if i in counted), default=0)
    for i in new:
        state.prompt_tokens[i] += max(0, excess)
    for i, tokens in counted.items():
        state.prompt_tokens[i] = tokens


def recent(state: State) -> tuple[int, int, float | None]:
    """Of the last rounds: requests, answers, and their mean."""
    asked, answered, total = (
        (sum(column) for column in zip(*state.recent, strict=True)) if state.recent else (0, 0, 0)
    )
    return int(asked), int(answered), total / answered if answered else None


def learnt(state: State, rules: WatchRules) -> float:
    """How much of the baseline there is, 0..1."""
    left = _list_left(state)
    return (
        sum(min(rules.passes, len(state.answers[i])) for i in left) / (rules.passes * len(left))
        if left
        else 0.0
    )


def evidence(state: State, kind: str) -> float:
    """The wealth of a bet, in natural logarithms; 0 before it began."""
    bets = state.bets.get(kind)
    return (
        float(sequential_monitor.log_evidence(bets.logs, bets.rounds))
        if bets is not None and bets.rounds
        else 0.0
    )


def limit(kind: str) -> float:
    """The evidence from which on there is an alarm, in natural logarithms."""
    return -math.log(ALPHA[kind])


def blind(state: State, rules: WatchRules) -> bool:
    """Whether no fall could be noticed: the floor is at or below the tolerance."""
    return state.accuracy is not None and state.accuracy.floor <= rules.tolerance


def _list_left(state: State) -> list[int]:
    dropped = set(state.dropped)
    return [i for i in range(len(state.answers)) if i not in dropped]


# ------------------------------------------------------------------------------------------------------
# baseline


def _learn(state: State, seen: Seen, rules: WatchRules) -> None:
    for i, value, usable in zip(seen.asked, seen.values, seen.usable, strict=True):
        if value is not None:
            state.answers[i].append(value)
            state.usable[i].append(float(usable))
        else:
            state.misses[i] += 1
            if state.misses[i] >= MISSES:
                state.dropped.append(i)
    left = _list_left(state)
    if left and all(len(state.answers[i]) >= rules.passes for i in left):
        state.accuracy = _level([state.answers[i] for i in left], ACCURACY, rules.reference)
        state.share_usable = _level([state.usable[i] for i in left], USABLE, None)


def _level(answers: Sequence[Sequence[float]], kind: str, reference: float | None) -> LearntLevel:
    """The level of a share; its floor is the reference where there is one."""
    mean = math.fsum(map(math.fsum, answers)) / math.fsum(map(len, answers))
    if reference is not None:
        return LearntLevel(mean=mean, floor=reference)
    return LearntLevel(
        mean=mean,
        floor=sequential_monitor.floor(list(zip(*answers, strict=True)), FLOOR_ALPHA[kind]),
    )


# ----------------------------------------------------------------------------------------------------------
# bets


def _bet(state: State, kind: str, values: Sequence[float], null: float, highest: float) -> bool:
    """Plays a round; whether the evidence is now enough."""
    bets = state.bets.setdefault(kind, Bets(logs=[]))
    before = bets.logs or [-math.inf] * len(GRID)
    bets.rounds += 1
    bets.logs = sequential_monitor.grow(
        before, bets.rounds, sequential_monitor.gains(values, null, highest)
    ).tolist()
    return evidence(state, kind) >= limit(kind)


def _worse(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    """Accuracy and usable answers against their floors. What has no answer counts as well as it
    could: a failure of the endpoint never speaks for a fall.
    """
    assert state.accuracy is not None
    assert state.share_usable is not None
    given = [
        None if value is None else float(usable)
        for value, usable in zip(seen.values, seen.usable, strict=True)
    ]
    raised = []
    for kind, level, now, before, words in (
        (ACCURACY, state.accuracy, seen.values, state.answers, "answers are right less often"),
        (USABLE, state.share_usable, given, state.usable, "fewer answers hold anything to score"),
    ):
        usual = {i: _usual(before[i]) for i in _list_left(state)}
        mean = math.fsum(usual.values()) / len(usual)
        least = level.floor - rules.tolerance
        values, highest = (
            [(1.0 if x is None else x) - usual[i] for i, x in zip(seen.asked, now, strict=True)],
            1.0,
        )
        if rules.round_means:
            values = [math.fsum(values) / len(values)]
            highest = _highest(kind, usual, seen.asked)
        if _bet(state, kind, values, least - mean, highest):
            told = (
                f"{words} than in the baseline: less than {least:.1%}, where it was"
                f" {level.mean:.1%}"
            )
            if kind == ACCURACY:
                shares = [
                    f"{total / answered:.1%}" for _, answered, total in state.recent if answered
                ]
                told += f"; the last rounds: {', '.join(shares)}"
            figures = {"baseline": level.mean, "floor": level.floor, "at_least": least}
            raised.append(_alarm(state, seen, kind, told, figures))
    return raised


def _usual(answers: Sequence[float]) -> float:
    return math.fsum(answers) / len(answers)


def _highest(kind: str, usual: Mapping[int, float], asked: Sequence[int]) -> float:
    """By how much the mean of as many answers can be better than usual, over all subsets that could
    have been drawn.

    Subsets are spread by accuracy; of any other share the prompts with the most room could come
    together. A round that an older version drew at random may have had more room than that.
    """
    if kind == ACCURACY:
        most = sequential_monitor.highest_mean(list(usual.values()), len(asked))
    else:
        most = math.fsum(
            sorted((1.0 - x for x in usual.values()), reverse=True)[: len(asked)]
        ) / len(asked)
    return max(most, math.fsum(1.0 - usual[i] for i in asked) / len(asked))


def _availability(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    if not seen.asked:
        return []
    raised = []
    state.silent = 0 if seen.came else state.silent + 1
    if state.silent >= SILENT:
        told = f"no answer at all in {state.silent} rounds in a row; {seen.first_failure}"
        raised.append(_alarm(state, seen, DOWN, told, {}))
    elif not state.silent:
        _over(state, {DOWN})
    share = 1.0 - seen.came / len(seen.asked)
    if _bet(state, FAILURES, [-share], -rules.max_error_rate, 0.0):
        told = (
            f"more than {rules.max_error_rate:.1%} of the requests fail; in this round {share:.1%}:"
            f" {_kinds(seen)}"
        )
        raised.append(
            _alarm(
                state, seen, FAILURES, told, {"at_most": rules.max_error_rate, "this_round": share}
            )
        )
    return raised


def _kinds(seen: Seen) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in seen.failures.items()) or "none"


def _alarm(
    state: State, seen: Seen, kind: str, told: str, figures: Mapping[str, float]
) -> WatchAlarm:
    if kind in ALPHA:
        figures = {
            **figures,
            "evidence_nats": evidence(state, kind),
            "limit_nats": limit(kind),
            "alpha": ALPHA[kind],
        }
    return WatchAlarm(
        kind=kind, round=seen.round, at=seen.started_at, told=told, figures=dict(figures)
    )


# --------------------------------------------------------------------------------------------------------
# checks


def _checks(state: State, seen: Seen) -> list[WatchAlarm]:
    """Rows that always passed and do not pass any more."""
    assert seen.checks is not None
    state.smokes += 1
    raised = []
    for name, outcome in seen.checks.items():
        row = state.rows.setdefault(name, CheckHistory())
        passes = outcome == CheckOutcome.PASS
        row.first_passed += passes and row.first_passed == row.seen
        row.seen += 1
        row.failing = 0 if passes else row.failing + 1
        if passes:
            _over(state, {f"{CHECK} {name}"})
        elif row.failing >= FAILING and is_watched(row):
            told = (
                f"{name} passed in all of the first {LEARNT} smoke tests, and not in the last"
                f" {row.failing}: "
            )
            alarm = _alarm(state, seen, CHECK, told + seen.told.get(name, outcome), {})
            alarm.subject = name
            raised.append(alarm)
    return raised


def is_watched(row: CheckHistory) -> bool:
    """Whether a check passed in the first LEARNT smoke tests."""
    return row.first_passed >= LEARNT


def is_asked_again(state: State) -> bool:
    """Whether a check that is watched has to be looked at again in the next round."""
    return any(0 < row.failing < FAILING and is_watched(row) for row in state.rows.values())


def _over(state: State, names: set[str]) -> None:
    for alarm in state.standing:
        alarm.over = alarm.name in names
