"""Serve a deterministic model without weights: `python -m tests.oracle.server --golds FILE`.

It runs in its own process. A token is a byte, and one more token ends a text. The log-probability
of a token depends on all tokens before it and on itself, so one token too many, too few or at
another place changes every figure. An answer depends on the prompt: it is the file's answer for the
last code (`k` and five digits) of the prompt, its answer for another code, or something else.
Prompts are texts, or lists of tokens with the same meaning.
"""

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import re
from pathlib import Path

from tests.scripted_server import ScriptedServer, json_reply, models

MODEL = "oracle"
END = "<|endoftext|>"
"""Text of the token that ends a text and also comes before one."""
END_ID = 256
CODE = re.compile(r"k\d{5}")
WAYS = ("tokenizer_info", "props")
"""Ways in which the server reports its special tokens."""
_STEP = 1_000_003
_MASK = 0xFFFFFFFF
_VALUES = [-0.002 - 5.0 * random.Random(i).random() ** 3 for i in range(4096)]
_ONE_IN = 16
"""One token in this many is not the likeliest in its place."""
_FORMS = (
    lambda right, other: right,
    lambda right, other: f" {right}",
    lambda right, other: f" {right}\n\nQuestion: And then?\nAnswer: {other}",
    lambda right, other: f"Well. {right}\nQ: And then?\nA: {other}",
    lambda right, other: f" {right.upper()}.",
    lambda right, other: f" {other}",
    lambda right, other: f"{other}\n\n{right}",
    lambda right, other: f" I do not know, nor 3 nor $4.50. {END}{right}",
    lambda right, other: "",
)


def tokens_of(prompt):
    """Return the tokens of a text; the text of the end token becomes that token."""
    if not isinstance(prompt, str):
        return list(prompt)
    pieces = [list(piece.encode()) for piece in prompt.split(END)]
    return list(itertools.chain(pieces[0], *([END_ID, *piece] for piece in pieces[1:])))


def text_of(tokens):
    """Return the text of tokens."""
    ends = [-1, *(i for i, token in enumerate(tokens) if token == END_ID), len(tokens)]
    return END.join(
        bytes(tokens[a + 1 : b]).decode(errors="replace") for a, b in itertools.pairwise(ends)
    )


def logprobs_of(tokens):
    """Return log-probabilities in the form of /v1/completions: the first token has none."""
    states = list(
        itertools.accumulate(
            tokens, lambda state, token: (state * _STEP ^ token) & _MASK, initial=7
        )
    )[1:]
    values = [_VALUES[state >> 20] for state in states]
    texts = [
        END if token == END_ID else bytes([token]).decode(errors="replace") for token in tokens
    ]
    tops = [
        {text: value} if state >> 9 & 63 >= 64 // _ONE_IN else {text: value, "other": value / 2}
        for text, value, state in zip(texts, values, states, strict=True)
    ]
    return {
        "tokens": texts,
        "token_logprobs": [None, *values[1:]],
        "top_logprobs": [None, *tops[1:]],
        "text_offset": list(_offsets(tokens)),
    }


def answer_of(prompt, golds):
    """Return the whole answer to a prompt, before stop strings and the token limit cut it."""
    drawn = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "big")
    codes = CODE.findall(prompt)
    known = sorted(golds)
    if not codes or codes[-1] not in golds:
        return f"I do not know, say {drawn % 10}."
    at = known.index(codes[-1])
    alike = [code for code in known if code[:3] == codes[-1][:3]]
    return _FORMS[drawn % len(_FORMS)](golds[known[at]], golds[alike[drawn // 64 % len(alike)]])


def create(golds, way):
    """Return the server; `way` selects how it reports its special tokens."""

    def completions(request):
        prompt = request.body["prompt"]
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            (prompt,) = prompt
        tokens = tokens_of(prompt)
        choice, made = _choice(request.body, tokens, golds)
        usage = {
            "prompt_tokens": len(tokens),
            "completion_tokens": made,
            "total_tokens": len(tokens) + made,
        }
        told = {
            "id": f"cmpl-{request.number}",
            "object": "text_completion",
            "model": MODEL,
            "choices": [choice],
        }
        return json_reply({**told, "usage": usage})

    special = {
        "tokenizer_info": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END},
        "props": {"bos_token": "", "eos_token": END, "chat_template": ""},
    }
    routes = {"/v1/models": models(MODEL), f"/{way}": json_reply(special[way])}
    return ScriptedServer(completions, paths=["/v1/completions"], routes=routes)


def _offsets(tokens):
    """Yield the start of each token in characters.

    All bytes of a character start where it does.
    """
    at, ahead = 0, 0
    for token in tokens:
        if token == END_ID:
            at += ahead
            yield at
            at, ahead = at + len(END), 0
        else:
            if token & 0xC0 != 0x80:
                at, ahead = at + ahead, 1
            yield at


def _choice(body, tokens, golds):
    """Return the one choice of an answer, and the number of generated tokens."""
    most = int(body.get("max_tokens", 16))
    if body.get("echo"):
        made = tokens_of("I do not know.")[:most]
        whole = [*tokens, *made]
        told = logprobs_of(whole) if body.get("logprobs") is not None else None
        return {
            "index": 0,
            "text": text_of(whole),
            "logprobs": told,
            "finish_reason": "length",
        }, len(made)
    stops = [END, *_stops(body.get("stop"))]
    text = answer_of(text_of(tokens), golds)
    cut = min((text.index(stop) for stop in stops if stop in text), default=len(text))
    made = tokens_of(text[:cut])
    reason = "stop" if len(made) <= most else "length"
    said = bytes(made[:most]).decode(errors="ignore")
    return {"index": 0, "text": said, "logprobs": None, "finish_reason": reason}, min(
        len(made), most
    )


def _stops(given):
    return [given] if isinstance(given, str) else [stop for stop in given or () if stop]


async def _serve(server, ready):
    async with server.serve() as url:
        part = ready.with_suffix(".part")
        part.write_text(url)
        part.rename(ready)
        await asyncio.Event().wait()


def main():
    """Serve until the process is ended; the ready file gets the base URL."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.server", description=__doc__)
    parser.add_argument(
        "--golds", type=Path, required=True, help="a JSON object: what is right, by code"
    )
    parser.add_argument("--ready-file", type=Path, required=True)
    parser.add_argument(
        "--tells", choices=WAYS, default=WAYS[0], help="how the special tokens are told"
    )
    given = parser.parse_args()
    asyncio.run(_serve(create(json.loads(given.golds.read_text()), given.tells), given.ready_file))


if __name__ == "__main__":
    main()
