"""Measure which faults in front of a real model diagnose names, and after how many prompts.

`python -m` this module prints the table for the embedded model: it answers the same prompts once
without and once with each fault, and a trial draws prompts at random from these answers. Minutes.
With a folder as argument, the answers are kept there and read from it again.

The faults are those of a server in front of the real one that changes some of its answers.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path

import httpx
from aiohttp import web

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Limits, Plan, Spec
from serve_eval.schema.media import uniform
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.diagnose.foreign import foreign_answers
from serve_eval.workflows.diagnose.paired_answers import pair_answers
from serve_eval.workflows.diagnose.story import find_between
from tests.scripted_server import serve_in_thread

WAITS_S = 2.0
"""Time that an answer waits for another one to be exchanged with."""


@contextmanager
def in_front(change, url):
    """Serve completions of another server, changed, and yield the base URL.

    `change` answers a request by means of a function that sends a body to the server behind, or to
    another, and returns the reply.
    Errors, streams and the server's counters pass through unchanged.
    """

    async def pass_on(request):
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:

            async def ask(body, base=""):
                reply = await client.post((base or url) + "/completions", json=body)
                json = reply.headers.get("Content-Type", "").startswith("application/json")
                if reply.status_code != HTTPStatus.OK or not json:
                    raise _Unchanged(reply)
                return reply.json()

            try:
                return web.json_response(await change(ask, await request.json()))
            except _Unchanged as told:
                return _pass_on(told.reply)

    async def models(request):
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            return _pass_on(await client.get(url + "/models"))

    async def metrics(request):
        async with httpx.AsyncClient(trust_env=False, timeout=120) as client:
            return _pass_on(await client.get(url.removesuffix("/v1") + "/metrics"))

    app = web.Application()
    app.router.add_post("/v1/completions", pass_on)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    with serve_in_thread(app) as served:
        yield served


class _Unchanged(Exception):
    """The server behind refused, or streams its answer, which is passed on as it is."""

    def __init__(self, reply):
        super().__init__(reply.status_code)
        self.reply = reply


def _pass_on(reply):
    kind = reply.headers.get("Content-Type", "").partition(";")[0]
    return web.Response(body=reply.content, status=reply.status_code, content_type=kind)


def take_from(other, when):
    """Return a change that takes some answers from another server.

    `when` says which, by the body and the numbers of prompt tokens and of those from the cache.
    """

    async def change(ask, body):
        reply = await ask(body)
        usage = reply.get("usage") or {}
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if when(body, usage.get("prompt_tokens", 0), cached):
            reply["choices"] = (await ask(body, other))["choices"]
        return reply

    return change


def damage_token(place):
    """Return a change that leaves out the likeliest token at a place, counted from 1."""

    async def change(ask, body):
        most = int(body.get("max_tokens", 16))
        whole = await ask(body)
        if most < place or whole.get("usage", {}).get("completion_tokens", 0) < place:
            return whole
        before = await ask({**body, "max_tokens": place - 1})
        text, prompt = before["choices"][0]["text"], body["prompt"]
        one = await ask({**body, "prompt": prompt + text, "max_tokens": 1, "logprobs": 2})
        likely = one["choices"][0]["logprobs"]["top_logprobs"][0]
        second = min(likely, key=likely.__getitem__)
        text += second
        rest = await ask({**body, "prompt": prompt + text, "max_tokens": max(1, most - place)})
        whole["choices"] = [{**rest["choices"][0], "text": text + rest["choices"][0]["text"]}]
        return whole

    return change


class Exchange:
    """Exchanges the answers of two requests in flight together, for a share of the prompts."""

    def __init__(self, share):
        self._share = share
        self._waiting = None

    async def __call__(self, ask, body):
        """Answer a request, with the answer to another one for some prompts."""
        reply = await ask(body)
        if uniform(f"exchange:{body.get('prompt')}") >= self._share:
            return reply
        if (waiting := self._waiting) is not None and not waiting.done():
            self._waiting, choices = None, reply["choices"]
            back = waiting.get_loop().create_future()
            waiting.set_result((choices, back))
            reply["choices"] = await back
            return reply
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            choices, back = await asyncio.wait_for(self._waiting, WAITS_S)
        except TimeoutError:
            return reply
        back.set_result(reply["choices"])
        reply["choices"] = choices
        return reply


MODEL, PROMPTS, TRIALS, ALPHA, SEED = "embedded", 1200, 20, 0.05, 3
COUNTS = (100, 200, 400, 800)
LONG, BLOCK, LAST, TENTH, PLACE = 42, 32, 29, 0.1, 9
CACHES = {
    "cache hits only": ("--cache-blocks", "100000", "--cache-fault", "hits"),
    "evicted, then reloaded wrongly": (
        "--cache-blocks", "400", "--host-blocks", "100000", "--cache-fault", "reload",
    ),
}  # fmt: skip
"""Options of the embedded server. Half of the prompts are asked before the run."""


def ask_all(url, out, seed, *, half=False):
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


def name_folder(top, name):
    """Return the folder of the answers with a fault."""
    return top / "runs" / "".join(c if c.isalnum() else "_" for c in name)


@contextmanager
def _embedded(top, damage, *more):
    ready = top / f"{'_'.join([damage, *more])}.url"
    command = [
        sys.executable, "-m", "serve_eval.launchers._embedded", "--weights", WEIGHTS, "--model",
        f"{MODEL}={damage}", "--ready-file", ready, *more,
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        while not ready.exists() or not ready.read_text():
            assert server.poll() is None
            time.sleep(0.1)
        yield ready.read_text().strip()
    finally:
        server.terminate()
        server.wait(30)
        ready.unlink()


def answer_all(top):
    """Return the folders of the runs of the embedded model: A, and one with each fault."""
    found = {}
    with ExitStack() as stack:
        sound, bad = (stack.enter_context(_embedded(top, damage)) for damage in ("none", "int3"))
        changes = {
            "A": None,
            "sound, again": None,
            f"length modulo {BLOCK} from {LAST} on": take_from(
                bad, lambda _body, tokens, _cached: tokens % BLOCK >= LAST
            ),
            f"above {LONG} tokens": take_from(bad, lambda _body, tokens, _cached: tokens > LONG),
            "one prompt in ten": take_from(
                bad, lambda body, _tokens, _cached: uniform(str(body["prompt"])) < TENTH
            ),
            "answers of other requests, 10 %": Exchange(TENTH),
            f"token {PLACE}": damage_token(PLACE),
        }
        for name, change in changes.items():
            found[name] = name_folder(top, name)
            if change is None:
                ask_all(sound, found[name], len(found))
                continue
            with in_front(change, sound) as url:
                ask_all(url, found[name], len(found))
        found["int3"] = name_folder(top, "int3")
        ask_all(bad, found["int3"], len(found))
        for name, cache in CACHES.items():
            url = stack.enter_context(_embedded(top, "none", *cache))
            found[name] = name_folder(top, name)
            ask_all(url, name_folder(top, f"{name}, half"), 0, half=True)
            ask_all(url, found[name], len(found))
    return found


def draw(run, chosen):
    """Return a run with some of its samples."""
    [task] = run.tasks
    asked = tuple(one for one in task.asked if one.id in chosen)
    return replace(run, tasks=(replace(task, asked=asked),))


def try_one(a, b):
    """Return whether the paired test finds a loss, and the findings of diagnose."""
    [pairs] = pair_answers(a, b, None)
    wrong = [(one.bad, other.bad) for one, other in pairs.pairs]
    lost = sum(there and not here for here, there in wrong)
    won = sum(here and not there for here, there in wrong)
    found = [*foreign_answers(b), *find_between(a, b, None)]
    return lost > won and mcnemar(lost, won).p_mid <= ALPHA, Counter(map(_shorten, found))


def _shorten(one):
    if one.rule != "slice":
        return one.rule
    also = " (others too)" if "the others lose score too" in one.told else ""
    return f"slice: {one.told.partition(':')[0]}{also}"


def print_trials(folders):
    """Print a line for each fault and number of prompts; the first folder is side A."""
    (_, a), *runs = ((name, read(path)) for name, path in folders.items())
    names = [one.id for one in a.tasks[0].asked]
    print(f"fault | value | prompts | found of {TRIALS} | findings of diagnose")
    for name, run in runs:
        for count in COUNTS:
            found, said = 0, Counter[str]()
            for trial in range(TRIALS):
                chosen = set(random.Random(f"{SEED}:{trial}").sample(names, count))
                lost, words = try_one(draw(a, chosen), draw(run, chosen))
                found += lost
                said.update(words)
            right = sum(not one.bad for one in run.tasks[0].asked) / len(names)
            told = ", ".join(f"{word} {k}" for word, k in said.most_common(4))
            print(f"{name} | {100 * right:.1f} | {count} | {found} | {told}", flush=True)


def main():
    """Ask, and print the trials."""
    with tempfile.TemporaryDirectory() as made:
        top = Path(sys.argv[1] if len(sys.argv) > 1 else made)
        print_trials(answer_all(top))


if __name__ == "__main__":
    main()
