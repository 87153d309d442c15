"""A scripted server whose next tokens are uncertain, with small or large differences."""

import hashlib
import math
import random
from dataclasses import dataclass, field
from typing import Any

from tests.scripted_server import (
    Responder,
    ScriptedServer,
    answer,
    fail,
    json_reply,
)

SETTLED = 5
"""Requests after which a failing server begins to fail."""
WORDS = (" red", " blue", " green", " white", " black", " grey")


@dataclass(kw_only=True)
class ModelServer:
    """Answers with tokens whose log-probabilities depend on the prompt alone, and on its faults.

    This server adds two terms to each log-probability. `numerics` and `noise` are their standard
    deviations in nats: the first term is the same for every request, the second one is drawn for
    each. `foreign` is the share of prompts in whose place it answers another one. `certain` makes
    each token certain; `short` leaves the first token out of the list; `plain` lists none; `salts`
    False refuses a cache_salt; `chat_only` refuses completions. The first `busy` requests get 503.
    `samples` draws each token, whatever the temperature. `thinks` begins each message with the same
    token; `opened` begins it with tokens of thoughts, which depend on no prompt and have no tag,
    and continues no message. It ends at once after a share `ends` of the prompts, and in a share
    `stops` of requests, drawn for each. It answers another prompt in place of prompts of
    `wrong_from` tokens or more. It counts `counts_more` prompt tokens too many. With `metrics`, it
    is a vLLM with these counters.
    """

    name: str = "m"
    numerics: float = 0.0
    noise: float = 0.0
    foreign: float = 0.0
    second_only: bool = False
    certain: bool = False
    short: bool = False
    plain: bool = False
    salts: bool = True
    chat_only: bool = False
    ends_at_once: bool = False
    ends: float = 0.0
    stops: float = 0.0
    busy: int = 0
    samples: bool = False
    wrong_from: int | None = None
    thinks: bool = False
    opened: bool = False
    counts_more: int = 0
    metrics: Responder | None = None
    failing: float = 0.0
    decimals: int = 12
    fingerprint: str | None = None
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    server: ScriptedServer = field(init=False)

    def __post_init__(self):
        routes = {}
        if self.metrics is not None:
            listed = {"data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
            routes = {"/metrics": self.metrics, "/v1/models": json_reply(listed)}
        self.server = ScriptedServer(self.reply, routes=routes)

    def reply(self, request):
        """Answer a request."""
        if "cache_salt" in request.body and not self.salts:
            return fail(400, "cache_salt: extra inputs are not permitted")
        if self.busy and request.body.get("logprobs") is not None:
            self.busy -= 1
            return fail(503, "busy")
        if self.chat_only and not request.chat:
            return fail(404, "no completions")
        if self.rng.random() < self.failing and request.number > SETTLED:
            return fail(400, "out of order")
        if self.opened and request.body.get("continue_final_message"):
            return fail(400, "continue_final_message: extra inputs are not permitted")
        if request.body.get("logprobs") is None:
            return answer("A sum.</think> 12" if self.opened and request.chat else " red")
        return self._say(request)

    def _say(self, request):
        prompt = request.prompt
        if self.foreign and _uniform("foreign", self.name, prompt) < self.foreign:
            prompt = "another prompt" + prompt[::-1]
        if self.wrong_from is not None and len(request.prompt) // 4 >= self.wrong_from:
            prompt = "another prompt" + prompt[::-1]
        text, tokens = "", list[dict[str, Any]]()
        for place in range(0 if self._ends(prompt) else request.max_tokens):
            at = ("thoughts" if self.opened and request.chat else prompt) + text
            top = self._next(at, exact=self.second_only and place == 0)
            if self.thinks and not place and not request.body.get("continue_final_message"):
                top = {"<think>": -1e-4}
            chosen = max(top, key=lambda word: top[word])
            if self.samples:
                weights = [math.exp(value) for value in top.values()]
                [chosen] = self.rng.choices(list(top), weights)
            text += chosen
            tokens.append({"token": chosen, "logprob": top[chosen], "top": top})
        choice = {"logprobs": None if self.plain else _listed(tokens[self.short :], request.chat)}
        usage = len(request.prompt) // 4 + self.counts_more, len(tokens)
        body = {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}
        return answer(text, choice=choice, usage=usage, body=body)

    def _ends(self, prompt):
        now = self.stops > 0 and self.rng.random() < self.stops
        return now or self.ends_at_once or _uniform("ends", prompt) < self.ends

    def _next(self, at, *, exact):
        words = sorted(WORDS, key=lambda word: _uniform(word, at))[:5]
        first = 0.97 if self.certain else 0.25 + 0.3 * _uniform("first", at)
        rest = [_uniform("rest", word, at) + 0.2 for word in words[1:]]
        shares = [first, *(0.9 * (1 - first) * min(1.0, one / sum(rest)) for one in rest)]
        found = {}
        for word, share in zip(words, shares, strict=True):
            value = math.log(share)
            if not exact:
                value += self.numerics * _normal(self.name, word, at)
                value += self.rng.gauss(0, self.noise) if self.noise else 0.0
            found[word] = round(value, self.decimals)
        return found


def _listed(tokens, chat):
    if chat:
        return {
            "content": [
                {
                    "token": one["token"],
                    "logprob": one["logprob"],
                    "top_logprobs": [
                        {"token": word, "logprob": value} for word, value in one["top"].items()
                    ],
                }
                for one in tokens
            ]
        }
    return {
        "tokens": [one["token"] for one in tokens],
        "token_logprobs": [one["logprob"] for one in tokens],
        "top_logprobs": [one["top"] for one in tokens],
    }


def _uniform(*parts):
    digest = hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") + 0.5) / 2**64


def _normal(*parts):
    """Return a normal number that depends on the parts alone, by Box and Muller's formula."""
    u, v = _uniform("u", *parts), _uniform("v", *parts)
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
