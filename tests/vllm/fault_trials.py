"""Measure which faults of a real engine diagnose names: `python -m` this module prints the table.

Real vLLM servers answer the same prompts once without and once with each fault. A trial draws
prompts at random from these answers. About a quarter of an hour, after `make test-vllm`; with a
folder as argument the answers are kept in it, and read from it again.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from aiohttp import web

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.schema.prompt_hash import uniform
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.workflows.diagnose.evidence import Evidence, read
from serve_eval.workflows.diagnose.foreign import foreign_answers
from serve_eval.workflows.diagnose.paired_answers import pair_answers
from serve_eval.workflows.diagnose.story import find_between
from tests.scripted_server import serve_in_thread
from tests.vllm.conftest import address
from tests.vllm.deployments import MODEL, OPTIONS, Deployments, aggregated, disaggregated
from tests.vllm.faulty_transfer import Chosen, choose_tenth, foreign_blocks, orchestrated
from tests.vllm.quantise import write_model

PROMPTS, TRIALS, ALPHA, SEED = 1200, 20, 0.05, 3
COUNTS = (100, 200, 400, 800)
LONG, BLOCK, LAST = 42, 32, 29
EXCHANGED, WAITS_S = 0.1, 2.0
PLUGIN = Path(__file__).with_name("plugin")
LATE = ["--logits-processors", "late_token:LateToken"]
Ask = Callable[[dict[str, Any]], Awaitable[Any]]


@contextmanager
def in_front(change: Callable[[Ask, dict[str, Any]], Awaitable[Any]], url: str) -> Iterator[str]:
    """Serve a server that passes completions on to another and changes the answers."""

    async def pass_on(request: web.Request) -> web.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:

            async def ask(body: dict[str, Any], base: str = url) -> Any:
                return (await client.post(base + "/completions", json=body)).json()

            return web.json_response(await change(ask, await request.json()))

    async def models(request: web.Request) -> web.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            return web.json_response((await client.get(url + "/models")).json())

    app = web.Application()
    app.router.add_post("/v1/completions", pass_on)
    app.router.add_get("/v1/models", models)
    with serve_in_thread(app) as served:
        yield served


def answer_hits_from(other: str) -> Callable[[Ask, dict[str, Any]], Awaitable[Any]]:
    """Return a change that takes the answers to cached prompts from another server."""

    async def change(ask: Any, body: dict[str, Any]) -> Any:
        reply = await ask(body)
        if ((reply.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens"):
            reply["choices"] = (await ask(body, other))["choices"]
        return reply

    return change


class Exchange:
    """Exchanges the answers of two requests that are in flight together, for some prompts."""

    def __init__(self) -> None:
        self._waiting: asyncio.Future[Any] | None = None

    async def __call__(self, ask: Ask, body: dict[str, Any]) -> Any:
        """Return the answer of another request for one prompt in ten."""
        reply = await ask(body)
        if uniform(f"exchange:{body.get('prompt')}") >= EXCHANGED:
            return reply
        if (waiting := self._waiting) is not None and not waiting.done():
            self._waiting, partner = None, reply["choices"]
            own = waiting.get_loop().create_future()
            waiting.set_result((partner, own))
            reply["choices"] = await own
            return reply
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            choices, partner = await asyncio.wait_for(self._waiting, WAITS_S)
        except TimeoutError:
            return reply
        partner.set_result(reply["choices"])
        reply["choices"] = choices
        return reply


def ask_all(url: str, out: Path, seed: int, half: bool = False) -> None:
    """Ask all prompts, or half of them, unless a folder has their answers."""
    if (out / "report.json").exists():
        return
    plan = Plan(
        model=MODEL,
        launcher=Spec(name="external", options={"base_url": url}),
        tasks=(Spec(name="word_problems", options={"num_samples": PROMPTS}),),
        no_reference=True,
        limit=PROMPTS // 2 if half else None,
        limits=Limits(concurrency=16, order_seed=seed),
    )
    report = asyncio.run(evaluate(plan, out, environ={}))
    print(out.name, report.tasks[0].result.value, file=sys.stderr, flush=True)


def answer_all(folder: Path) -> dict[str, Path]:
    """Return the folders of the runs: A, sound ones, and one with each fault."""
    os.environ["PYTHONPATH"] = str(PLUGIN)
    running = Deployments(folder)
    found: dict[str, Path] = {}

    def note(name: str, url: str) -> None:
        found[name] = folder / name.replace(" ", "_").replace("/", "_")
        ask_all(url, found[name], len(found))

    try:
        running.start(sound=aggregated(prefix_caching=False), pair=disaggregated())
        sound = running["sound"].base_url
        note("A", sound)
        note("sound, again", sound)
        note("sound, prefill and decode", running["pair"].base_url)
        context = address(running["pair"], "context_0")
        decode = [address(running["pair"], "generation_0")]
        for name, chosen in BLOCKS_OF_OTHERS.items():
            with foreign_blocks(context, chosen) as foreign, orchestrated(foreign, decode) as url:
                note(name, url)
        running.stop("pair")
        with in_front(Exchange(), sound) as url:
            note("answers of other requests, 10 %", url)
        running.start(
            late=aggregated(
                prefix_caching=False, extra_args=[*map(str, OPTIONS["extra_args"]), *LATE]
            )
        )
        note("token 9", running["late"].base_url)
        running.stop("late")
        weights = folder / "weights"
        weights = weights if weights.exists() else write_model("int3", weights)
        running.start(int3=aggregated(model=str(weights)), cached=aggregated(prefix_caching=True))
        note("int3", running["int3"].base_url)
        ask_all(running["cached"].base_url, folder / "half", 0, half=True)
        change = answer_hits_from(running["int3"].base_url)
        with in_front(change, running["cached"].base_url) as url:
            note("cache hits only, int3", url)
    finally:
        running.close()
    return found


BLOCKS_OF_OTHERS: Mapping[str, Chosen] = {
    f"length modulo {BLOCK} from {LAST} on": lambda body, tokens: tokens % BLOCK >= LAST,
    f"above {LONG} tokens": lambda body, tokens: tokens > LONG,
    "one prompt in ten": choose_tenth,
}
"""The prompts of which the context server hands over other prompts' blocks."""


def draw(run: Evidence, chosen: Collection[str]) -> Evidence:
    """Return a run with some of its samples."""
    [task] = run.tasks
    return replace(
        run, tasks=(replace(task, asked=tuple(one for one in task.asked if one.id in chosen)),)
    )


def try_one(a: Evidence, b: Evidence) -> tuple[bool, Counter[str]]:
    """Return whether the paired test finds a loss, and the findings of diagnose."""
    [pairs] = pair_answers(a, b, None)
    wrong = [(one.bad, other.bad) for one, other in pairs.pairs]
    lost = sum(there and not here for here, there in wrong)
    won = sum(here and not there for here, there in wrong)
    found = [*foreign_answers(b), *find_between(a, b, None)]
    words = [
        f"slice: {one.told.partition(':')[0]}" if one.rule == "slice" else one.rule for one in found
    ]
    return lost > won and mcnemar(lost, won).p_mid <= ALPHA, Counter(words)


def main() -> None:
    """Ask, draw, and print a line for each fault and number of prompts."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else made)
        folders = answer_all(folder)
        runs = {name: read(path) for name, path in folders.items()}
    a = runs.pop("A")
    names = [one.id for one in a.tasks[0].asked]
    print("fault | prompts | value | found | findings of diagnose, in trials")
    for name, run in runs.items():
        for count in COUNTS:
            found, said = 0, Counter[str]()
            for trial in range(TRIALS):
                chosen = set(random.Random(f"{SEED}:{trial}").sample(names, count))
                lost, words = try_one(draw(a, chosen), draw(run, chosen))
                found += lost
                said.update(words)
            right = sum(not one.bad for one in run.tasks[0].asked) / len(names)
            told = ", ".join(f"{word} {k}" for word, k in said.most_common(4))
            print(f"{name} | {count} | {right:.1%} | {found} | {told}", flush=True)


if __name__ == "__main__":
    main()
