"""Test that slow workers are named, and that load or prompts are no reason to.

A worker is slow if its answers take long compared with those of the others. Equal workers are not
accused.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scipy.stats import binom

from serve_eval.evidence.attribution.latency import ALPHA, Timed, describe_slow, rank_asked
from serve_eval.evidence.attribution.run_latency import in_run
from serve_eval.report.attribution import sentences
from serve_eval.schema import Limits
from tests.workflows.diagnose.server import Act, Asked, Said, Server, answers_to, plan_for, run

CONTEXTS, GENERATIONS = ("c0", "c1"), ("g0", "g1", "g2", "g3")


def each(slow: dict[str, float], prompts: int = 40, tokens: dict[str, int] = {}) -> list[Timed]:  # noqa: B006
    """Return the answers of every worker to every prompt.

    Prompt k takes 1 + k / 10 s, times the factor of the worker.
    """

    def one(context: str | None, generation: str | None, k: int) -> Timed:
        name = context or generation or ""
        return Timed(
            context, generation, f"{k}", (1 + k / 10) * slow.get(name, 1.0), tokens.get(name, 50)
        )

    contexts = [one(c, None, k) for k in range(prompts) for c in CONTEXTS]
    return contexts + [one(None, g, k) for k in range(prompts) for g in GENERATIONS]


def pairs(slow: dict[str, float], prompts: int = 40) -> list[Timed]:
    """Return the answers of every pair; `slow` holds factors of workers and of pairs."""
    return [
        Timed(c, g, f"{k}", (slow.get(c, 1.0) + slow.get(g, 1.0)) * slow.get(f"{c} + {g}", 1.0), 50)
        for k in range(prompts)
        for c in CONTEXTS
        for g in GENERATIONS
    ]


def slow(alone: list[Timed], joint: list[Timed]) -> tuple[list[str], list[str]]:
    first, second = (
        [f"{row.role} {row.worker}" for row in rows if row.slow]
        for rows in rank_asked(alone, joint)
    )
    return first, second


@pytest.mark.parametrize(
    ("alone", "joint", "named"),
    [
        ({}, {}, ([], [])),
        ({"g2": 2.1}, {}, (["generation g2"], [])),
        ({"g2": 2.0}, {}, ([], [])),
        ({"c1": 10.0}, {}, (["context c1"], [])),
        (dict.fromkeys(GENERATIONS, 2.1), {}, (["generation "], [])),
        (dict.fromkeys(CONTEXTS, 5.0), {}, (["context "], [])),
        (
            {"g0": 9.0, "g1": 9.0, "g2": 9.0},
            {},
            ([], []),
        ),  # most are slow: the fourth one differs
        ({}, {"g2": 9.0}, ([], ["generation g2"])),
        ({}, {"c1 + g2": 2.1}, ([], ["pair c1 + g2"])),
        (
            {},
            {"c1": 50.0, "g2": 50.0},
            ([], ["context c1", "generation g2"]),
        ),  # they explain their pair
    ],
)
def test_who_is_slow_among_those_who_were_asked_the_same(
    alone: dict[str, float], joint: dict[str, float], named: tuple[list[str], list[str]]
) -> None:
    assert slow(each(alone), pairs(joint)) == named


def test_a_slow_answer_now_and_then_is_not_told() -> None:
    timed = [
        one._replace(seconds=99.0) if one.generation == "g1" and int(one.prompt) < 20 else one
        for one in each({})
    ]
    assert slow(timed, []) == ([], [])
    assert slow([one for one in each({"g1": 9.0}) if int(one.prompt) < 6], []) == (
        [],
        [],
    )  # too few to prove anything


def test_longer_answers_may_take_longer() -> None:
    """Answers of the other servers may break off or be empty."""
    others = dict.fromkeys(("g0", "g2", "g3"), 0)
    assert slow(each({"g1": 5.0}, tokens={"g1": 80}), []) == ([], [])
    assert slow(each({"g1": 5.0}, tokens=others), []) == ([], [])
    assert slow(each({"g1": 5.0}, tokens={"g1": 60}), []) == (["generation g1"], [])


def test_nothing_to_compare_with() -> None:
    assert rank_asked([], []) == ((), ())
    assert in_run([]) == ()
    assert in_run([Timed("c0", "g0", "1", 1.0, 5)] * 50) == ()


def run_latency(
    slow: dict[str, float], answers: int, *, in_turns: bool, spread: float = 0.3, seed: int = 1
) -> list[Timed]:
    """Send every prompt to one pair; the times have heavy tails."""
    rng = random.Random(seed)
    found = []
    for k in range(answers):
        c = CONTEXTS[k % 2] if in_turns else rng.choice(CONTEXTS)
        g = GENERATIONS[k % 4] if in_turns else rng.choice(GENERATIONS)
        time = rng.lognormvariate(0.0, spread) * max(slow.get(c, 1.0), slow.get(g, 1.0))
        found.append(Timed(c, g, f"{k}", time, 50))
    return found


@pytest.mark.parametrize("in_turns", [True, False])
@pytest.mark.parametrize("name", ["c1", "g2"])
def test_a_slow_worker_of_a_run_is_named_and_not_its_partners(name: str, in_turns: bool) -> None:
    [row] = [row for row in in_run(run_latency({name: 6.0}, 200, in_turns=in_turns)) if row.slow]
    assert row.worker == name
    assert row.taken_s > 4 * row.others_s


def test_a_few_answers_of_a_run_name_nobody() -> None:
    assert not any(row.slow for row in in_run(run_latency({"g2": 50.0}, 24, in_turns=True)))


@pytest.mark.parametrize("spread", [0.5, 2.0])
def test_of_a_healthy_run_nobody_is_called_slow_more_often_than_alpha_says(spread: float) -> None:
    found = [
        in_run(run_latency({}, 100, in_turns=False, spread=spread, seed=seed))
        for seed in range(300)
    ]
    assert sum(any(row.slow for row in rows) for rows in found) <= binom.ppf(0.999, 300, ALPHA)


def test_it_is_said_in_a_sentence() -> None:
    alone, _ = rank_asked(each({"g2": 4.0}), [])
    [row] = [row for row in alone if row.slow]
    said = (
        "generation server g2 takes 11.8 s per answer, the other generation servers 2.95 s"
        " (medians); more than 2"
    )
    assert describe_slow(row).startswith(f"slow_worker: {said} times as long for 40 of 40 (p = ")
    [leg] = [row for row in rank_asked(each(dict.fromkeys(GENERATIONS, 4.0)), [])[0] if row.slow]
    assert describe_slow(leg).startswith(
        "slow_leg: the generation servers take 11.8 s per answer, the context servers 2.95 s"
    )
    [pair] = [row for row in rank_asked([], pairs({"c1 + g2": 5.0}))[1] if row.slow]
    assert describe_slow(pair, "answer of a pair").startswith(
        "slow_pair: context server c1 with generation server g2 takes 10 s per answer of a pair,"
        " either of them "
    )


SHORT_S = 0.02


class _Queues:
    """Four equal servers, each of which answers one request after the other. g0 gets most."""

    def __init__(self) -> None:
        self.free_s: dict[str, float] = {}

    def answer(self, asked: Asked) -> Said:
        draw = asked.chance("server")
        server = "g0" if draw < 0.7 else f"g{1 + int((draw - 0.7) / 0.1001)}"
        now_s = time.monotonic()
        self.free_s[server] = max(now_s, self.free_s.get(server, 0.0)) + SHORT_S
        delay_s = self.free_s[server] - now_s
        return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


def _long(asked: Asked) -> Said:
    long = asked.chance("long") < 0.25
    server = "g0" if long else f"g{1 + int(3 * asked.chance('server'))}"
    tokens = 4000 if long else 200
    return Said(
        text=asked.target,
        servers=("c0", server),
        prompt_tokens=tokens,
        delay_s=SHORT_S * (tokens / 200) / 4,
    )


def _slow(asked: Asked) -> Said:
    server = f"g{int(4 * asked.chance('server'))}"
    delay_s = SHORT_S * (10 if server == "g1" else 1)
    return Said(text=asked.target, servers=("c0", server), delay_s=delay_s)


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (_Queues().answer, "more_loaded: generation server g0 takes "),
        (_long, "more_loaded: generation server g0 takes "),
        (_slow, "slow_worker: generation server g1 takes "),
    ],
)
def test_a_server_is_called_slow_only_if_its_work_does_not_explain_it(
    tmp_path: Path, act: Act, said: str
) -> None:
    plan = replace(plan_for(tmp_path, num_samples=240), limits=Limits(concurrency=8))
    report = run(plan, Server(act=act, answers=answers_to(plan.tasks[0])), tmp_path / "out")
    [task] = report.tasks
    assert task.attribution is not None
    slow = [row.worker for row in task.attribution.times if row.slow]
    loaded = [row.worker for row in task.attribution.times if row.loaded]
    assert (slow, loaded) == (([], ["g0"]) if said.startswith("more") else (["g1"], []))
    shown = [row for row in task.attribution.times if row.slow or row.loaded]
    told = [*map(describe_slow, shown), *sentences(task.attribution)]
    assert sum(line.startswith(said) for line in told) == (2 if loaded else 1)
