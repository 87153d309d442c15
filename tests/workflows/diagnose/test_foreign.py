"""Answers that belong to requests in flight together are found, and chance is not accused."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.schema import Limits
from serve_eval.stats.together import compare_together
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import ALPHA, Finding
from serve_eval.workflows.diagnose.foreign import foreign_answers
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer
from tests.workflows.diagnose.foreign_runs import Content, draw_content, draw_run, to_run
from tests.workflows.diagnose.server import Server, answers_to, list_lines, plan_for, run, sound
from tests.workflows.invariants.faulty_servers import Exchange


def found_in(evidence: Evidence) -> list[Finding]:
    return list(foreign_answers(evidence))


@pytest.mark.parametrize("in_flight", [8, 64])
def test_exchanged_answers_are_found_with_their_pairs(in_flight: int) -> None:
    n = 240 if in_flight == 8 else 800
    [found] = found_in(draw_run(random.Random(4), n, in_flight=in_flight, share=0.1))
    assert found.p is not None
    assert found.p <= ALPHA
    assert found.told.count(" has the answer of ") == 3
    assert found.change == ("serve-eval check invariants URL --canaries",)
    assert len(found.samples) == 5
    assert found.task == "t"
    assert found.explains is not None
    assert 0 < found.explains < found.count


def test_healthy_runs_are_hardly_ever_accused() -> None:
    """The level is .001: of 80 runs, three or more are accused with a chance below .0001.

    Targets are short numbers that many samples share, and hard samples are both slow and wrong.
    """
    rng = random.Random("no exchange")
    accused = sum(
        bool(found_in(draw_run(rng, rng.choice((60, 150, 300)), in_flight=8, share=0.0)))
        for _ in range(80)
    )
    assert accused < 3


def test_the_p_value_is_that_of_a_permutation() -> None:
    """Pairs that are together by chance get small p-values no more often than they say."""
    rng = random.Random(6)
    small = 0
    for seed in range(300):
        spans = [(t := rng.uniform(0.0, 50.0), t + rng.uniform(1.0, 3.0)) for _ in range(100)]
        pairs = [tuple(rng.sample(range(100), 2)) for _ in range(60)]
        found = compare_together(
            spans,
            ["t"] * 100,
            pairs,
            [1.0] * 60,
            alpha=0.05,
            seed=seed,
            draws=199,  # type: ignore[arg-type]
        )
        small += found.p <= 0.05
    assert small <= 27  # 15 are expected, and three standard deviations are 11


def test_samples_that_take_long_are_together_more_often_and_prove_nothing() -> None:
    """Pair the slow fifth of the samples, which overlap far more than others do."""
    rng = random.Random(7)
    starts = [rng.uniform(0.0, 100.0) for _ in range(200)]
    spans = [(at, at + (20.0 if i < 40 else 0.2)) for i, at in enumerate(starts)]
    pairs = [(i, rng.randrange(40)) for i in range(40)]
    pairs = [(i, j) for i, j in pairs if i != j]
    found = compare_together(
        spans, ["t"] * 200, pairs, [1.0] * len(pairs), alpha=0.05, seed=1, draws=199
    )
    assert found.p > 0.05


def test_contents_stay_within_their_task_and_repeat() -> None:
    """Ask one repeat after the other: pairs within a repeat are together more often."""
    rng = random.Random(9)
    spans = [(at := rng.uniform(0.0, 10.0) + 100.0 * (i % 2), at + 3.0) for i in range(200)]
    pairs = [(i, (i + 2 * rng.randrange(1, 90)) % 200) for i in range(100)]
    for strata, small in (([f"{i % 2}" for i in range(200)], False), (["t"] * 200, True)):
        found = compare_together(
            spans, strata, pairs, [1.0] * len(pairs), alpha=0.05, seed=1, draws=199
        )
        assert (found.p <= 0.05) is small


def test_only_runs_in_random_order_are_tested() -> None:
    guilty = draw_run(random.Random(4), 300, in_flight=8, share=0.3)
    assert found_in(guilty)
    [session] = guilty.sessions
    assert not found_in(
        replace(guilty, sessions=[msgspec.structs.replace(session, limits=Limits(order="prefix"))])
    )


def _halves() -> tuple[list[tuple[float, float]], random.Random]:
    """Return the times of 200 samples of which two at a time are in flight together."""
    rng = random.Random(8)
    return [(float(i // 2), i // 2 + 0.9) for i in range(200)], rng


def test_the_same_matches_at_other_times_prove_nothing() -> None:
    """Exchange answers between requests that were never in flight together."""
    spans, rng = _halves()
    contents = [draw_content(rng, 1.0) for _ in range(200)]
    near = [one.answer for one in contents]
    far = list(near)
    for i in range(0, 40, 2):
        near[i], near[i + 1] = near[i + 1], near[i]
        far[i], far[i + 100] = far[i + 100], far[i]
    assert found_in(to_run(contents, near, spans))
    assert not found_in(to_run(contents, far, spans))


def test_copied_sentences_are_found_and_garbage_is_not() -> None:
    """One request of a pair also gets the text of the other one, with two numbers."""
    spans, rng = _halves()
    contents = [draw_content(rng, 1.0) for _ in range(200)]
    said = ["?" if i % 2 and i < 40 else one.answer for i, one in enumerate(contents)]
    base = to_run(contents, said, spans)

    def write(text: dict[int, str]) -> Evidence:
        [task] = base.tasks
        asked = tuple(
            one
            if i not in text or one.response is None
            else replace(one, response=msgspec.structs.replace(one.response, text=text[i]))
            for i, one in enumerate(task.asked)
        )
        return replace(base, tasks=(replace(task, asked=asked),))

    copied = {
        i: f"First there were {i // 2 + 7} apples, and then {i // 2 + 90} pears were added."
        for i in range(40)
    }
    [found] = found_in(write(copied))
    assert found.count == 20
    garbage = "one 1 two 2 three 3 four 4 five 5 six 6 seven 7"
    assert not found_in(write(dict.fromkeys(range(40), garbage)))
    wordy = {i: "The pears of this pair are quite " + "very " * (i // 2 + 2) for i in range(40)}
    assert not found_in(write(wordy))


@pytest.mark.parametrize(("targets", "found"), [(4, False), (60, True)])
def test_targets_that_many_share_do_not_count(targets: int, found: bool) -> None:
    spans, _ = _halves()
    contents = [
        Content(target=f"{i % targets}", answer=f"{i % targets}", length_s=1.0) for i in range(200)
    ]
    said = [one.answer for one in contents]
    for i in range(0, 60, 2):
        said[i], said[i + 1] = said[i + 1], said[i]
    assert bool(found_in(to_run(contents, said, spans))) is found


def test_holdout_samples_are_only_counted() -> None:
    guilty = draw_run(random.Random(4), 300, in_flight=8, share=0.3)
    [task] = guilty.tasks
    hidden = replace(task, asked=tuple(replace(one, shown=False) for one in task.asked))
    [found] = found_in(replace(guilty, tasks=(hidden,)))
    assert found.samples == ()
    assert " has the answer of " not in found.told


def swapping(seed: int, share: float, answers: dict[str, str]) -> ScriptedServer:
    """Return a server that exchanges a share of the answers among those in flight together."""
    exchange = Exchange(share=share, seed=seed, together=4, pause_s=0.02)

    async def reply(request: HttpRequest) -> Reply:
        target = answers.get(request.prompt)
        return answer("4" if target is None else await exchange.pass_on(target))

    return ScriptedServer(reply, paths=["/v1/completions", "/v1/chat/completions"])


@pytest.mark.parametrize(("share", "found"), [(0.0, False), (0.2, True)])
def test_a_real_run_is_diagnosed(tmp_path: Path, share: float, found: bool) -> None:
    plan = plan_for(tmp_path, num_samples=200)
    answers = answers_to(plan.tasks[0])
    server = Server(act=sound, answers=answers)
    server.scripted = swapping(2, share, answers)
    run(replace(plan, limits=replace(plan.limits, concurrency=4)), server, tmp_path / "out")
    told = " ".join(list_lines(tmp_path / "out"))
    assert ("foreign_answers: " in told) is found
    assert ("/v1 --canaries" in told) is found


def test_pairs_of_targets_that_many_share_are_not_listed() -> None:
    """Ten letters of 5,000 samples have 500 owners and as many claims each: 2.5 million pairs."""
    n = 5_000
    contents = [Content(target="ABCDEFGHIJ"[i % 10], answer="", length_s=1.0) for i in range(n)]
    said = ["ABCDEFGHIJ"[(i + 1) % 10] for i in range(n)]
    evidence = to_run(contents, said, [(float(i), i + 8.0) for i in range(n)])
    tracemalloc.start()
    try:
        assert found_in(evidence) == []
        assert tracemalloc.get_traced_memory()[1] < 10e6
    finally:
        tracemalloc.stop()
