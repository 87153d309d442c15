"""Print what a server has of /v1/responses: python -m tests.peers.responses_table URL [MODEL].

The first row is that of `serve-eval smoke --route responses`. The others are single requests, whose
answers a reader of docs/measured/responses.md judges.
"""

import asyncio
import sys

import aiohttp

from tests.workflows.smoke.trying import by_name, smoke_at

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CALL = {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "call_1", "output": "22 C"}
TURN = {"type": "message", "role": "user", "content": "So?"}
CASES = {
    "cut at max_output_tokens": {"input": "What is 2 + 3?", "max_output_tokens": 3},
    "items of a call and its output": {"input": [CALL, RESULT, TURN]},
    "previous_response_id that is unknown": {"previous_response_id": "resp_0"},
    "text.format": {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    "response_format of chat": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    },
    "stop, which the route does not have": {"stop": ["="]},
}


async def show(url, model):
    done = await smoke_at(url, only=["responses"], items=True, level="quick", timeout_s=60)
    row = by_name(done)["responses"]
    print(f"smoke: {row.outcome} {row.told}")
    usual = {"model": model, "input": "2 + 3?", "max_output_tokens": 24, "temperature": 0}
    async with aiohttp.ClientSession() as session:
        for name, fields in CASES.items():
            async with session.post(f"{url}/v1/responses", json={**usual, **fields}) as reply:
                told = await reply.json()
            texts = [
                part.get("text")
                for item in told.get("output", ())
                for part in item.get("content") or ()
            ]
            about = [told.get("status"), told.get("incomplete_details"), texts]
            print(f"{name}: HTTP {reply.status}, {about if texts else str(told)[:160]}")


if __name__ == "__main__":
    asyncio.run(show(sys.argv[1].rstrip("/"), (sys.argv[2:] or ["m"])[0]))
