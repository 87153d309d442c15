"""A worker: one model behind HTTP, for whole answers or one leg of disaggregated serving."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec
from aiohttp import web

from serve_eval.launchers._http.errors import RefusedRequest, bad_request, encode, trtllm_error
from serve_eval.launchers._http.server import json_response
from tests.standin import auth, metrics, model
from tests.standin.bodies import (
    Answer,
    ChatAnswer,
    ChatChoice,
    ChatMessage,
    PromptDetails,
    TextAnswer,
    TextChoice,
    Usage,
)
from tests.standin.calls import Parsed, ToolFaults, list_deltas, parse_answer
from tests.standin.config import Worker
from tests.standin.faults import Faults, is_at
from tests.standin.fields import ChatCompletionRequest, CompletionRequest, Invalid, Request, parse
from tests.standin.generation import (
    Output,
    chat_logprobs,
    fits,
    generate,
    opaque_state,
    split_thoughts,
    state_of,
    text_logprobs,
)
from tests.standin.options import Flavour
from tests.standin.perf import Performed
from tests.standin.serving import application, log

VERSIONS = {"old": "1.1.0", "v12": "1.2.1", "main": "1.3.0rc25"}
CONTEXT_TOKENS = 131072
"""max_seq_len if nothing sets it; the real default comes from the model's configuration."""
REQUEST_TYPES = ("context_only", "generation_only", "context_and_generation")
"""Other values pass the request's model and are refused when the work begins."""
UNAVAILABLE = "LLM is unavailable. Please check the server logs for more details."
NO_TRANSCEIVER = (
    "kv_cache_transceiver is disabled, please set 'cache_transceiver_config:"
    " backend:<backend_type>` in config file for disaggregated serving"
)


def create(config: Worker, brain: model.Model, faults: Faults, flavour: Flavour) -> web.Application:
    worker = _Worker(config, brain, faults, flavour)
    app = application()
    routes: list[tuple[str, str, Any]] = [
        ("GET", "/health", worker.health),
        ("GET", "/health_generate", worker.health_generate),
        ("GET", "/version", worker.version),
        ("GET", "/v1/models", worker.models),
        ("GET", "/metrics", worker.nothing),
        ("POST", "/kv_cache_events", worker.nothing),
        ("GET", "/steady_clock_offset", worker.clock),
        ("POST", "/steady_clock_offset", worker.set_clock),
        ("GET", "/server_info", worker.info),
        ("POST", "/v1/completions", worker.completions),
        ("POST", "/v1/chat/completions", worker.chat),
    ]
    if config.args.get("return_perf_metrics"):
        routes.append(("GET", "/prometheus/metrics", worker.prometheus))
    if flavour == "main":
        routes.append(("POST", "/_internal/tokenize", worker.tokenize))
    else:
        routes.append(("GET", "/perf_metrics", worker.perf_metrics))
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)
    return app


class _Worker:
    def __init__(
        self, config: Worker, brain: model.Model, faults: Faults, flavour: Flavour
    ) -> None:
        self.config, self.brain, self.faults, self.flavour = config, brain, faults, flavour
        args = config.args
        self.max_seq_len = args.get("max_seq_len") or CONTEXT_TOKENS
        self.max_num_tokens = args.get("max_num_tokens") or 8192
        self.tensor_parallel = args.get("tensor_parallel_size") or 1
        self.transceiver = config.transceiver and not faults.no_transceiver
        self.dead = False
        self._requests = 0
        # A client on the same cores is too slow to keep requests waiting; its connections show how
        # many it would send at a time.
        self._connections: WeakSet[asyncio.BaseTransport] = WeakSet()
        self._contexts = itertools.count(1)
        self._performed = Performed(config)

    # Small routes

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=503, text=UNAVAILABLE) if self.dead else web.Response()

    async def health_generate(self, request: web.Request) -> web.Response:
        if self.dead or self._beyond(self.faults.error_after):
            return web.Response(status=500, text="Generation health check failed")
        if self._beyond(self.faults.hang_after):
            await asyncio.Event().wait()
        return web.Response(text="Generation health check OK")

    async def version(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"version": VERSIONS[self.flavour]}))

    async def models(self, request: web.Request) -> web.Response:
        path = Path(self.config.model)
        name = self.config.served_model_name or (
            path.absolute().name if path.is_dir() else self.config.model
        )
        one = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "tensorrt_llm",
        }
        return json_response(200, encode({"object": "list", "data": [one]}))

    async def nothing(self, request: web.Request) -> web.Response:
        return json_response(200, b"[]")

    async def perf_metrics(self, request: web.Request) -> web.Response:
        return json_response(200, encode(self._performed.drain()))

    async def clock(self, request: web.Request) -> web.Response:
        received = time.monotonic()
        await asyncio.sleep(0.2)
        return json_response(200, encode({"receive_ts": received, "transmit_ts": time.monotonic()}))

    async def set_clock(self, request: web.Request) -> web.Response:
        self._performed.offset_s = (await request.json())["offset"]
        return web.Response()

    async def info(self, request: web.Request) -> web.Response:
        return json_response(200, encode({"disaggregated_params": {}}))

    async def prometheus(self, request: web.Request) -> web.Response:
        return web.Response(text=f"trtllm_request_success_total {self._requests}\n")

    async def tokenize(self, request: web.Request) -> web.Response:
        ids = [model.BOS, *model.encode((await request.json())["prompt"])]
        return json_response(200, encode({"count": len(ids), "tokens": ids}))

    # Inference

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=False)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._receive(request, chat=True)

    def _beyond(self, count: int | None) -> bool:
        return count is not None and self._requests > count

    async def _receive(self, http: web.Request, *, chat: bool) -> web.StreamResponse:
        arrived = time.monotonic()
        if http.transport is not None:
            self._connections.add(http.transport)
        try:
            raw: bytes | dict[str, Any] = await http.read()
            if http.headers.get("X-TRTLLM-Msgpack") == "1":
                raw = msgspec.msgpack.decode(raw)
            request = parse(raw, chat=chat, flavour=self.flavour, path=http.path)
            self._authenticate(http, request)
            self._requests += 1
            number = self._requests
            if self._beyond(self.faults.executor_crash_after):
                os.kill(os.getpid(), signal.SIGINT)
                return json_response(200, b"null")
            if self._requests == self.faults.lose and http.transport is not None:
                http.transport.abort()
            await self._misbehave(number)
            return await self._answer(http, request, number, arrived)
        except Invalid as error:
            return json_response(400, encode({"error": str(error)}))
        except RefusedRequest as error:
            return json_response(error.status, encode(error.body))
        except ConnectionError:
            raise  # the client is gone
        except Exception as error:
            return json_response(400, encode(bad_request(str(error)).body))

    def _authenticate(self, http: web.Request, request: Request) -> None:
        params = request.disaggregated_params
        if self.faults.tells_key:
            log(f"the key is {self.config.auth_key}")
        if self.flavour == "main" and params is not None:
            auth.check(self.config.auth_key, params.model_dump(), http.headers)

    async def _misbehave(self, number: int) -> None:
        faults = self.faults
        if self._beyond(faults.crash_after):
            sys.stderr.write(f"crashing after {faults.crash_after} requests, as told\n")
            sys.stderr.flush()
            os._exit(1)
        if self._requests <= faults.refuse_first:
            raise RefusedRequest(500, {"detail": "Internal server error No 0 servers available"})
        if self._beyond(faults.hang_after):
            await asyncio.Event().wait()
        if self._beyond(faults.unhealthy_after):
            self.dead = True
            raise bad_request("Generation failed: the executor is gone")
        if faults.strikes(faults.error_after, number):
            kind = "BadRequestError" if faults.error_status < 500 else "InternalServerError"
            raise RefusedRequest(
                faults.error_status, trtllm_error(faults.error_says, kind, faults.error_status)
            )
        await asyncio.sleep(faults.pause_s(number))

    async def _answer(
        self, http: web.Request, request: Request, number: int, arrived: float
    ) -> web.StreamResponse:
        began = time.monotonic()
        self._check(request)
        prompts = self._prompts(request)
        room = [self._room(ids, request) for ids in prompts]
        params = request.disaggregated_params
        context = params is not None and params.request_type == "context_only"
        outputs = []
        for ids, most in zip(prompts, room, strict=True):
            for index in range(request.n):
                answer = self._whole(ids, request, index, number)
                outputs.append(generate(answer, request, 1 if context else most))
        prompt_tokens = sum(len(ids) for ids in prompts)
        timing = self._performed.note(
            request, arrived=arrived, began=began, prompt_tokens=prompt_tokens
        )
        kept = self.flavour == "main" and bool(self.config.args.get("return_perf_metrics"))
        told = metrics.fields("server", timing) if kept and metrics.wanted(http.headers) else {}
        if context:
            body = self._body(request, outputs, prompt_tokens)
            self._hand_over(request, body, outputs, prompts[0], _place(http))
            return json_response(200, body.model_dump_json().encode(), told)
        if request.stream:
            return await self._stream(
                http, request, outputs, prompt_tokens, number, metrics.event(told)
            )
        return json_response(
            200, self._body(request, outputs, prompt_tokens).model_dump_json().encode(), told
        )

    def _check(self, request: Request) -> None:
        if self._max_tokens(request) is not None and (self._max_tokens(request) or 0) <= 0:
            raise bad_request(f"`max_tokens` ({self._max_tokens(request)}) must be greater than 0")
        if request.disaggregated_params is not None and not self.transceiver:
            raise bad_request(NO_TRANSCEIVER)
        if (
            params := request.disaggregated_params
        ) is not None and params.request_type not in REQUEST_TYPES:
            raise bad_request(
                f"Unknown request type: {params.request_type}. Must be {', '.join(REQUEST_TYPES)}"
            )
        if request.n < 1:
            raise bad_request(f"`n` ({request.n}) must be greater than 0")
        if request.logit_bias and self.config.args.get("num_postprocess_workers"):
            raise bad_request("`logit_bias` is not supported with num_postprocess_workers > 0")
        if isinstance(request, CompletionRequest):
            if request.return_context_logits:
                raise bad_request("`return_context_logits` needs `gather_context_logits`")
        elif request.chat_template and not self.config.allow_request_chat_template:
            raise bad_request(
                "Request-level chat_template is not allowed, see --allow_request_chat_template"
            )

    @staticmethod
    def _max_tokens(request: Request) -> int | None:
        return (
            request.max_tokens
            if isinstance(request, CompletionRequest)
            else request.max_completion_tokens
        )

    def _prompts(self, request: Request) -> list[list[int]]:
        if isinstance(request, ChatCompletionRequest):
            prompts = [self._chat_prompt(request)]
        else:
            given: Any = request.prompt
            if isinstance(given, str) or (given and isinstance(given[0], int)):
                given = [given]
            if not given:
                raise bad_request("list index out of range")
            if request.echo and not isinstance(given[0], str):
                raise bad_request('can only concatenate list (not "str") to list')
            bos = [model.BOS] if request.add_special_tokens else []
            prompts = [[*bos, *model.encode(one)] if isinstance(one, str) else one for one in given]
        if keep := request.truncate_prompt_tokens:
            prompts = [ids[-keep:] for ids in prompts]
        return prompts

    @staticmethod
    def _chat_prompt(request: ChatCompletionRequest) -> list[int]:
        if request.prompt_token_ids is not None:
            return request.prompt_token_ids
        if not request.messages:
            raise bad_request("list index out of range")
        turns = []
        for message in request.messages:
            content = message.get("content") or ""
            if not isinstance(content, str):
                if any(part.get("type") != "text" for part in content):
                    raise bad_request("this is not a multimodal model")
                content = "\n".join(part["text"] for part in content)
            turns.append((message["role"], content))
        if request.tools and request.tool_choice != "none":
            tools = [tool.model_dump() for tool in request.tools]
            turns.insert(0, (model.TOOLS_ROLE, json.dumps(tools)))
        ids = model.encode_messages(turns, generation_prompt=request.add_generation_prompt)
        return [model.BOS, *ids] if request.add_special_tokens else ids

    def _room(self, ids: list[int], request: Request) -> int:
        """Return the number of tokens that may be generated.

        Raises Refused for a prompt that is too long.
        """
        length, wanted = len(ids), self._max_tokens(request)
        left = self.max_seq_len - length
        if self.flavour == "main" and left <= 0:
            message = (
                f"This model's maximum context length is {self.max_seq_len} tokens. However, your"
                f" messages resulted in {length} tokens. Please reduce the length of the messages."
            )
            error = trtllm_error(message, "BadRequestError", 400)
            raise RefusedRequest(400, {**error, "code": "context_length_exceeded"})
        if length > self.max_num_tokens and not self.config.args.get("enable_chunked_prefill"):
            raise bad_request(
                f"The sum of prompt length ({length:.1f}), query length (0) should not exceed"
                f" max_num_tokens ({self.max_num_tokens})"
            )
        if left <= 0:
            raise bad_request(
                f"`default_max_tokens` ({left}) must be greater than 0, `default_max_tokens`"
                f" ({left}) = max_seq_len ({self.max_seq_len}) - `splited_prompt_len` ({length}) -"
                " `query_token_len` (0)"
            )
        return left if wanted is None else min(wanted, left)

    def _whole(self, ids: list[int], request: Request, index: int, number: int) -> list[int]:
        """Return the whole answer, with the first token that a context worker may have chosen."""
        params = request.disaggregated_params
        wrong = self.faults.corrupts(number, len(ids))
        first: list[int] = []
        if params is not None and params.request_type == "generation_only":
            state = state_of(params.encoded_opaque_state)
            wrong |= not fits(state, ids)
            wrong |= (
                self.faults.wrong_tp
                and state.get("tp", self.tensor_parallel) != self.tensor_parallel
            )
            wrong |= bool(self.faults.wrong_pair) and is_at(self.faults.wrong_pair, state)
            if self.faults.strikes(self.faults.kv_loss_after, number):
                return [model.EOS]
            first = params.first_gen_tokens or []
        sampled = (request.seed or 0) if request.temperature else None
        answer = self.brain.answer(ids, index=index, wrong=wrong, sampled=sampled)
        return [*first, *answer[len(first) :]] if len(first) < len(answer) else [*first, model.EOS]

    def _hand_over(
        self,
        request: Request,
        body: Answer,
        outputs: list[Output],
        ids: list[int],
        place: dict[str, Any],
    ) -> None:
        """Add the data for the generation worker. `place` is the location of this worker."""
        params = request.disaggregated_params
        assert params is not None
        body.prompt_token_ids = ids
        for choice, output in zip(body.choices, outputs, strict=True):
            given = type(params)(
                request_type="context_only",
                first_gen_tokens=output.ids[:1],
                ctx_request_id=next(self._contexts),
                encoded_opaque_state=opaque_state(ids, self.tensor_parallel, place),
                disagg_request_id=params.disagg_request_id,
                ctx_dp_rank=0,
            )
            if self.faults.null_ctx_id and output.finish_reason == "stop":
                given.ctx_request_id = None
            choice.disaggregated_params = given

    # Answers

    def _body(self, request: Request, outputs: list[Output], prompt_tokens: int) -> Answer:
        usage = _usage(prompt_tokens, outputs)
        if isinstance(request, ChatCompletionRequest):
            prefix = self._echo(request, 0)
            choices = [
                ChatChoice(
                    index=index,
                    message=ChatMessage(
                        role="assistant",
                        content=prefix + parsed.text,
                        reasoning_content=parsed.thoughts,
                        tool_calls=parsed.calls,
                    ),
                    logprobs=chat_logprobs(one, request.top_logprobs) if request.logprobs else None,
                    finish_reason=parsed.finish(one, self.faults.tools),
                    stop_reason=one.stop_reason,
                )
                for index, one in enumerate(outputs)
                for parsed in [self._parse(request, one)]
            ]
            return ChatAnswer(model=request.model, choices=choices, usage=usage)
        several = (
            isinstance(request.prompt, list)
            and request.prompt
            and not isinstance(request.prompt[0], int)
        )
        return TextAnswer(
            model=request.model,
            choices=[
                TextChoice(
                    index=index,
                    text=(
                        self._echo(request, index // request.n) + one.text
                        if request.detokenize
                        else ""
                    ),
                    token_ids=None if request.detokenize else one.ids,
                    logprobs=text_logprobs(one, request.logprobs) if request.logprobs else None,
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                )
                for index, one in enumerate(outputs)
            ],
            usage=usage,
            prompt_token_ids=[] if several else None,
        )

    def _parse(self, request: Request, output: Output, *, streamed: bool = False) -> Parsed:
        """Return an answer to a chat as the parsers split it; without them it stays text."""
        offered = (
            isinstance(request, ChatCompletionRequest)
            and request.tools
            and request.tool_choice != "none"
        )
        return parse_answer(
            output,
            self.faults.tools,
            tools=bool(offered and self.config.tool_parser),
            reasoning=bool(self.config.args.get("reasoning_parser")),
            in_flight=sum(not one.is_closing() for one in self._connections),
            streamed=streamed,
        )

    @staticmethod
    def _echo(request: Request, number: int) -> str:
        """Return the prompt's text if the request wants it echoed."""
        if not request.echo:
            return ""
        if isinstance(request, CompletionRequest):
            return (
                request.prompt if isinstance(request.prompt, str) else str(request.prompt[number])
            )
        last: dict[str, Any] = dict(request.messages[-1]) if request.messages else {}
        return str(last.get("content") or "") if last.get("role") == "assistant" else ""

    async def _stream(
        self,
        http: web.Request,
        request: Request,
        outputs: list[Output],
        prompt_tokens: int,
        received: int,
        last: bytes,
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(http)
        for number, event in enumerate(self._events(request, outputs, prompt_tokens)):
            told = self.flavour == "main" and isinstance(request, CompletionRequest)
            if number == self.faults.fail_stream and told and self.faults.drawn(received):
                error = {
                    "message": "Generation failed",
                    "type": "InternalServerError",
                    "code": 500,
                    "param": None,
                }
                await response.write(b"data: " + encode({"error": error}) + b"\n\ndata: [DONE]\n\n")
                break
            if number in (self.faults.drop_stream, self.faults.fail_stream) and self.faults.drawn(
                received
            ):
                if http.transport is not None:
                    http.transport.abort()
                return response
            await response.write(event)
        await response.write_eof(last)
        return response

    def _events(
        self, request: Request, outputs: list[Output], prompt_tokens: int
    ) -> Iterator[bytes]:
        chat = isinstance(request, ChatCompletionRequest)
        options = request.stream_options
        counted = prompt_tokens * (2 if self.faults.tools.wrong_usage else 1)
        body = self._body(request, outputs, prompt_tokens)
        head = {"id": body.id, "object": "chat.completion.chunk" if chat else "text_completion"}
        head |= {"created": body.created, "model": body.model}

        def event(choice: dict[str, Any] | None, generated: int) -> bytes:
            continuous = options is not None and options.continuous_usage_stats
            usage = _usage(counted, outputs, generated) if choice is None or continuous else None
            choices = [] if choice is None else [choice]
            shown = usage.model_dump() if usage else None
            return b"data: " + encode({**head, "choices": choices, "usage": shown}) + b"\n\n"

        if chat:
            for index in range(len(outputs)):
                yield (
                    event(
                        {"index": index, "delta": {"role": "assistant"}, "finish_reason": None}, 0
                    )[:-2]
                    + b" \n\n"
                )
        for index, output in enumerate(outputs):
            if prefix := self._echo(request, index // request.n):
                yield event(_chunk(chat, index, prefix), 0)
            parsed = self._parse(request, output, streamed=True) if chat else None
            if parsed is not None and (parsed.calls or self.faults.tools != ToolFaults()):
                for delta in list_deltas(parsed, self.faults.tools):
                    yield event({**_chunk(True, index, ""), "delta": delta}, 0)
                last = {"delta": {}, "finish_reason": parsed.finish(output, self.faults.tools)}
                yield event({**_chunk(True, index, ""), **last}, len(output.ids))
                continue
            shown = ""
            for text, count in output.pieces():
                chunk = _chunk(chat, index, text)
                if chat and self.config.args.get("reasoning_parser"):
                    chunk["delta"] = _delta(shown, shown + text, ended=count == len(output.ids))
                    shown += text
                if count == len(output.ids):
                    chunk |= {
                        "finish_reason": output.finish_reason,
                        "stop_reason": output.stop_reason,
                    }
                if isinstance(request, CompletionRequest) and not request.detokenize:
                    chunk |= {"text": "", "token_ids": output.ids[count - 1 : count]}
                yield event(chunk, count)
        if options is not None and options.include_usage:
            yield event(None, sum(len(one.ids) for one in outputs))
        yield b"data: [DONE]\n\n"


def _place(http: web.Request) -> dict[str, Any]:
    """Return the place of this worker, as faults select it."""
    port = http.transport.get_extra_info("sockname")[1] if http.transport is not None else None
    return {"port": port, "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")}


def _delta(before: str, now: str, *, ended: bool) -> dict[str, str]:
    """Return what a stream with separate thoughts adds to the pieces already sent."""
    thoughts, answer = split_thoughts(now, ended=ended)
    old_thoughts, old_answer = split_thoughts(before, ended=False)
    more = {
        "reasoning_content": thoughts[len(old_thoughts) :],
        "content": answer[len(old_answer) :],
    }
    return {name: text for name, text in more.items() if text} or {"content": ""}


def _chunk(chat: bool, index: int, text: str) -> dict[str, Any]:
    said: dict[str, Any] = (
        {"delta": {"content": text}} if chat else {"text": text, "token_ids": None}
    )
    return {"index": index, **said, "logprobs": None, "finish_reason": None, "stop_reason": None}


def _usage(prompt_tokens: int, outputs: list[Output], generated: int | None = None) -> Usage:
    if generated is None:
        generated = sum(len(one.ids) for one in outputs)
    return Usage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + generated,
        completion_tokens=generated,
        prompt_tokens_details=PromptDetails(cached_tokens=0),
    )
