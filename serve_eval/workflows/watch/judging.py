"""Pure functions that learn the baseline, judge each round against it, and raise alarms."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Sequence

from serve_eval.checks.row import CheckOutcome
from serve_eval.frozen import freeze
from serve_eval.stats import betting
from serve_eval.workflows.watch import bets
from serve_eval.workflows.watch.bets import (
    ACCURACY,
    FAILURES,
    FLOOR_ALPHA,
    USABLE,
    bet,
    build_alarm,
    highest_gain,
)
from serve_eval.workflows.watch.probes import judge_probes
from serve_eval.workflows.watch.record import (
    CheckHistory,
    LearntLevel,
    Seen,
    State,
    WatchAlarm,
)

DOWN, CHECK = "down", "check"
SILENT = 3
"""Consecutive rounds without any answer after which the endpoint is down."""
LEARNT, FAILING = 3, 3
"""A check is watched if it passed in the first LEARNT smoke tests. It raises an alarm after FAILING
consecutive smoke tests that it does not pass."""
MISSES = 3
"""Times that a prompt may fail in rounds of the baseline in which others are answered, before the
watch drops it."""
RECENT = 10
"""Number of the last rounds that an alarm and the metrics report."""


@freeze
class WatchRules:
    """The rules by which a watch judges rounds.

    The baseline consists of `passes` passes through the pool, or more until it covers
    `baseline_hours`; it is then compared by its worst hours of the day. `tolerance` (0..1) is how
    far accuracy and the share of usable answers may fall below it. `reference` is the accuracy of
    the pool if it is known from elsewhere. Up to `max_error_rate` of the requests may fail. With
    `round_means` the bets use the mean of a round instead of each answer.
    """

    passes: int
    tolerance: float
    max_error_rate: float
    reference: float | None = None
    round_means: bool = False
    baseline_hours: float = 0.0


def questions_of(state: State, rules: WatchRules, most: int) -> list[int]:
    """Return the positions of at most `most` prompts for the next round.

    During the baseline these are its next prompts, after it a random subset. Each subset is drawn
    from the whole pool, independently of earlier rounds: the validity of the bets depends only on
    that. With `round_means` a subset has the same shares of hard and easy prompts as the pool.
    """
    left = _list_left(state)
    rng = random.Random(f"{state.seed}:{state.rounds + 1}")
    if state.accuracy is not None:
        most = min(most, len(left))
        if not rules.round_means:
            return sorted(rng.sample(left, most))
        rng.shuffle(left)  # Prompts of equal accuracy get a random order.
        left.sort(key=lambda i: _usual(state.answers[i]))
        return sorted(left[place] for place in betting.spread_subset(len(left), most, rng.random()))
    rng.shuffle(left)
    due = [i for i in left if len(state.answers[i]) < _find_target(state, rules, left)]
    return sorted(due, key=lambda i: len(state.answers[i]))[:most]


def _find_target(state: State, rules: WatchRules, left: Sequence[int]) -> int:
    """Return the number of answers that each prompt has after the current pass."""
    counts = [len(state.answers[i]) for i in left]
    low, high = min(counts, default=0), max(counts, default=0)
    if low < rules.passes:
        return rules.passes
    return high if low < high else high + 1


def judge(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    """Add a round to the state and return the new alarms, which the state holds as well."""
    state.rounds = seen.round
    _count(state, seen)
    raised = [*judge_probes(state, seen), *_availability(state, seen, rules)]
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
    """Record the prompt tokens that the server counted.

    If a prompt has more than estimated, so may those without an answer, which are not counted yet.
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
    """Return the requests and answers of the last rounds, and the mean score of the answers."""
    asked, answered, total = (
        (sum(column) for column in zip(*state.recent, strict=True)) if state.recent else (0, 0, 0)
    )
    return int(asked), int(answered), total / answered if answered else None


def learnt(state: State, rules: WatchRules) -> float:
    """Return the share of the baseline that is complete, 0..1."""
    left = _list_left(state)
    return (
        sum(min(rules.passes, len(state.answers[i])) for i in left) / (rules.passes * len(left))
        if left
        else 0.0
    )


def blind(state: State, rules: WatchRules) -> bool:
    """Return True if no fall can be noticed, because the floor is at or below the tolerance."""
    return state.accuracy is not None and state.accuracy.floor <= rules.tolerance


def _list_left(state: State) -> list[int]:
    dropped = set(state.dropped)
    return [i for i in range(len(state.answers)) if i not in dropped]


# -- baseline ----------------------------------------------------


def _learn(state: State, seen: Seen, rules: WatchRules) -> None:
    state.began = state.began or seen.started_at
    state.blocks = state.blocks or [[] for _ in state.answers]
    for i, value, usable in zip(seen.asked, seen.values, seen.usable, strict=True):
        if value is not None:
            state.answers[i].append(value)
            state.usable[i].append(float(usable))
            state.blocks[i].append(bets.find_block(seen.started_at))
        else:
            state.misses[i] += 1
            if state.misses[i] >= MISSES:
                state.dropped.append(i)
    left = _list_left(state)
    counts = {len(state.answers[i]) for i in left}
    covered = bets.measure_hours(state.began, seen.started_at) >= rules.baseline_hours
    if counts and min(counts) >= rules.passes and covered and _is_whole(counts, rules):
        blocks = [state.blocks[i] for i in left] if rules.baseline_hours else None
        known, given = ([rows[i] for i in left] for rows in (state.answers, state.usable))
        state.accuracy = _level(known, ACCURACY, rules.reference, blocks)
        state.share_usable = _level(given, USABLE, None, blocks)


def _is_whole(counts: Collection[int], rules: WatchRules) -> bool:
    """Return True at the end of a pass; without hours to cover, the last pass is one."""
    return len(counts) == 1 or not rules.baseline_hours


def _level(
    answers: Sequence[Sequence[float]],
    kind: str,
    reference: float | None,
    blocks: Sequence[Sequence[int]] | None,
) -> LearntLevel:
    """Return the level of a share. Its floor is the reference if there is one.

    With the blocks of the day of the answers, it is that of the worst block.
    """
    mean = math.fsum(map(math.fsum, answers)) / math.fsum(map(len, answers))
    if reference is not None:
        return LearntLevel(mean=mean, floor=reference)
    if blocks is not None:
        return LearntLevel(
            mean=mean, floor=bets.find_worst_floor(answers, blocks, FLOOR_ALPHA[kind])
        )
    return LearntLevel(
        mean=mean,
        floor=betting.floor(list(zip(*answers, strict=True)), FLOOR_ALPHA[kind]),
    )


def _usual(answers: Sequence[float]) -> float:
    return math.fsum(answers) / len(answers)


def _worse(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    """Bet that accuracy or the share of usable answers is below its floor; return the alarms.

    A missing answer counts as the best possible one: a failure is never evidence of a fall.
    """
    assert state.accuracy is not None
    assert state.share_usable is not None
    given = [
        None if value is None else float(usable)
        for value, usable in zip(seen.values, seen.usable, strict=True)
    ]
    raised = []
    for kind, level, now, before, words in (
        (ACCURACY, state.accuracy, seen.values, state.answers, "accuracy"),
        (USABLE, state.share_usable, given, state.usable, "the share of usable answers"),
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
            highest = highest_gain(kind, usual, seen.asked)
        if bet(state, kind, values, least - mean, highest):
            told = f"{words} is below {least:.1%}; in the baseline it was {level.mean:.1%}"
            if kind == ACCURACY:
                shares = [
                    f"{total / answered:.1%}" for _, answered, total in state.recent if answered
                ]
                told += f"; last rounds: {', '.join(shares)}"
            if rules.reference is None:
                told += bets.doubt_alarm(state, seen.started_at)
            figures = {"baseline": level.mean, "floor": level.floor, "at_least": least}
            raised.append(build_alarm(state, seen, kind, told, figures))
    return raised


def _availability(state: State, seen: Seen, rules: WatchRules) -> list[WatchAlarm]:
    if not seen.asked:
        return []
    raised = []
    state.silent = 0 if seen.came else state.silent + 1
    if state.silent >= SILENT:
        told = f"no answer in {state.silent} consecutive rounds; {seen.first_failure}"
        raised.append(build_alarm(state, seen, DOWN, told, {}))
    elif not state.silent:
        _over(state, {DOWN})
    share = 1.0 - seen.came / len(seen.asked)
    if bet(state, FAILURES, [-share], -rules.max_error_rate, 0.0):
        told = (
            f"more than {rules.max_error_rate:.1%} of the requests fail; {share:.1%} in this round:"
            f" {_kinds(seen)}"
        )
        raised.append(
            build_alarm(
                state, seen, FAILURES, told, {"at_most": rules.max_error_rate, "this_round": share}
            )
        )
    return raised


def _kinds(seen: Seen) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in seen.failures.items()) or "none"


# -- checks ------------------------------------------------------


def _checks(state: State, seen: Seen) -> list[WatchAlarm]:
    """Return alarms for checks that passed at first and no longer pass."""
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
                f"{name} passed in the first {LEARNT} smoke tests, but not in the last"
                f" {row.failing}: "
            )
            alarm = build_alarm(state, seen, CHECK, told + seen.told.get(name, outcome), {})
            alarm.subject = name
            raised.append(alarm)
    return raised


def is_watched(row: CheckHistory) -> bool:
    """Return True if a check passed in the first LEARNT smoke tests."""
    return row.first_passed >= LEARNT


def is_asked_again(state: State) -> bool:
    """Return True if a watched check is failing and has to be repeated in the next round."""
    return any(0 < row.failing < FAILING and is_watched(row) for row in state.rows.values())


def _over(state: State, names: set[str]) -> None:
    for alarm in state.standing:
        alarm.over = alarm.name in names
