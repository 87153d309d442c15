"""Test the rules over loads on made-up answers, and the words for loads that break."""

import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.evidence.self_flips import name_loads
from serve_eval.schema import LoadPoint, Metric, Outcome
from serve_eval.storage.scores import ScoreRecord
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.load.judging import (
    ALPHA,
    LoadData,
    count_changes,
    find_exit_code,
    judge_tasks,
    weigh_changes,
)
from serve_eval.workflows.load.story import count_halvings, halve

PROMPTS = 200
LOADS = (1, 4, 16, 64)


def _answers(scores, passage=1):
    """Return answers with these scores; None is a prompt without an answer.

    `passage` consecutive prompts share a group.
    """
    lines = {
        str(i): ScoreRecord(
            id=str(i),
            outcome=Outcome.CORRECT,
            value=value,
            target="",
            group=f"passage {i // passage}",
        )
        for i, value in enumerate(scores)
        if value is not None
    }
    counts = {"planned": len(scores), "scored": len(lines), "cut_in_thoughts": 0}
    task = SimpleNamespace(result=SimpleNamespace(metric=Metric(), **counts))
    return TaskAnswers(cast("Any", task), Path(), (lines,), ({},), {})


def _judge(
    by_load,
    again=None,
    first=1,
    tasks=1,
    passage=1,
):
    answers = {load: _answers(scores, passage) for load, scores in by_load.items()}
    lowest = answers[min(answers)]
    points = []
    for load, one in answers.items():
        changes = count_changes(lowest, one)
        lines, before = one.lines[0], lowest.lines[0]
        failures = weigh_changes(
            before.keys() - lines.keys(), lines.keys() - before.keys(), lowest, one
        )
        points.append(
            LoadPoint(
                load=load,
                outcome="lowest" if one is lowest else "holds",
                scored=len(lines),
                failed=one.planned - len(lines),
                value=None,
                interval=None,
                paired=len(lines.keys() & before.keys()),
                lost=changes.down,
                won=changes.up,
                p=changes.p,
                failed_more=failures.down,
                failed_less=failures.up,
                p_failures=failures.p,
            )
        )
    data = LoadData(
        loads=tuple(by_load),
        answers=answers,
        first=first,
        again=_answers(by_load[first] if again is None else again, passage),
    )
    names = [f"task {i}" for i in range(tasks)]
    return judge_tasks(dict.fromkeys(names, data), dict.fromkeys(names, points))


def _spoil(scores, count):
    """Return the scores with the first `count` right answers wrong."""
    right = [i for i, value in enumerate(scores) if value == 1.0][:count]
    return [0.0 if i in right else value for i, value in enumerate(scores)]


RIGHT = [1.0] * PROMPTS
BAD = _spoil(RIGHT, 30)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ((16, 64), "broken from 16 on"),
        ((64,), "broken from 64 on"),
        ((4,), "broken only at 4"),
        ((1,), "broken only at 1"),
        ((1, 4), "broken up to 4"),
        ((4, 64), "broken at 4 and 64"),
        ((), "nothing found"),
    ],
)
def test_the_broken_loads_are_named_also_if_the_lowest_is_one(broken, words):
    [task] = _judge({load: BAD if load in broken else RIGHT for load in LOADS})
    assert (task.words, task.broken) == (words, broken)
    assert find_exit_code([task]) == (FAIL if broken else PASS)


def test_changes_in_both_directions_accuse_no_load():
    """Of 60 changed answers as many became right as wrong: another batch size does that."""
    half = [1.0] * 170 + [0.0] * 30
    other = [0.0] * 30 + [1.0] * 170
    [task] = _judge({1: half, 4: half, 16: other, 64: other})
    assert [(p.lost, p.won) for p in task.points][2:] == [(30, 30), (30, 30)]
    assert (task.words, task.broken) == ("nothing found", ())


def test_the_level_is_that_of_all_loads_and_tasks_together():
    """Ten lost answers are proof at two loads of one task, and not at four loads of three."""
    bad = _spoil(RIGHT, 10)
    assert _judge({1: RIGHT, 64: bad})[0].broken == (64,)
    assert not any(task.broken for task in _judge({1: RIGHT, 4: RIGHT, 64: bad}, tasks=3))


def test_no_load_is_accused_if_the_endpoint_changed_over_time():
    """Load 1 came first, and its repeat is as bad as the loads after it."""
    [task] = _judge({1: RIGHT, 4: BAD, 16: BAD, 64: BAD}, again=BAD)
    assert (task.time.changed, task.broken) == (True, ())
    assert task.words.startswith("changed over time: at 1 in flight, 30 scores fell and 0 rose")
    assert "so that no load is accused (broken from 4 on)" in task.words
    assert find_exit_code([task]) == UNDECIDED


def test_a_possible_change_over_time_leaves_a_load_undecided():
    [task] = _judge({1: RIGHT, 4: BAD, 16: BAD, 64: BAD}, again=_spoil(RIGHT, 7))
    assert task.words.startswith("may have changed over time")
    assert (task.broken, find_exit_code([task])) == ((), UNDECIDED)
    [task] = _judge(dict.fromkeys(LOADS, RIGHT), again=_spoil(RIGHT, 7))
    assert (task.words, find_exit_code([task])) == ("nothing found", PASS)


def test_failures_are_named_as_failures_and_are_no_wrong_answers():
    missing = [None] * 40 + [1.0] * 160
    [task] = _judge({1: RIGHT, 4: RIGHT, 16: RIGHT, 64: missing})
    assert (task.broken, task.failing, task.words) == ((), (64,), "requests fail from 64 on")
    assert [(p.lost, p.failed) for p in task.points] == [(0, 0), (0, 0), (0, 0), (0, 40)]
    [task] = _judge({1: missing, 4: RIGHT, 16: RIGHT, 64: RIGHT})
    assert task.words == "requests fail only at 1"
    few = [None] * 9 + [1.0] * 191
    assert _judge({1: RIGHT, 4: RIGHT, 16: RIGHT, 64: few})[0].words == "nothing found"


def test_too_few_answers_are_inconclusive():
    [task] = _judge({1: RIGHT[:20], 4: RIGHT[:20]})
    assert find_exit_code([task]) == UNDECIDED


def test_a_load_that_is_neither_good_nor_bad_is_not_decided():
    base = [1.0] * 170 + [0.0] * 30

    def change(lost, won):
        return [
            0.0 if i in lost else 1.0 if 170 <= i < 170 + won else value
            for i, value in enumerate(base)
        ]

    [task] = _judge({1: base, 4: change(range(30), 8), 64: change(range(22, 42), 10)})
    assert task.words == "broken from 4 on; not decided at 64"
    [task] = _judge({1: RIGHT, 4: _spoil(RIGHT, 13), 64: _spoil(RIGHT, 8)})
    assert task.words == "broken from 4 on; likely at 64, not proved alone"


def _draw_shared(generator):
    """Return scores of a sound server with one numerics up to 4 and another one from 16 on."""
    low, high = (
        [float(generator.random() < 0.5) if i < 30 else 1.0 for i in range(PROMPTS)]
        for _ in range(2)
    )
    return {1: low, 4: low, 16: high, 64: high}


def _draw_own(generator):
    """Return scores of a sound server with another numerics at each load."""
    return {
        load: [float(generator.random() < 0.5) if i < 30 else 1.0 for i in range(PROMPTS)]
        for load in LOADS
    }


@pytest.mark.parametrize("draw", [_draw_shared, _draw_own])
def test_a_sound_server_is_rarely_accused_whichever_loads_share_their_numerics(
    draw,
):
    """The seed is fixed. Of 120 servers, Q alone would accuse some 6 of the first kind."""
    generator = random.Random(1)
    found = [_judge(draw(generator), tasks=2) for _ in range(120)]
    accused = sum(find_exit_code(tasks) != PASS for tasks in found)
    assert accused <= 3 * ALPHA * len(found) / 2
    by_q = sum(tasks[0].q_p is not None and tasks[0].q_p <= ALPHA for tasks in found)
    if draw is _draw_shared:
        assert by_q > 2 * ALPHA * len(found)
        point = replace(found[0][0].points[0], load=2)
        assert point.outcome == "lowest"


@pytest.mark.parametrize(("passage", "found"), [(1, (64,)), (10, ())])
def test_a_passage_that_is_misread_as_a_whole_is_one_change(passage, found):
    # 30 questions of three passages fall. As 30 changes they prove a fault; as three they do not.
    [task] = _judge({1: RIGHT, 64: BAD}, passage=passage)
    assert task.broken == found
    assert (task.points[1].lost, task.points[1].won) == (30, 0)
    assert task.points[1].p == pytest.approx(2.0 * 0.5 ** (30 / passage))


def test_requests_of_a_passage_that_fail_together_are_one_failure():
    failing = [None] * 30 + [1.0] * 170
    [alone] = _judge({1: RIGHT, 64: failing})
    [shared] = _judge({1: RIGHT, 64: failing}, passage=10)
    assert (alone.failing, shared.failing) == ((64,), ())


def test_many_passages_still_show_a_broken_load():
    # One question of every passage falls.
    spoilt = [0.0 if i % 10 == 0 else 1.0 for i in range(PROMPTS)]
    [task] = _judge({1: RIGHT, 64: spoilt}, passage=10)
    assert task.broken == (64,)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({16, 64}, "broken from 16 on"),
        ({64}, "broken from 64 on"),
        ({4}, "broken only at 4"),
        ({1}, "broken only at 1"),
        ({1, 4}, "broken up to 4"),
        ({4, 64}, "broken at 4 and 64"),
        ({1, 4, 16, 64}, "broken at all loads"),
        (set(), "nothing found"),
    ],
)
def test_the_pattern_of_the_loads_is_named(bad, words):
    assert name_loads(LOADS, bad) == words


def test_loads_without_a_proof_of_their_own_are_told_apart():
    assert name_loads(LOADS, {16, 64}, likely={64}) == (
        "broken from 16 on; likely at 64, not proved alone"
    )
    assert name_loads(LOADS, {16}, unclear={64}) == "broken from 16 on; not decided at 64"


def test_a_bisection_ends_at_neighbours_after_few_loads():
    for first in range(2, 257):
        low, high, asked = 1, 256, 0
        while (middle := halve(low, high)) is not None:
            asked += 1
            low, high = (low, middle) if middle >= first else (middle, high)
        assert high == first
        assert asked <= count_halvings(1, 256) <= 11
