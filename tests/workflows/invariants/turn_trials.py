"""Trials of conversations in check invariants: faults of later turns, and sound servers.

`python -m tests.workflows.invariants.turn_trials PART`, with the part `power`, `simulated`,
`workers`, `sound`, `embedded` or `vllm HOST:PORT FOLDER [DAMAGED_HOST:PORT]`, prints a table of
docs/measured/conversations.md.
"""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from statistics import fmean

import httpx

from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence import answer_pairs
from serve_eval.evidence.self_flips import self_flips
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.plan import resolve
from serve_eval.protocol.conversation import SEPARATOR, TURN
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Outcome, Spec, TurnChanges
from serve_eval.stats.multiplicity import holm
from serve_eval.storage.scores import ScoreRecord
from serve_eval.workflows.invariants.by_turn import cut_to_first_change, join_p, name_turn
from serve_eval.workflows.invariants.check import check
from serve_eval.workflows.invariants.document import ALPHA
from tests.scripted_server import ScriptedServer, answer, external, models
from tests.standin.deployments import deployed

CACHE = {"prefix_cache": True}
BROKEN = {**CACHE, "wrong_turns": True}


def write_numbers(path, talks):
    """Write conversations of three turns, whose answers are numbers of one token."""
    cases = [
        {
            "case": f"n{i}",
            "input": {
                "turns": [
                    {"say": f"Name the number {1000 * t + i} of list {i}.", "expect": 1000 * t + i}
                    for t in (1, 2, 3)
                ]
            },
        }
        for i in range(talks)
    ]
    path.write_text(json.dumps({"talks": {"scorer": "numeric", "cases": cases}}))


def write_problems(path, talks):
    """Write conversations about three word problems each."""
    spec = Spec(name="word_problems", options={"num_samples": 3 * talks})
    samples = build_task(spec).load(DataRoots(), 3 * talks).samples
    turns = [{"say": one.prompt, "expect": int(one.target.rpartition(" ")[2])} for one in samples]
    cases = [{"case": f"t{i}", "input": {"turns": turns[3 * i : 3 * i + 3]}} for i in range(talks)]
    module = {"scorer": "numeric", "sampling": {"max_tokens": 100}, "cases": cases}
    path.write_text(json.dumps({"talks": module}))


def make_plan(folder, **more):
    settings = {
        "cases": [str(folder / "cases.yaml")],
        "base_url": "http://127.0.0.1:1/v1",
        "model": "M",
        "no_reference": True,
        "concurrency": 4,
        **more,
    }
    return resolve.resolve({}, settings, {}).plan


def check_standin(talks, faults, router, *, right=1.0, seed=0):
    """Return the checked stand-in of two context workers with these faults, by number."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_numbers(folder / "cases.yaml", talks)
        plan = make_plan(folder)
        answers = folder / "answers.jsonl"
        _write_answers(answers, prepare(plan), lambda task, sample: right)

        def model(worker):
            return MadeUpModel(answers, seed=seed, run=worker, varied=right < 1)

        async def main():
            async with deployed(
                2,
                1,
                model=model,
                faults={f"context_{i}": one for i, one in enumerate(faults)},
                router=router,
                greeted=False,
                perf_metrics=False,
            ) as found:
                at = replace(plan, launcher=external(found.url))
                return await check(at, folder / "out", chunk_tokens=(), environ={})

        return asyncio.run(main())


def check_embedded(talks, seed, fault="none"):
    """Return the checked embedded model with a prefix cache."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_problems(folder / "cases.yaml", talks)
        plan = make_plan(folder, model="embedded", base_url=None)
        launcher = Spec(name="embedded", options={"cache_blocks": 4000, "cache_fault": fault})
        plan = replace(plan, launcher=launcher, seed=seed)
        return asyncio.run(check(plan, folder / "out", chunk_tokens=(), environ={}))


def check_simulated(talks, seed):
    """Return the checked simulated endpoint, which draws each answer: 80 % are right."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_numbers(folder / "cases.yaml", talks)
        plan = make_plan(folder, base_url=None)
        options = {"accuracy": 0.8, "varied": True, "seed": seed}
        plan = replace(plan, launcher=Spec(name="simulated", options=options))
        return asyncio.run(check(plan, folder / "out", chunk_tokens=(), environ={}))


def find_cold(found):
    return next(one for one in found.results if one.arm == "cold")


def _print_power():
    print("| conversations | turns hit | found | named turn 2 | changed, median |")
    print("|---|---|---|---|---|")
    trials = 5
    for talks in (20, 40):
        for share in (0.1, 0.5):
            broken, named, changed = 0, 0, []
            for seed in range(trials):
                fault = {**BROKEN, "turns_share": share, "seed": seed}
                cold = find_cold(check_standin(talks, (fault, fault), "conversation", seed=seed))
                broken += cold.broken
                named += cold.broken and name_turn(cold.turns).startswith("turn 2")
                changed.append(cold.turns[1].changed)
            middle = statistics.median(changed)
            print(f"| {talks} | {share:.0%} | {broken} of {trials} | {named} | {middle:g} |")


@dataclass(frozen=True)
class Talked:
    """The parts of the answers to a task that are judged."""

    lines: tuple
    said: tuple


def _draw(rng, talks, flips, hit, workers=1):
    """Return the answers of three passes; the cache of the first two spoils later turns.

    Of several workers, one is damaged, and each turn of each pass goes to any of them.
    """
    told = ({}, {}, {})
    for i in range(talks):
        spoiled = [turn > 0 and rng.random() < hit for turn in range(3)]
        for number, lines in enumerate(told):
            cached = number < 2
            answers = [
                f"x{rng.randrange(1000)}"
                if rng.random() < flips
                else "bad"
                if bad and rng.randrange(workers) == 0
                else "5"
                for bad in (spoiled if cached else [False] * 3)
            ]
            lines[f"n{i}"] = ScoreRecord(
                id=f"n{i}",
                outcome=Outcome.PARTIAL,
                value=fmean(one == "5" for one in answers),
                answer=SEPARATOR.join(answers),
                target="",
                truncated=False,
                parts={TURN.format(k + 1): float(one == "5") for k, one in enumerate(answers)},
            )
    said = [{n: (line.answer or "").encode() for n, line in lines.items()} for lines in told]
    return [Talked((lines,), (hashes,)) for lines, hashes in zip(told, said, strict=True)]


def accuse(rng, talks, flips, hit, workers=1):
    """Return True if a pass that is not exchangeable fails, as the first of five."""
    passes = cut_to_first_change(_draw(rng, talks, flips, hit, workers))
    changed = self_flips(
        "cold",
        *passes,
        other_run=-1,
        differ=answer_pairs.another_answer,
        exchangeable=False,
        alpha=ALPHA,
    )
    base, arm = passes[0].lines[0], passes[-1].lines[-1]
    by = [base[name].value - arm[name].value for name in base]
    turn = TurnChanges(
        turn=1,
        compared=talks,
        changed=changed.other,
        own=changed.own,
        prompt_tokens=0,
        cached=None,
        base_cached=None,
        fell=sum(one < 0 for one in by),
        rose=sum(one > 0 for one in by),
    )
    return holm([join_p(changed.p, [turn]), 1.0, 1.0, 1.0, 1.0])[0] <= ALPHA


def _print_simulated():
    print("| workers, one damaged | own flips | later turns hit | 10 | 20 | 40 | 80 | 160 |")
    print("|---|---|---|---|---|---|---|---|")
    cells = [(1, flips, hit) for flips in (0.0, 0.05) for hit in (0.0, 0.1, 0.5)]
    cells += [(2, flips, hit) for flips in (0.0, 0.05) for hit in (0.1, 0.5, 1.0)]
    for workers, flips, hit in cells:
        trials = 200 if hit else 1000
        shares = []
        for talks in (10, 20, 40, 80, 160):
            rng = random.Random(f"{workers} {flips} {hit} {talks}")
            found = sum(accuse(rng, talks, flips, hit, workers) for _ in range(trials))
            shares.append(f"{100 * found / trials:.3g}")
        print(f"| {workers} | {flips:.0%} | {hit:.0%} | {' | '.join(shares)} |", flush=True)


def _print_workers():
    print("| router | conversations | found | named | turns 2 changed, itself |")
    print("|---|---|---|---|---|")
    trials = 5
    for router in ("conversation", "round_robin"):
        for talks in (20, 40):
            broken, named, told = 0, [], []
            for seed in range(trials):
                cold = find_cold(check_standin(talks, (BROKEN, CACHE), router, seed=seed))
                broken += cold.broken
                named.append(name_turn(cold.turns)[:6] if cold.broken else "")
                told.append((cold.turns[1].changed, cold.turns[1].own))
            names = ", ".join(f"{one} {named.count(one)}" for one in sorted({*named} - {""}))
            print(f"| {router} | {talks} | {broken} of {trials} | {names} | {sorted(told)} |")


def bound(found, trials, level=0.05):
    """Return the exact interval of a share (Clopper and Pearson 1934)."""

    def tail(p, counts):
        return sum(comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in counts)

    def search(rises, counts):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            below = (tail(middle, counts) < level / 2) == rises
            low, high = (middle, high) if below else (low, middle)
        return low

    lower = search(True, range(found, trials + 1)) if found else 0.0
    upper = search(False, range(found + 1)) if found < trials else 1.0
    return lower, upper


def _print_sound():
    print("| server | checks | accused in any pass | by `cold` |")
    print("|---|---|---|---|")
    kinds = [
        (f"stand-in, {router}, {1 - right:.0%} of answers other", 6, router, right)
        for router in ("conversation", "round_robin")
        for right in (1.0, 0.95, 0.8)
    ]
    every, anything = 0, 0
    for name, trials, router, right in kinds:
        checks = [
            check_standin(20, (CACHE, CACHE), router, right=right, seed=seed)
            for seed in range(trials)
        ]
        every, anything = _count(name, checks, every, anything)
    checks = [check_embedded(12, seed) for seed in range(6)]
    every, anything = _count("embedded, temperature 0", checks, every, anything)
    checks = [check_simulated(20, seed) for seed in range(10)]
    every, anything = _count(
        "simulated, 20% of answers wrong, drawn each time", checks, every, anything
    )
    low, high = bound(anything, every)
    print(f"{anything} of {every}: {low:.1%} to {high:.1%}")


def _count(name, checks, every, anything):
    accused = sum(any(one.broken for one in found.results) for found in checks)
    cold = sum(find_cold(found).broken for found in checks)
    print(f"| {name} | {len(checks)} | {accused} | {cold} |", flush=True)
    return every + len(checks), anything + accused


@contextmanager
def spoil_hits(sound, damaged):
    """Serve `sound`, but for later turns with cached tokens: `damaged` answers these."""
    with httpx.Client(trust_env=False, timeout=120) as client:

        def ask(address, body):
            body = {**body, "stream": False}
            body.pop("stream_options", None)
            return client.post(f"http://{address}/v1/chat/completions", json=body).json()

        def reply(request):
            told = ask(sound, request.body)
            usage = told["usage"]
            hit = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            given = (
                ask(damaged, request.body) if hit and len(request.body["messages"]) > 1 else told
            )
            [choice] = given["choices"]
            text, finish = choice["message"]["content"], choice["finish_reason"]
            return answer(text, finish=finish, body={"usage": usage})

        server = ScriptedServer(reply, routes={"/v1/models": models("embedded")})
        with server.serve_in_thread() as url:
            yield url.removeprefix("http://").removesuffix("/v1")


def _print_vllm(address, name, damaged=None):
    folder = Path(name)
    folder.mkdir(exist_ok=True)
    write_problems(folder / "cases.yaml", 24)
    if damaged is not None:
        with spoil_hits(address, damaged) as front:
            _print_vllm(front, name)
        return
    plan = make_plan(folder, model="embedded", base_url=f"http://{address}/v1", concurrency=8)
    began = time.monotonic()
    found = asyncio.run(check(plan, folder / "out", chunk_tokens=(), environ={}))
    print(f"{time.monotonic() - began:.0f} s")
    _print_turns(found)


def _print_embedded():
    for fault in ("none", "hits"):
        print(fault)
        _print_turns(check_embedded(24, 0, fault))


def _print_turns(found):
    cold = find_cold(found)
    print(f"exit code {found.exit_code}, {cold.not_tested or name_turn(cold.turns)}")
    print("| turn | compared | changed | itself | prompt tokens | cached, base | cached, cold |")
    print("|---|---|---|---|---|---|---|")
    for one in cold.turns:
        print(
            f"| {one.turn} | {one.compared} | {one.changed} | {one.own} | {one.prompt_tokens}"
            f" | {one.base_cached} | {one.cached} |"
        )


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    {
        "power": _print_power,
        "simulated": _print_simulated,
        "workers": _print_workers,
        "sound": _print_sound,
        "vllm": _print_vllm,
        "embedded": _print_embedded,
    }[part](*rest)
