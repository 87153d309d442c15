"""A server in front of a real one that changes some of its answers, as faults of serving do."""

import asyncio
from contextlib import contextmanager
from http import HTTPStatus

import httpx
from aiohttp import web

from serve_eval.schema.media import uniform
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
