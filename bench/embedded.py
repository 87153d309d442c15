"""Measure the speed of the embedded model.

Run `python bench/embedded.py [PROBLEMS [STARTS]]`. It prints the time from the start of the process
until the server is ready, and the speed of its greedy answers to word problems by chat. Answers per
second of the server's processor time show what one core can do; wall-clock figures include the
client and other load on the machine.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import aiohttp
from machine import facts, load

from serve_eval.datasets.generated import Problem, problems
from serve_eval.launchers import embedded
from serve_eval.schema import Endpoint, LaunchContext

PROBLEMS = 500
STARTS = 5
WAYS = ((1, False), (16, False), (64, False), (16, True))
"""Requests in flight, and True for streams."""


def cpu_s(endpoint: Endpoint) -> float:
    """Return the processor time of the server so far."""
    fields = Path(f"/proc/{endpoint.info.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def starts(folder: Path, count: int) -> None:
    """Print the time until the server is ready."""
    wall, cpu = [], []
    for _ in range(count):
        began = time.perf_counter()
        async with embedded.launch(
            LaunchContext(model=None, log_dir=folder), embedded.EmbeddedOptions()
        ) as endpoint:
            wall.append(time.perf_counter() - began)
            cpu.append(cpu_s(endpoint))
    print(
        f"ready after {statistics.median(wall):.2f} s (fastest {min(wall):.2f}), "
        f"{statistics.median(cpu):.2f} s of processor time; median of {count} starts, load {load()}"
    )


async def answers(
    endpoint: Endpoint, asked: list[Problem], in_flight: int, *, stream: bool
) -> None:
    """Print the answers per second and the number of right answers."""
    door, right = asyncio.Semaphore(in_flight), 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask(problem: Problem) -> None:
            nonlocal right
            turns = [{"role": "user", "content": problem.question}]
            body = {
                "model": endpoint.model,
                "messages": turns,
                "temperature": 0,
                "max_tokens": 128,
                "stream": stream,
            }
            async with (
                door,
                session.post(f"{endpoint.base_url}/chat/completions", json=body) as reply,
            ):
                if stream:
                    await reply.read()
                else:
                    text = (await reply.json())["choices"][0]["message"]["content"]
                    right += text.endswith(f"#### {problem.answer}")

        began, used = time.perf_counter(), cpu_s(endpoint)
        await asyncio.gather(*map(ask, asked))
        took, used = time.perf_counter() - began, cpu_s(endpoint) - used
    told = "streamed" if stream else f"{100 * right / len(asked):.1f} % right"
    print(
        f"{in_flight:3} in flight: {len(asked) / used:4.0f} answers per second of the server's"
        f" processor time, {len(asked) / took:4.0f} by the clock; {told}, load {load()}"
    )


async def main(count: int, ready: int) -> None:
    print("\n".join(facts()))
    with tempfile.TemporaryDirectory() as folder:
        await starts(Path(folder), ready)
        asked = list(islice(problems("test", 1), count))
        async with embedded.launch(
            LaunchContext(model=None, log_dir=Path(folder)), embedded.EmbeddedOptions()
        ) as endpoint:
            for in_flight, stream in WAYS:
                await answers(endpoint, asked, in_flight, stream=stream)


if __name__ == "__main__":
    given = [int(number) for number in sys.argv[1:]]
    asyncio.run(main(*given, *(PROBLEMS, STARTS)[len(given) :]))
