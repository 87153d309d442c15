"""Serve the embedded model over the HTTP layer that our servers share.

Unsupported requests are refused and not ignored, so that no answer to something else looks valid.

Fields that choose a worker or a turn (`user`, `priority`, ...) are ignored: there is only one of
each. So is `add_special_tokens`, since the tokenizer has none to add.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._embedded.engine import NO_CACHE, Engine, PrefixCaching
from serve_eval.launchers._embedded.generation import Generation, Wanted, read_shaping
from serve_eval.launchers._embedded.model import Model
from serve_eval.launchers._embedded.tokenizer import Chat, Tokenizer
from serve_eval.launchers._http import responses
from serve_eval.launchers._http.answers import Events, Generated, TokenUsage, answer_body
from serve_eval.launchers._http.requests import (
    DEFAULT_MAX_TOKENS,
    Ask,
    RefusedRequest,
    bad_request,
    encode,
    refuse_too_few,
    refuse_too_long,
    refuse_unknown_fields,
    understand,
)
from serve_eval.launchers._http.server import json_response
from serve_eval.protocol.chat_template import CONFIG_FILE, json_of
from serve_eval.schema import Prompt

MAX_BODY_BYTES = 16 * 1024 * 1024
MOST_CHOICES = 256
"""Maximum number of choices in one request."""


def create_app(
    folder: Path,
    models: Mapping[str, Damage],
    *,
    strict_fields: bool = False,
    caching: PrefixCaching = NO_CACHE,
    defaults: Mapping[str, float] | None = None,
) -> web.Application:
    """Return the server of a folder of weights as an aiohttp application.

    `models` maps names to damage, and `defaults` sampling fields to the values of requests that
    lack them. Raises OSError and ValueError for a folder that cannot be served.
    """
    server = _Server(folder, models, strict_fields, caching, defaults or {})
    app = web.Application(client_max_size=MAX_BODY_BYTES)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/v1/chat/completions", server.chat_completions)
    app.router.add_post(responses.PATH, server.responses)
    app.router.add_get("/v1/models", server.models)
    app.router.add_get("/tokenizer_info", server.tokenizer_info)
    app.router.add_get("/health", _health)
    app.router.add_get("/version", _version)
    app.cleanup_ctx.append(server.run_engines)
    return app


class _Server:
    def __init__(
        self,
        folder: Path,
        models: Mapping[str, Damage],
        strict_fields: bool,
        caching: PrefixCaching,
        defaults: Mapping[str, float],
    ) -> None:
        read_shaping({}, defaults)  # refuses values out of range
        self._defaults = defaults
        self._tokenizer, self._render = Tokenizer(folder / "tokenizer.json"), Chat(folder)
        self._engines = {
            name: Engine(Model(folder, damage), self._tokenizer, caching.build())
            for name, damage in models.items()
        }
        self._counts_cached = bool(caching.blocks)
        self._strict_fields, self._number = strict_fields, 0
        window = next(iter(self._engines.values())).model.window
        about = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "serve-eval",
            "max_model_len": window,
        }
        data = [{"id": name, **about, "damage": damage} for name, damage in models.items()]
        self._models = encode({"object": "list", "data": data})
        self._settings = encode(json_of(folder / CONFIG_FILE))

    async def run_engines(self, app: web.Application) -> AsyncIterator[None]:
        """Run the engines while the application is up.

        A server whose engine fails ends, as it could not answer.
        """
        tasks = [asyncio.create_task(engine.run()) for engine in self._engines.values()]
        for task in tasks:
            task.add_done_callback(_end_with)
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._render.close()

    async def models(self, request: web.Request) -> web.Response:
        return json_response(200, self._models)

    async def tokenizer_info(self, request: web.Request) -> web.Response:
        """Return the settings of the tokenizer, in the form of vLLM."""
        return json_response(200, self._settings)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    async def responses(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True, items=True)

    async def _receive(
        self, request: web.Request, *, chat: bool, items: bool = False
    ) -> web.StreamResponse:
        generations: list[Generation] = []
        self._number += 1
        number = self._number
        try:
            raw = await request.read()
            through = responses.to_chat(raw) if items else None
            raw = raw if through is None else through.raw
            ask = understand(raw, chat=chat, models=self._engines)
            body = msgspec.json.decode(raw)
            if self._strict_fields:
                refuse_unknown_fields(body, chat=chat)
            refuse_unserved(body, chat=chat)
            prompts = [await self._ids(ask, prompt) for prompt in ask.prompts]
            wanted = self._list_wanted(ask, prompts, body)
            changed = asyncio.Event()
            generations += [self._engines[ask.model].submit(one, changed) for one in wanted]
            if ask.stream:
                told = self._events(ask, number, prompts, generations, changed)
                return await responses.send_events(request, told, through)
            for generation in generations:
                await generation.done.wait()
            answers = [self._answer(ask, generation) for generation in generations]
            body = answer_body(ask, number, answers, self._usage(prompts, generations))
            return json_response(200, responses.write_whole(body, through))
        except RefusedRequest as error:
            return json_response(error.status, encode(error.body))
        finally:
            for generation in generations:
                generation.cancelled = True

    async def _ids(self, ask: Ask, prompt: Prompt | list[int]) -> list[int]:
        """Return the tokens of a prompt; if it is truncated, the last ones."""
        if isinstance(prompt, list):
            ids, vocabulary = prompt, self._engines[ask.model].model.vocabulary
            if not all(0 <= i < vocabulary for i in ids):
                raise bad_request(f"token ids must be between 0 and {vocabulary - 1}")
        else:
            if not isinstance(prompt, str):
                prompt = await asyncio.to_thread(self._render, prompt, ask.template_kwargs)
            ids = self._tokenizer.encode(prompt)
        if not ids:
            raise bad_request("the prompt is empty")
        return ids if ask.truncate is None else ids[-ask.truncate :]

    def _list_wanted(
        self, ask: Ask, prompts: Sequence[Sequence[int]], body: Mapping[str, Any]
    ) -> list[Wanted]:
        salt, shaping = body.get("cache_salt"), read_shaping(body, self._defaults)
        window = self._engines[ask.model].model.window
        if len(prompts) * ask.n > MOST_CHOICES:
            raise bad_request(
                f"{len(prompts)} prompts and n = {ask.n}: at most {MOST_CHOICES} choices are served"
                " at once"
            )
        told = [
            count
            for count in (ask.prompt_logprobs, ask.logprobs if ask.echo else None)
            if count is not None
        ]
        found = []
        for ids in prompts:
            max_tokens = ask.max_tokens
            if max_tokens is None:
                max_tokens = max(1, window - len(ids)) if ask.chat else DEFAULT_MAX_TOKENS
            refuse_too_few(max_tokens, 0 if ask.echo else 1)
            refuse_too_long(len(ids) + max_tokens, window)
            for turn in range(ask.n):
                one = Wanted(
                    ids=ids,
                    max_tokens=max_tokens,
                    shaping=shaping,
                    seed=ask.seed,
                    turn=turn,
                    stop=ask.stop,
                    ignore_end=ask.ignore_eos,
                    logprobs=ask.logprobs,
                    prompt_logprobs=max(told, default=None),
                    salt=salt if isinstance(salt, str) else "",
                )
                found.append(one)
        return found

    def _answer(self, ask: Ask, generation: Generation) -> Generated:
        return Generated(
            text=generation.text,
            finish_reason=generation.finish_reason,
            stop_reason=generation.stop_reason,
            prompt_text=self._text(generation.wanted.ids) if ask.echo else "",
            tokens=generation.tokens if ask.logprobs is not None else None,
            prompt=generation.prompt or None,
        )

    def _usage(
        self, prompts: Sequence[Sequence[int]], generations: Sequence[Generation]
    ) -> TokenUsage:
        steps = sum(generation.steps for generation in generations)
        cached = sum(generation.cached for generation in generations)
        told = cached if self._counts_cached else None
        return TokenUsage(sum(map(len, prompts)), steps, told)

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.bytes_of, ids)).decode(errors="replace")

    async def _events(
        self,
        ask: Ask,
        number: int,
        prompts: Sequence[Sequence[int]],
        generations: Sequence[Generation],
        changed: asyncio.Event,
    ) -> AsyncIterator[bytes]:
        """Yield the answer as server-sent events: pieces of all choices as they come."""
        events, unopened, left = (
            Events(ask, number),
            set(range(len(generations))),
            dict(enumerate(generations)),
        )
        while left:
            await changed.wait()
            changed.clear()
            for index, generation in [*left.items()]:
                if not generation.steps and not generation.over:
                    continue
                if index in unopened:
                    unopened.remove(index)
                    for event in events.begin_choice(index, self._answer(ask, generation)):
                        yield event
                over = generation.over  # read before the news, which are then complete
                text, tokens = generation.news()
                if text or (ask.logprobs is not None and tokens):
                    yield events.piece(index, text, tokens)
                if over:
                    del left[index]
                    yield events.end(index, self._answer(ask, generation))
        for event in events.finish(self._usage(prompts, generations)):
            yield event


def _end_with(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        traceback.print_exception(error)
        sys.stderr.flush()
        os._exit(1)


async def _health(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return json_response(200, b'{"version":"embedded"}')


NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "length_penalty": (1,),
    "prompt_ignore_length": (0,),
    "logit_bias": ({},),
    "top_p_min": (0,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "return_context_logits": (False,),
    "use_beam_search": (False,),
    "early_stopping": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "add_generation_prompt": (True,),
    "chat_template": (),
    "documents": ([],),
    "prompt_token_ids": (),
    "reasoning_effort": (),
    "thinking": (),
    "thinking_token_budget": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "lora_request": (),
    "disaggregated_params": (),
}
"""Fields that would change the answer and are not implemented, with the values, apart from null,
that change nothing."""


def refuse_unserved(body: Mapping[str, Any], *, chat: bool) -> None:
    """Raise RefusedRequest for fields that would change the answer but are not supported."""
    for name, neutral in NEUTRAL.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise bad_request(f"`{name}` is not served by the embedded model")
    if chat and body.get("echo"):
        raise bad_request("`echo` of a chat is not served by the embedded model")
    options = body.get("stream_options")
    if options and options.get("continuous_usage_stats"):
        raise bad_request(
            "`stream_options.continuous_usage_stats` is not served by the embedded model"
        )
    counts = {
        body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name) is not None
    }
    if len(counts) > 1:
        raise bad_request("`max_tokens` and `max_completion_tokens` differ")
