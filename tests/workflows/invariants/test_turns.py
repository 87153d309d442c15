"""Conversations with and without what a prefix cache holds, through routers of the stand-in."""

import asyncio
import json
from dataclasses import dataclass, replace

import pytest

from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.plan import resolve
from serve_eval.schema import Outcome, TurnChanges
from serve_eval.storage.scores import ScoreRecord
from serve_eval.verdicts.exit_code import FAIL, PASS
from serve_eval.workflows.invariants.by_turn import cut_to_first_change, join_p, name_turn
from serve_eval.workflows.invariants.check import check
from serve_eval.workflows.invariants.document import make_document
from tests.scripted_server import external
from tests.standin.deployments import deployed

TALKS = 10
BROKEN = {"prefix_cache": True, "wrong_turns": True}
SOUND = {"prefix_cache": True}


def _cases(path, talks=TALKS):
    """Write conversations of three turns, whose answers are numbers of one token."""
    cases = [
        {
            "case": f"n{i}",
            "input": {
                "turns": [
                    {
                        "say": f"Name the number {100 * t + i} of the list {i}.",
                        "expect": 100 * t + i,
                    }
                    for t in (1, 2, 3)
                ]
            },
        }
        for i in range(talks)
    ]
    path.write_text(json.dumps({"talks": {"scorer": "numeric", "cases": cases}}))


def _check(tmp_path, faults, router, *, second=None, talks=TALKS):
    _cases(tmp_path / "cases.yaml", talks)
    plan = resolve.resolve(
        {},
        {
            "cases": [str(tmp_path / "cases.yaml")],
            "base_url": "http://127.0.0.1:1/v1",
            "model": "M",
            "no_reference": True,
            "concurrency": 4,
        },
        {},
    ).plan
    _write_answers(tmp_path / "answers.jsonl", prepare(plan), lambda task, sample: 1.0)

    async def main():
        async with deployed(
            2,
            1,
            answers=tmp_path / "answers.jsonl",
            faults={"context_0": faults, "context_1": second or faults},
            router=router,
            greeted=False,
            perf_metrics=False,
        ) as found:
            at = replace(plan, launcher=external(found.url))
            return await check(at, tmp_path / "out", chunk_tokens=(), environ={})

    return asyncio.run(main())


def test_a_fault_of_the_second_turn_behind_a_conversation_router_is_found_and_named(tmp_path):
    found = _check(tmp_path, BROKEN, "conversation")
    cold = next(one for one in found.results if one.arm == "cold")
    assert (found.exit_code, cold.broken) == (FAIL, True)
    assert [(one.turn, one.compared, one.changed, one.own) for one in cold.turns] == [
        (1, TALKS, 0, 0),
        (2, TALKS, TALKS, 0),
    ]
    assert cold.turns[1].cached == 0 < cold.turns[1].base_cached
    [told] = [one for one in make_document(found, tmp_path).conclusions if one.name == "cold"]
    assert f"they begin with turn 2: {TALKS} of {TALKS} answers" in told.cause


def test_one_damaged_worker_of_two_is_found_although_its_answers_come_and_go(tmp_path):
    found = _check(tmp_path, BROKEN, "round_robin", second=SOUND, talks=20)
    cold = next(one for one in found.results if one.arm == "cold")
    second = cold.turns[1]
    assert second.own >= second.changed  # as if the endpoint only were nondeterministic
    assert (found.exit_code, cold.broken, second.rose) == (FAIL, True, 0)
    [told] = [one for one in make_document(found, tmp_path).conclusions if one.name == "cold"]
    assert f"they begin with turn 2: {second.fell} of 20 answers are worse" in told.cause


@pytest.mark.parametrize("router", ["conversation", "round_robin"])
def test_sound_conversations_stay_quiet_through_either_router(tmp_path, router):
    found = _check(tmp_path, SOUND, router)
    cold = next(one for one in found.results if one.arm == "cold")
    assert (found.exit_code, cold.broken, cold.not_tested) == (PASS, False, None)
    assert [(one.turn, one.changed, one.own) for one in cold.turns] == [
        (turn, 0, 0) for turn in (1, 2, 3)
    ]
    share = [one.base_cached / one.prompt_tokens for one in cold.turns]
    assert min(share) > 0.4
    assert found.skipped["rendered"].startswith("the server renders conversations")


def _turn(turn, changed, own=0, fell=0, rose=0):
    return TurnChanges(
        fell=fell,
        rose=rose,
        turn=turn,
        compared=20,
        changed=changed,
        own=own,
        prompt_tokens=1,
        cached=None,
        base_cached=None,
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ([(0, 0), (9, 0), (1, 0)], "turn 2: 9 of 20 answers"),
        ([(5, 5), (5, 5)], ""),
        ([(4, 0), (4, 0)], ""),
        ([(9, 0)], "turn 1: 9 of 20 answers"),
        ([(9, 9), (3, 1), (0, 0)], "turn 2: 3 of 20 answers"),
        ([(0, 0), (9, 9, 8, 1), (3, 3, 2, 0)], "turn 2: 8 of 20 answers are worse"),
        ([(9, 9, 4, 4)], ""),
    ],
)
def test_a_turn_is_named_if_most_of_the_excess_begins_there(changes, named):
    assert name_turn([_turn(i, *one) for i, one in enumerate(changes, 1)]) == named


@pytest.mark.parametrize(
    ("changed", "turns", "p"),
    [
        (0.004, [(0, 0)], 0.008),
        (1.0, [(0, 0), (9, 0)], 2 * 0.5**10),
        (1.0, [(4, 0), (5, 0)], 2 * 0.5**10),
        (1.0, [(0, 9)], 1.0),
        (0.7, [(3, 3)], 1.0),
    ],
)
def test_a_cold_pass_fails_by_changes_or_by_scores_that_fall_with_cached_data(changed, turns, p):
    told = [_turn(i, 9, 9, *one) for i, one in enumerate(turns, 1)]
    assert join_p(changed, told) == pytest.approx(p)


@dataclass(frozen=True)
class Lines:
    """The part of the answers to a task that is cut."""

    lines: tuple


def _lines(*talks):
    """Return answers in which each conversation has these texts; "5" is right."""
    return Lines(
        (
            {
                f"n{i}": ScoreRecord(
                    id=f"n{i}",
                    outcome=Outcome.PARTIAL,
                    value=0.5,
                    answer=" | ".join(said),
                    target="",
                    truncated=False,
                    parts={f"turn {k}": float(one == "5") for k, one in enumerate(said, 1)},
                )
                for i, said in enumerate(talks)
            },
        )
    )


def test_a_conversation_is_judged_by_the_first_turn_that_differs():
    base = _lines("55", "55", "55", "55")
    again = _lines("54", "54", "55", "55")
    arm = _lines("45", "54", "53", "55")
    found = [one.lines[-1] for one in cut_to_first_change([base, again, arm])]
    assert [[one[f"n{i}"].answer for one in found] for i in range(4)] == [
        ["5", "5", "4"],  # the arm differs before the repeat does
        ["5", "4", "4"],
        ["5", "5", "3"],
        ["5 | 5", "5 | 5", "5 | 5"],
    ]
    assert [one["n2"].value for one in found] == [1.0, 1.0, 0.0]
