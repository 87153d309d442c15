"""Test that exchanged answers are found, and healthy runs hardly ever accused."""

import random
import re
import tracemalloc
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from serve_eval.schema import Attempt, FailureKind, Limits, Outcome, Plan, Response, Spec, Usage
from serve_eval.stats.together import compare_together
from serve_eval.storage.scores import ScoreRecord
from serve_eval.storage.sessions import SessionRecord
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.extraction import states
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    MIXED,
    PLACE,
    AskedSample,
    Finding,
    list_leading,
    order_findings,
)
from serve_eval.workflows.diagnose.foreign import foreign_answers
from serve_eval.workflows.diagnose.run_rules import (
    OF_A_RUN,
    OF_A_TASK,
    TESTS,
    findings,
    sum_comparison_levels,
    sum_levels,
)
from serve_eval.workflows.diagnose.unanswered import _time_limit
from tests.scripted_server import ScriptedServer, answer
from tests.workflows.diagnose.foreign_runs import Content, draw_content, draw_run, to_run
from tests.workflows.diagnose.server import Server, answers_to, list_lines, plan_for, run, sound
from tests.workflows.invariants.faulty_servers import Exchange


def found_in(evidence):
    return list(foreign_answers(evidence))


@pytest.mark.parametrize("in_flight", [8, 64])
def test_exchanged_answers_are_found_with_their_pairs(in_flight):
    n = 240 if in_flight == 8 else 800
    [found] = found_in(draw_run(random.Random(4), n, in_flight=in_flight, share=0.1))
    assert found.p <= ALPHA
    assert found.told.count(" has the answer of ") == 3
    assert found.change == ("serve-eval check invariants URL --canaries",)
    assert len(found.samples) == 5
    assert found.task == "t"
    assert 0 < found.explains < found.count


def test_healthy_runs_are_hardly_ever_accused():
    """The level is .001: of 80 runs, three or more are accused with a chance below .0001.

    Targets are short numbers that many samples share, and hard samples are both slow and wrong.
    """
    rng = random.Random("no exchange")
    accused = sum(
        bool(found_in(draw_run(rng, rng.choice((60, 150, 300)), in_flight=8, share=0.0)))
        for _ in range(80)
    )
    assert accused < 3


def test_the_p_value_is_that_of_a_permutation():
    """Pairs that are together by chance get small p-values no more often than they say."""
    rng = random.Random(6)
    small = 0
    for seed in range(300):
        spans = [(t := rng.uniform(0.0, 50.0), t + rng.uniform(1.0, 3.0)) for _ in range(100)]
        pairs = [tuple(rng.sample(range(100), 2)) for _ in range(60)]
        found = compare_together(
            spans, ["t"] * 100, pairs, [1.0] * 60, alpha=0.05, seed=seed, draws=199
        )
        small += found.p <= 0.05
    assert small <= 27  # 15 are expected, and three standard deviations are 11


def test_samples_that_take_long_are_together_more_often_and_prove_nothing():
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


def test_contents_stay_within_their_task_and_repeat():
    """Ask one repeat after the other: pairs within a repeat are together more often."""
    rng = random.Random(9)
    spans = [(at := rng.uniform(0.0, 10.0) + 100.0 * (i % 2), at + 3.0) for i in range(200)]
    pairs = [(i, (i + 2 * rng.randrange(1, 90)) % 200) for i in range(100)]
    for strata, small in (([f"{i % 2}" for i in range(200)], False), (["t"] * 200, True)):
        found = compare_together(
            spans, strata, pairs, [1.0] * len(pairs), alpha=0.05, seed=1, draws=199
        )
        assert (found.p <= 0.05) is small


def test_only_runs_in_random_order_are_tested():
    guilty = draw_run(random.Random(4), 300, in_flight=8, share=0.3)
    assert found_in(guilty)
    [session] = guilty.sessions
    assert not found_in(
        replace(guilty, sessions=[msgspec.structs.replace(session, limits=Limits(order="prefix"))])
    )


def _halves():
    """Return the times of 200 samples of which two at a time are in flight together."""
    rng = random.Random(8)
    return [(float(i // 2), i // 2 + 0.9) for i in range(200)], rng


def test_the_same_matches_at_other_times_prove_nothing():
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


def test_copied_sentences_are_found_and_garbage_is_not():
    """One request of a pair also gets the text of the other one, with two numbers."""
    spans, rng = _halves()
    contents = [draw_content(rng, 1.0) for _ in range(200)]
    said = ["?" if i % 2 and i < 40 else one.answer for i, one in enumerate(contents)]
    base = to_run(contents, said, spans)

    def write(text):
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
def test_targets_that_many_share_do_not_count(targets, found):
    spans, _ = _halves()
    contents = [
        Content(target=f"{i % targets}", answer=f"{i % targets}", length_s=1.0) for i in range(200)
    ]
    said = [one.answer for one in contents]
    for i in range(0, 60, 2):
        said[i], said[i + 1] = said[i + 1], said[i]
    assert bool(found_in(to_run(contents, said, spans))) is found


def test_holdout_samples_are_only_counted():
    guilty = draw_run(random.Random(4), 300, in_flight=8, share=0.3)
    [task] = guilty.tasks
    hidden = replace(task, asked=tuple(replace(one, shown=False) for one in task.asked))
    [found] = found_in(replace(guilty, tasks=(hidden,)))
    assert found.samples == ()
    assert " has the answer of " not in found.told


def swapping(seed, share, answers):
    """Return a server that exchanges a share of the answers among those in flight together."""
    exchange = Exchange(share=share, seed=seed, together=4, pause_s=0.02)

    async def reply(request):
        target = answers.get(request.prompt)
        return answer("4" if target is None else await exchange.pass_on(target))

    return ScriptedServer(reply, paths=["/v1/completions", "/v1/chat/completions"])


@pytest.mark.parametrize(("share", "found"), [(0.0, False), (0.2, True)])
def test_a_real_run_is_diagnosed(tmp_path, share, found):
    plan = plan_for(tmp_path, num_samples=200)
    answers = answers_to(plan.tasks[0])
    server = Server(act=sound, answers=answers)
    server.scripted = swapping(2, share, answers)
    run(replace(plan, limits=replace(plan.limits, concurrency=4)), server, tmp_path / "out")
    told = " ".join(list_lines(tmp_path / "out"))
    assert ("foreign_answers: " in told) is found
    assert ("/v1 --canaries" in told) is found


def test_pairs_of_targets_that_many_share_are_not_listed():
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


@pytest.mark.parametrize(
    ("text", "target", "told"),
    [
        ("All in all, the answer is 42.", "42", True),
        ("so \\boxed{42} it is, as 43 would be odd", "42", True),
        ("12 + 30 = 42", "42", True),
        ("That makes $1,042.", "1042", True),
        ("42 is what I had first, but it must be 43", "42", False),
        ("12 + 30 = 142", "42", False),
        ("It is 42.5", "42", False),
        ("Answer: (B)", "B", True),
        ("The answer is **B**.", "B", True),
        ("I would say B", "B", False),
        ("A bee", "A", False),
        ("The capital is Paris.", "paris", True),
        ("", "42", False),
        ("anything", "", False),
        ("x" * 60, "x" * 60, False),
    ],
)
def test_what_a_text_states(text, target, told):
    assert states(text, target) is told


def healthy(rng, n):
    """Return a run whose wrong answers are independent of finish reason, time and load."""
    asked = []
    prints = {
        "task": "t",
        "max_tokens": "128",
        "stop": '["\\n\\n"]',
        "apply_chat_template": "false",
    }
    accuracy, cut, stopped, late = (
        rng.uniform(*span) for span in ((0.4, 0.95), (0.0, 0.6), (0.0, 0.6), (0.0, 0.3))
    )
    ends = [0.0] * 16
    for i in range(n):
        right = rng.random() < accuracy
        worker = min(range(16), key=ends.__getitem__)
        start = ends[worker] + (rng.expovariate(5.0) if rng.random() < late else 0.001)
        ends[worker] = start + rng.expovariate(4.0)
        length = rng.random() < cut
        response = Response(
            text=f"so it is {17 if right else 18}",
            finish_reason="length" if length else "stop",
            stop_reason="\n\n" if not length and rng.random() < stopped else None,
            usage=Usage(prompt_tokens=9, completion_tokens=128 if length else 40),
            attempts=(
                Attempt(
                    start_s=1e9 + start,
                    end_s=1e9 + ends[worker],
                    failure=None,
                    status=200,
                    request_id="r",
                ),
            ),
        )
        outcome = Outcome.CORRECT if right else Outcome.WRONG
        parts = {
            "strict-match": float(right),
            "flexible-extract": float(right or rng.random() < 0.02),
        }
        line = ScoreRecord(
            id=str(i), outcome=outcome, value=float(right), target="17", answer=None, parts=parts
        )
        asked.append(
            AskedSample(
                id=str(i),
                response=response,
                failure=None,
                attempts=response.attempts,
                line=line,
                bad=not right,
            )
        )
    return Evidence(
        folder=Path("run"),
        plan=Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),)),
        sessions=[SessionRecord(limits=Limits(order="random", concurrency=16))],
        report=None,
        tasks=(TaskEvidence(name="t", fingerprint=prints, asked=tuple(asked), report=None),),
        logs=(),
    )


def test_healthy_runs_are_hardly_ever_accused_levels():
    """Three rules compare shares at .001 each, so on average less than one of 250 runs is accused.

    The chance of eight or more is below one in a million.
    """
    rng = random.Random("healthy")
    runs = (healthy(rng, rng.choice((60, 150, 400))) for _ in range(250))
    accused = [
        found for run in runs if (found := {one.rule for one in findings(run)} - {"unfinished"})
    ]
    assert len(accused) < 8, accused


def test_repeats_of_a_prompt_are_no_further_witnesses():
    """A server that repeats its answers repeats each coincidence of a prompt eight times."""
    rng = random.Random(2)
    accused = 0
    for _ in range(100):
        run = healthy(rng, 60)
        [task] = run.tasks
        asked = tuple(
            replace(one, id=one.id if n == 1 else f"{one.id}#{n}")
            for one in task.asked
            for n in range(1, 9)
        )
        found = findings(replace(run, tasks=(replace(task, asked=asked, repeats=8),)))
        accused += any(one.rule != "unfinished" for one in found)
    assert accused <= 2


@pytest.mark.parametrize(
    ("times", "limit"),
    [
        ((2.0, 2.01, 2.02, 2.03), 2.015),
        ((2.0, 2.0, 2.0, 2.9), 2.0),  # a busy machine
        ((2.0, 2.0, 2.9, 2.9), None),
        ((1.5, 2.0, 2.0, 2.0), None),  # a limit never ends early
        ((0.9, 0.9, 0.9), None),
        ((2.0, 2.0), None),
    ],
)
def test_errors_after_the_same_time_show_a_time_limit(times, limit):
    asked = [
        AskedSample(
            id=str(i),
            response=None,
            failure=None,
            attempts=(
                Attempt(
                    start_s=1e9,
                    end_s=1e9 + time,
                    failure=FailureKind.DISCONNECTED,
                    status=None,
                    request_id="r",
                ),
            ),
        )
        for i, time in enumerate(times)
    ]
    assert _time_limit(asked) == (None if limit is None else pytest.approx(limit))


def _find(rule, explains):
    told, lost = f"{rule} did it", 0 if explains is None else 103
    return Finding(rule=rule, told=told, change=(), count=4, of=500, explains=explains, lost=lost)


def test_a_finding_that_explains_nothing_comes_last_and_leads_nowhere():
    found = [
        _find("repaired", 0),
        _find("even_loss", None),
        _find("truncated", 9),
        _find(PLACE, None),
        _find(MIXED, None),
    ]
    rules = [one.rule for one in order_findings(found)]
    assert rules == [MIXED, PLACE, "truncated", "even_loss", "repaired"]
    assert [one.rule for one in list_leading(found)] == rules[:-1]
    assert list_leading(found[:1]) == []


TEXT = (Path(__file__).parents[3] / "docs" / "diagnose.md").read_text()


BUDGET = 0.01


def test_all_rules_together_keep_to_one_budget():
    said = " ".join(TEXT.split())
    assert sum_levels() == pytest.approx(BUDGET)
    assert sum_comparison_levels() == pytest.approx(BUDGET)
    assert f"with a probability of .{round(1000 * BUDGET):03d} at most" in said
    equal = [rule for rule, level in {**OF_A_TASK, **OF_A_RUN}.items() if level == ALPHA]
    listed = re.search(r"at most: (.*?) have \.001 each", said)
    assert set(re.findall(r"`(\w+)`", listed[1])) == set(equal)
    repeated = sum(OF_A_TASK[rule] for rule in ("worker", "slow_worker", "drift"))
    assert f"`drift`) have .00{round(1000 * repeated)}" in said
    for rule in ("slice", "unlike"):
        level = f".00{round(10000 * OF_A_RUN[rule]):02d}"
        assert re.search(rf"`{rule}`(?: has)? {re.escape(level)}\b", said)


def test_the_tasks_of_a_run_and_the_sides_of_a_comparison_share_the_levels():
    """Each further answer of as many in one direction halves the one-sided p."""
    for share, apart in ((1.0, 11), (0.5, 12), (0.25, 13)):
        for count, said in ((apart - 1, False), (apart, True)):
            run = healthy_with_parts(count)
            [task] = run.tasks
            shared = replace(run, share=share, tasks=(replace(task, share=share),))
            assert any(one.rule == "extractors" for one in findings(shared)) is said


def test_every_rule_of_the_table_that_tests_has_its_level_in_the_sum():
    table = TEXT.split("## The rules")[1].split("\n\n")[2]
    assert table.startswith("| cause in | rules |")
    assert set(re.findall(r"\*\*(\w+)\*\*", table)) == TESTS


@pytest.mark.parametrize(("apart", "said"), [(10, False), (11, True)])
def test_extractors_are_tested_in_both_directions_at_half_the_level(apart, said):
    """Ten of ten in one direction have a one-sided p of .00098; eleven have .00049."""
    run = healthy_with_parts(apart)
    assert any(one.rule == "extractors" for one in findings(run)) is said


def healthy_with_parts(apart):
    """Return a run of 60 answers; `apart` of them are right by the flexible extractor only.

    Both extractors find the others right.
    """
    run = healthy(random.Random(3), 60)
    [task] = run.tasks
    asked = tuple(
        replace(
            one,
            bad=i < apart,
            line=ScoreRecord(
                id=one.id,
                outcome=Outcome.WRONG if i < apart else Outcome.CORRECT,
                value=float(i >= apart),
                target="17",
                parts={"strict-match": float(i >= apart), "flexible-extract": 1.0},
            ),
            response=(
                None
                if one.response is None
                else msgspec.structs.replace(one.response, finish_reason="stop")
            ),
        )
        for i, one in enumerate(task.asked)
    )
    return replace(run, tasks=(replace(task, asked=asked),))
