"""Print calls and thoughts of vLLM by both routes: python -m tests.peers.responses_calls URL.

With a folder in place of the URL, write the embedded model there so that it thinks: the sign before
its results is the end of thoughts. vLLM serves it with --enable-auto-tool-choice --tool-call-parser
hermes --reasoning-parser deepseek_r1. Biases make it call, and guided decoding shapes the calls.
"""

import asyncio
import json
import shutil
import sys
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.launchers.embedded import WEIGHTS
from serve_eval.schema import Endpoint, Failure, Limits, Message, Request, SamplingParams

OPEN, CLOSE, SIGN, RARE = "<think>", "</think>", "####", "`"
QUESTION = "Tom has 45 apples. He buys 35 more. How many apples does Tom have?"
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CASES = (("required", 4, 128), (NAMED, 4, 128), ("required", 0, 128), ("required", 4, 25))
"""tool_choice, bias of the end of the answer, and token limit: the last two are cut."""


def write_thinker(folder):
    """Write the embedded model with tokens that open and close thoughts."""
    shutil.copytree(WEIGHTS, folder)
    told = json.loads((WEIGHTS / "tokenizer.json").read_text())
    names = {SIGN: CLOSE, RARE: OPEN}
    vocab = {names.get(text, text): place for text, place in told["model"]["vocab"].items()}
    told["model"]["vocab"] = vocab
    told["model"]["merges"] = [
        pair for pair in told["model"]["merges"] if "".join(pair).replace(" ", "") != SIGN
    ]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    told["added_tokens"] += [{"id": vocab[one], "content": one, **plain} for one in (OPEN, CLOSE)]
    (folder / "tokenizer.json").write_text(json.dumps(told))


def _tool(name, field, value):
    schema = {
        "type": "object",
        "properties": {field: {"type": "string", "enum": [value]}},
        "required": [field],
    }
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": schema}}


async def ask(url, route, choice, end, most, *, stream):
    vocab = json.loads((WEIGHTS / "tokenizer.json").read_text())["model"]["vocab"]
    spaces = {vocab[one]: -100 for one in vocab if set(one) <= set("\u010a\u010d\u0109\u0120")}
    biases = {**spaces, vocab['"']: 6, vocab[SIGN]: 8, vocab["<|end|>"]: end}
    tools = [_tool("get_weather", "city", "Rome"), _tool("get_time", "zone", "CET")]
    request = Request(
        sample_id="1",
        prompt=(Message(role="user", content=QUESTION),),
        sampling=SamplingParams(max_tokens=most),
        extra={"tools": tools, "tool_choice": choice, "logit_bias": biases},
    )
    at = Endpoint(base_url=url, model="embedded")
    async with Client(at, Limits(stream=stream, max_attempts=1), route=route) as client:
        said = await client.send(request)
    if isinstance(said, Failure):
        return said.message
    calls = [(call.name, call.arguments) for call in said.tool_calls]
    return f"{said.finish_reason}, thoughts {said.reasoning!r}, calls {calls}, text {said.text!r}"


async def show(url):
    for case in CASES:
        for stream in (False, True):
            for route in ("chat", "responses"):
                print(case, "stream" if stream else "whole", f"{route}:", end=" ")
                print(await ask(url, route, *case, stream=stream))


if __name__ == "__main__":
    if sys.argv[1].startswith("http"):
        asyncio.run(show(sys.argv[1]))
    else:
        write_thinker(Path(sys.argv[1]))
