"""Record 1,000 requests that real clients send to the embedded model, as a gateway would.

    python -m tests.recorded.make_requests OUT.jsonl [COUNT]

The clients are the OpenAI SDK (chat whole and streamed, completions, chat with sampling) and an
agent loop with a tool, whose turns hold the answers before them. A middleware of the server logs
each body with its answer and its time, one JSON object a line.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
import time
from pathlib import Path

import openai
from aiohttp import web

from serve_eval.launchers._embedded.server import create_app
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import DataRoots, Spec
from tests.scripted_server import serve_in_thread

MOST_OPEN = 8
TOKENS = 80
SYSTEM = "Solve it. Write add(a, b) to add two numbers; its result comes in the next turn."


def recorder(rows):
    """Return a middleware that logs the requests of a server, and the answers to whole ones."""

    @web.middleware
    async def record(request, handler):
        at = time.time()
        body = await request.json() if request.method == "POST" else None
        reply = await handler(request)
        if body is not None:
            row = {"timestamp": at, "url": request.path, "body": body}
            if isinstance(reply, web.Response) and reply.status == 200:
                row["response"] = {"status_code": 200, "body": json.loads(reply.body)}
            rows.append(row)
        return reply

    return record


def list_problems(count, seed):
    """Return word problems as their task asks them."""
    from serve_eval.protocol.shared import build_task

    options = {"num_samples": count, "random_seed": seed}
    task = build_task(Spec(name="word_problems", options=options))
    return [sample.prompt for sample in task.load(DataRoots(), count).samples]


async def ask_by_chat(client, problem, **more):
    return await client.chat.completions.create(
        model="embedded",
        messages=[{"role": "user", "content": problem}],
        max_tokens=TOKENS,
        user="ann@example.org",
        **more,
    )


async def ask_streamed(client, problem):
    options = {"include_usage": True}
    stream = await ask_by_chat(client, problem, temperature=0, stream=True, stream_options=options)
    async for _ in stream:
        pass


async def ask_by_text(client, problem):
    await client.completions.create(
        model="embedded", prompt=problem, max_tokens=TOKENS, temperature=0, stop=["\n\n"]
    )


async def run_agent(client, problem):
    """Send three turns; each holds the answers before it, and the sum of their last numbers.

    The embedded model takes no `tools`, so that the tool is in the texts.
    """
    turns = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": problem}]
    for _ in range(3):
        reply = await client.chat.completions.create(
            model="embedded", messages=turns, max_tokens=TOKENS, temperature=0
        )
        said = reply.choices[0].message.content or ""
        total = sum(int(number) for number in re.findall(r"[0-9]{1,6}", said)[-2:])
        turns += [
            {"role": "assistant", "content": said},
            {"role": "user", "content": f"add: {total}. Check this answer."},
        ]


async def send_all(url, count):
    """Send about `count` requests of all clients, at most MOST_OPEN at a time."""
    rng = random.Random(0)
    problems = iter(list_problems(count, 7))
    jobs = []
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        for number in range(count * 30 // 100):
            jobs.append(ask_by_chat(client, next(problems), temperature=0, seed=number))
        for _ in range(count * 20 // 100):
            jobs.append(ask_streamed(client, next(problems)))
        for _ in range(count * 25 // 100):
            jobs.append(ask_by_text(client, next(problems)))
        for _ in range(count * 10 // 100):
            jobs.append(ask_by_chat(client, next(problems), temperature=0.8))
        for _ in range(count * 15 // 300):
            jobs.append(run_agent(client, next(problems)))
        rng.shuffle(jobs)
        room = asyncio.Semaphore(MOST_OPEN)

        async def run(job):
            async with room:
                await job

        await asyncio.gather(*map(run, jobs))


def record(out, send):
    """Write the requests that `send(url)` sends to the embedded model, in the order of arrival."""
    rows = []
    app = create_app(WEIGHTS, {"embedded": "none"})
    app.middlewares.append(recorder(rows))
    with serve_in_thread(app) as url:
        send(url)
    rows.sort(key=lambda row: row["timestamp"])
    Path(out).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(rows)


def make_requests(out, count=1000):
    """Write the requests of all clients to a file, in the order of their arrival."""
    return record(out, lambda url: asyncio.run(send_all(url, count)))


if __name__ == "__main__":
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    print(f"{make_requests(sys.argv[1], wanted)} requests in {sys.argv[1]}")
