"""Run a whole evaluation with OpenAI's SDK, written as a user would in an afternoon.

Run `python bench/openai_script.py --help`. It reads prompts, sends them with AsyncOpenAI over
aiohttp (raised limits, no silent retries) under a semaphore and one gather, takes the last number
of each answer, compares it with the target, and writes a JSON line per answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx2
import openai
import uvloop
from cores import raise_open_files

NUMBER = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


async def evaluate(base_url: str, asked: list[dict[str, Any]], in_flight: int, out: Path) -> float:
    """Return the share of right answers."""
    room = in_flight + 100
    transport = openai.DefaultAioHttpClient(
        limits=httpx2.Limits(max_connections=room, max_keepalive_connections=room),
        timeout=httpx2.Timeout(600, connect=120),
    )
    free = asyncio.Semaphore(in_flight)
    stops = ["Question:", "</s>", "<|im_end|>"]
    async with openai.AsyncOpenAI(
        base_url=base_url, api_key="none", max_retries=0, http_client=transport
    ) as client:
        with out.open("w", encoding="utf-8") as file:

            async def one(row: dict[str, Any]) -> bool:
                async with free:
                    answer = await client.completions.create(
                        model="m",
                        prompt=row["prompt"],
                        max_tokens=256,
                        temperature=0.0,
                        top_p=1.0,
                        stop=stops,
                        extra_body={"truncate_prompt_tokens": 4096},
                    )
                text = answer.choices[0].text
                found = NUMBER.findall(text)
                last = (found[-1][0] or found[-1][1]) if found else None
                right = last == row["target"]
                file.write(json.dumps({"text": text, "answer": last, "right": right}) + "\n")
                return right

            scores = await asyncio.gather(*(one(row) for row in asked))
    return sum(scores) / len(scores)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--in-flight", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    raise_open_files()
    asked = [json.loads(line) for line in given.prompts.open(encoding="utf-8")]
    print(uvloop.run(evaluate(given.base_url, asked, given.in_flight, given.out)))


if __name__ == "__main__":
    main()
