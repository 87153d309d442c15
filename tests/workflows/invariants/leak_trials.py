"""Trials of leaks between requests: what is found, and after how many prompts.

`python -m tests.workflows.invariants.leak_trials` prints the figures of the documentation;
`canaries` or `diagnose` after it prints only those.
"""

import asyncio
import statistics
import sys
import tempfile
from pathlib import Path

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.protocol.shared import build_task
from serve_eval.schema import DataRoots, Limits, Plan, Spec
from serve_eval.storage.story_results import read_canary_log
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.diagnose.run_rules import findings
from serve_eval.workflows.invariants.canaries import check_canaries
from tests.scripted_server import ScriptedServer, answer, external
from tests.workflows.invariants.faulty_servers import Exchange, copier

TRIALS, REQUESTS, PROBLEMS = 20, 400, 400
SHARES = (0.0, 0.01, 0.02, 0.1)


async def try_canaries(share, seed, out):
    """Return after how many replies the first leak was there; None if there was none."""
    exchange = Exchange(share=share, seed=seed, together=16, pause_s=0.02)

    async def swap(code):
        return answer(await exchange.pass_on(f"The code is {code}."))

    async with copier(lambda _request, code, _before: swap(code)).serve() as url:
        plan = Plan(
            model="m", launcher=external(url), tasks=(Spec(name="word_problems"),), limit=REQUESTS
        )
        found = await check_canaries(plan, out, seed=f"trial {seed}", environ={})
    leaking = {leak.into for leak in found.leaks}
    assert found.leaking == exchange.swapped
    return next((n for n, name in enumerate(read_canary_log(out), 1) if name in leaking), None)


async def ask_embedded(out):
    """Return the embedded model's answers to the problems, by prompt."""
    spec = Spec(name="word_problems", options={"num_samples": PROBLEMS})
    plan = Plan(model="embedded", launcher=Spec(name="embedded"), tasks=(spec,), no_reference=True)
    await evaluate(plan, out, environ={})
    [task] = read(out).tasks
    texts = {one.id: one.response.text for one in task.asked if one.response is not None}
    samples = build_task(spec).load(DataRoots(), PROBLEMS).samples
    return {
        one.prompt if isinstance(one.prompt, str) else one.prompt[-1].text: texts[one.id]
        for one in samples
        if one.id in texts
    }


async def try_diagnose(share, seed, in_flight, answers, out):
    """Return True if diagnose names the exchange of a replayed model's answers."""
    exchange = Exchange(share=share, seed=seed, together=min(8, in_flight), pause_s=0.02)

    async def reply(request):
        text = answers.get(request.prompt)
        return answer("4" if text is None else await exchange.pass_on(text))

    server = ScriptedServer(reply, paths=["/v1/completions", "/v1/chat/completions"])
    async with server.serve() as url:
        plan = Plan(
            model="m",
            launcher=external(url),
            tasks=(Spec(name="word_problems", options={"num_samples": PROBLEMS}),),
            no_reference=True,
            limits=Limits(concurrency=in_flight, order_seed=seed),
        )
        await evaluate(plan, out, environ={})
    return any(one.rule == "foreign_answers" for one in findings(read(out)))


async def print_canaries(top):
    """Print in how many trials the canaries found a leak, and after how many replies."""
    print(f"canaries, {REQUESTS} requests, 64 in flight, {TRIALS} trials:")
    for share in SHARES:
        firsts = [
            await try_canaries(share, seed, top / f"c{share}-{seed}") for seed in range(TRIALS)
        ]
        seen = [first for first in firsts if first is not None]
        after = (
            f", the first after {min(seen)} to {max(seen)} replies"
            f" (median {statistics.median(seen):g})"
            if seen
            else ""
        )
        print(f"  {share:.0%} exchanged: found in {len(seen)} of {TRIALS}{after}", flush=True)


async def print_diagnoses(top):
    """Print in how many trials diagnose named the exchange."""
    answers = await ask_embedded(top / "embedded")
    print(f"diagnose, {len(answers)} problems, answers of the embedded model, {TRIALS} trials:")
    for share in (SHARES[0], SHARES[-1]):
        for in_flight in (8, 64):
            named = [
                await try_diagnose(
                    share, seed, in_flight, answers, top / f"d{share}-{in_flight}-{seed}"
                )
                for seed in range(TRIALS)
            ]
            print(
                f"  {share:.0%} exchanged, {in_flight} in flight: named in {sum(named)} of"
                f" {TRIALS}",
                flush=True,
            )


async def main():
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        if "diagnose" not in sys.argv:
            await print_canaries(Path(folder))
        if "canaries" not in sys.argv:
            await print_diagnoses(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())
