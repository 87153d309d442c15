"""Make the prompts of a canary pass: each has one code of 60 random bits that no other one has.

A code is twelve of 32 letters and digits. Tokenizers cut it in many ways, and models can copy it.
No prompt has two codes, so a code in another request's reply cannot come from its prompt.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from serve_eval.schema import Message, Prompt, Request, SamplingParams

ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"
"""The 32 characters of codes, as in base32 (RFC 4648): five bits each."""
LENGTH = 12
"""Characters of a code: 60 bits."""
GROUP = 4
"""Characters between two hyphens of every other code: other tokens for the same code."""
MAX_TOKENS = 96
"""Token limit of an answer."""
MOST_ROOM = 1024
"""Most tokens that a chat gets for its thoughts, which may name its code too."""
LONG_TEXTS, LINES = 4, 40
"""Number of long texts that prompts share, and their lines of some 15 tokens: 600 tokens, which
fill several blocks of a KV cache."""
KINDS = ("repeat", "question", "shared_prefix", "prefix_question", "early_code", "twin", "tool")
"""Forms of prompts, of which `tool` needs a server that takes tools."""
TOOL = "keep_code"


class CanaryPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The seed of the codes, and what they are sent to.

    `endpoint` is the launcher of the plan with its options, and `base_url` the address.
    `chat`, `texts` and `tools` say which forms of requests the endpoint takes. Chats have the
    fields `no_thoughts`, which switch thoughts off, or `room` more tokens for them. `rehearsal`:
    the stand-in answers.
    """

    seed: str
    requests: int
    in_flight: int
    model: str | None
    endpoint: str
    base_url: str
    chat: bool
    texts: bool
    tools: bool
    room: int = 0
    no_thoughts: Mapping[str, Any] = {}
    rehearsal: bool = False


class KeptCanaryPlan(msgspec.Struct, frozen=True):
    """The content of canary_plan.json."""

    plan: CanaryPlan


TOOL_FIELDS: Mapping[str, object] = {
    "tools": [
        {
            "type": "function",
            "function": {
                "name": TOOL,
                "description": "Keeps the code of a request.",
                "parameters": {
                    "type": "object",
                    "properties": {"code": {"type": "string"}},
                    "required": ["code"],
                },
            },
        }
    ]
}
_PLACES = ("harbour", "library", "orchard", "station", "museum", "quarry", "bakery", "garden")
_ASK = "Repeat the code of this request exactly, and nothing else."
_QUESTIONS = (
    "What is the capital of France?",
    "How many days has a week?",
    "Which colour has grass?",
    "What is 7 + 5?",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """One request: its code, the form of its prompt, and how it is sent."""

    id: str
    code: str
    kind: str
    prompt: Prompt
    streamed: bool
    max_tokens: int = MAX_TOKENS
    extra: Mapping[str, object] = field(default_factory=dict)

    @property
    def chat(self) -> bool:
        return not isinstance(self.prompt, str)

    @property
    def request(self) -> Request:
        """The request to send."""
        sampling = SamplingParams(max_tokens=self.max_tokens)
        return Request(
            sample_id=self.id, prompt=self.prompt, sampling=sampling, extra=dict(self.extra)
        )


def make_code(seed: str, number: int) -> str:
    """Return the code of a request: the first 60 bits of a hash, five bits for each character."""
    bits = int.from_bytes(hashlib.sha256(f"{seed}:code:{number}".encode()).digest()[:8]) >> 4
    return "".join(ALPHABET[bits >> 5 * place & 31] for place in range(LENGTH))


def make_canaries(plan: CanaryPlan) -> list[Canary]:
    """Return the requests in the order in which they are sent, which the seed draws."""
    kinds = KINDS if plan.tools else KINDS[:-1]
    routes = [route for route, taken in (("chat", plan.chat), ("text", plan.texts)) if taken]
    found = []
    for number in range(plan.requests):
        kind = kinds[number % len(kinds)]
        turn = number // len(kinds)
        chat = kind == "tool" or routes[turn % len(routes)] == "chat"
        code = make_code(plan.seed, number)
        written = code if turn // 2 % 2 else _group(code)
        text = _write(kind, written, plan.seed, turn)
        found.append(
            Canary(
                id=f"canary-{number}",
                code=code,
                kind=kind,
                prompt=(
                    (Message(role="user", content=text),)
                    if chat
                    else f"{text}\n\nThe code of this request: {written}\n"
                    "The code of this request, once more:"
                ),
                streamed=number % 2 == 1,
                max_tokens=MAX_TOKENS + (plan.room if chat else 0),
                extra={
                    **(TOOL_FIELDS if kind == "tool" else {}),
                    **(plan.no_thoughts if chat else {}),
                },
            )
        )
    random.Random(f"{plan.seed}:order").shuffle(found)
    return found


def _group(code: str) -> str:
    return "-".join(code[i : i + GROUP] for i in range(0, LENGTH, GROUP))


def _write(kind: str, code: str, seed: str, turn: int) -> str:
    """Return the text of a prompt. `turn` counts the prompts of its kind."""
    long = _long_text(seed, turn % LONG_TEXTS)
    named = f"The code of this request is {code}."
    question = _QUESTIONS[turn % len(_QUESTIONS)]
    asked = f"{question} Begin your answer with the code of this request, {code}."
    place = _PLACES[turn // LONG_TEXTS % len(_PLACES)]
    return {
        "repeat": f"{named} {_ASK}",
        "question": asked,
        "shared_prefix": f"{long}\n{named} {_ASK}",
        "prefix_question": f"{long}\n{asked}",
        "early_code": f"{named}\n{long}\n{_ASK}",
        "twin": f"A note from the {place}.\n{named}\n{_ASK}",
        "tool": f"{named} Call the function {TOOL} with the code of this request.",
    }[kind]


def _long_text(seed: str, number: int) -> str:
    """Return a text that several prompts share and that the server has not seen before."""
    draw = random.Random(f"{seed}:text:{number}")
    return "\n".join(
        f"Line {line}: the {draw.choice(_PLACES)} next to the {draw.choice(_PLACES)} opens at"
        f" {draw.randint(1, 12)} and closes at {draw.randint(1, 12)}."
        for line in range(1, LINES + 1)
    )
