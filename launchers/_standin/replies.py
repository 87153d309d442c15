"""Write the answers of a worker as strict models: whole bodies, and events of a stream."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from weakref import WeakSet

from pydantic import Field

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._standin.fields import (
    ChatCompletionRequest,
    CompletionRequest,
    DisaggregatedParams,
    MainDisaggregatedParams,
    Request,
    Strict,
)
from serve_eval.launchers._standin.generation import (
    OPEN,
    Output,
    Parsed,
    ToolFaults,
    chat_logprobs,
    force_call,
    list_deltas,
    parse_answer,
    split_thoughts,
    text_logprobs,
)
from serve_eval.launchers._standin.model import decode
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.worker_config import WorkerConfig


class Replies:
    """Writes answers as the parsers of a worker split them, and as `faults` break them.

    `opens` says whether the chat template of a request opened its thoughts.
    """

    def __init__(
        self,
        config: WorkerConfig,
        faults: ToolFaults,
        flavour: Flavour,
        *,
        opens: Callable[[Request], bool] = lambda request: False,
    ) -> None:
        self.config, self.faults, self._opens = config, faults, opens
        self.main = flavour == "main"
        # A client on the same cores is too slow to keep requests waiting; its connections show how
        # many it would send at a time.
        self.connections: WeakSet[asyncio.BaseTransport] = WeakSet()

    def body(
        self, request: Request, outputs: list[Output], prompt_tokens: int, cached: int = 0
    ) -> Answer:
        """Return the whole answer."""
        usage = _usage(prompt_tokens, outputs, cached=cached)
        if isinstance(request, ChatCompletionRequest):
            prefix = _echo(request, 0)
            choices = [
                ChatChoice(
                    index=index,
                    message=ChatMessage(
                        role="assistant",
                        content=prefix + parsed.text,
                        reasoning_content=parsed.thoughts,
                        tool_calls=parsed.calls,
                    ),
                    logprobs=_logprobs(request, one.ids),
                    finish_reason=parsed.finish(one, self.faults),
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
                        _echo(request, index // request.n) + one.text if request.detokenize else ""
                    ),
                    token_ids=None if request.detokenize else one.ids,
                    logprobs=_logprobs(request, one.ids),
                    finish_reason=one.finish_reason,
                    stop_reason=one.stop_reason,
                )
                for index, one in enumerate(outputs)
            ],
            usage=usage,
            prompt_token_ids=[] if several and (len(request.prompt) > 1 or not self.main) else None,
        )

    def _parse(self, request: Request, output: Output, *, streamed: bool = False) -> Parsed:
        """Return an answer to a chat as the parsers split it; without them it stays text."""
        offered = (
            isinstance(request, ChatCompletionRequest)
            and request.tools
            and request.tool_choice != "none"
        )
        named = _find_named_tool(request) if self.main else None
        if named is not None and not self.faults.ignores_choice:
            return force_call(output, named, self.faults)
        return parse_answer(
            output,
            self.faults,
            tools=bool(offered and self.config.tool_parser),
            reasoning=bool(self.config.args.get("reasoning_parser")),
            opened=self._opens(request),
            markup=self.main and bool(offered),
            in_flight=sum(not one.is_closing() for one in self.connections),
            streamed=streamed,
        )

    def events(
        self, request: Request, outputs: list[Output], prompt_tokens: int, cached: int = 0
    ) -> Iterator[bytes]:
        """Yield the events of a stream, with those that name the roles and the end."""
        chat = isinstance(request, ChatCompletionRequest)
        options = request.stream_options
        counted = prompt_tokens * (2 if self.faults.wrong_usage else 1)
        body = self.body(request, outputs, prompt_tokens)
        head: dict[str, Any] = {
            "id": body.id,
            "object": "chat.completion.chunk" if chat else "text_completion",
        }
        head |= {"created": body.created, "model": body.model}

        def event(choice: dict[str, Any] | None, generated: int) -> bytes:
            continuous = options is not None and options.continuous_usage_stats
            usage = (
                _usage(counted, outputs, generated, cached)
                if choice is None or continuous
                else None
            )
            choices = [] if choice is None else [self._event_choice(choice, chat=chat)]
            shown = usage.model_dump() if usage else None
            whole = {**head, "choices": choices, "usage": shown}
            if chat and self.main and shown is None:
                del whole["usage"]
            return b"data: " + encode(whole) + b"\n\n"

        if chat:
            for index in range(len(outputs)):
                opened = {"index": index, "delta": {"role": "assistant"}, "finish_reason": None}
                yield event(opened, 0)[:-2] + b" \n\n"
        for index, output in enumerate(outputs):
            for choice, generated in self._steps(request, index, output):
                yield event(choice, generated)
        if options is not None and options.include_usage:
            yield event(None, sum(len(one.ids) for one in outputs))
        yield b"data: [DONE]\n\n"

    def _event_choice(self, choice: dict[str, Any], *, chat: bool) -> dict[str, Any]:
        """Return a choice as it is sent: main leaves null fields of chats out, and has one more."""
        if not self.main:
            return choice
        if not chat:
            return {**choice, "avg_decoded_tokens_per_iter": None}
        return {name: value for name, value in choice.items() if value is not None}

    def _steps(
        self, request: Request, index: int, output: Output
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield the choices of an answer's stream, each with the tokens generated so far."""
        chat = isinstance(request, ChatCompletionRequest)
        if prefix := _echo(request, index // request.n):
            yield _chunk(chat, index, prefix), 0
        parsed = self._parse(request, output, streamed=True) if chat else None
        if parsed is not None and (parsed.calls or self.faults != ToolFaults()):
            for delta in list_deltas(parsed, self.faults):
                yield {**_chunk(True, index, ""), "delta": delta}, 0
            last = {"delta": {}, "finish_reason": parsed.finish(output, self.faults)}
            yield {**_chunk(True, index, ""), **last}, len(output.ids)
            return
        shown = OPEN if chat and self._opens(request) else ""
        sent, offset = 0, 0
        for text, count in output.pieces():
            chunk = _chunk(chat, index, text)
            if self.main:
                chunk["logprobs"] = _logprobs(request, output.ids[sent:count], offset)
                sent, offset = count, offset + len(decode(output.ids[sent:count]))
            ended = count == len(output.ids)
            if chat and self.config.args.get("reasoning_parser"):
                chunk["delta"] = _delta(shown, shown + text, ended=ended)
                shown += text
            if chat and self.main:
                chunk["delta"] = {"content": "", "reasoning_content": "", **chunk["delta"]}
            if ended:
                chunk |= {"finish_reason": output.finish_reason, "stop_reason": output.stop_reason}
            if isinstance(request, CompletionRequest) and not request.detokenize:
                chunk |= {"text": "", "token_ids": output.ids[count - 1 : count]}
            yield chunk, count


def _find_named_tool(request: Request) -> Mapping[str, Any] | None:
    """Return the tool that a request wants to be called."""
    choice = request.tool_choice if isinstance(request, ChatCompletionRequest) else None
    if choice is None or isinstance(choice, str):
        return None
    name = dict(choice)["function"]["name"]
    assert isinstance(request, ChatCompletionRequest)
    tools: list[Mapping[str, Any]] = [dict(tool.function) for tool in request.tools or ()]
    return next((tool for tool in tools if tool.get("name") == name), {"name": name})


def _logprobs(request: Request, ids: Sequence[int], at: int = 0) -> dict[str, Any] | None:
    """Return the log-probabilities that a request wants of these tokens."""
    if not request.logprobs:
        return None
    if isinstance(request, CompletionRequest):
        return text_logprobs(ids, max(1, request.logprobs), at)
    return chat_logprobs(ids, request.top_logprobs)


def _echo(request: Request, number: int) -> str:
    """Return the prompt's text if the request wants it echoed."""
    if not request.echo:
        return ""
    if isinstance(request, CompletionRequest):
        return request.prompt if isinstance(request.prompt, str) else str(request.prompt[number])
    last: dict[str, Any] = dict(request.messages[-1]) if request.messages else {}
    return str(last.get("content") or "") if last.get("role") == "assistant" else ""


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


def _usage(
    prompt_tokens: int, outputs: list[Output], generated: int | None = None, cached: int = 0
) -> AnswerUsage:
    if generated is None:
        generated = sum(len(one.ids) for one in outputs)
    return AnswerUsage(
        prompt_tokens=prompt_tokens,
        total_tokens=prompt_tokens + generated,
        completion_tokens=generated,
        prompt_tokens_details=PromptDetails(cached_tokens=cached),
    )


def _id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def _now() -> int:
    return int(time.time())


class PromptDetails(Strict):
    cached_tokens: int = 0


class AnswerUsage(Strict):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: PromptDetails | None = None


class TextChoice(Strict):
    index: int
    text: str
    token_ids: list[int] | None = None
    logprobs: dict[str, Any] | None = None
    context_logits: list[Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    disaggregated_params: DisaggregatedParams | MainDisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class TextAnswer(Strict):
    id: str = Field(default_factory=lambda: _id("cmpl"))
    object: Literal["text_completion"] = "text_completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[TextChoice]
    usage: AnswerUsage
    prompt_token_ids: list[int] | list[list[int]] | None = None


class ChatMessage(Strict):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[dict[str, Any]] = Field(default_factory=list)


class ChatChoice(Strict):
    index: int
    message: ChatMessage
    logprobs: dict[str, Any] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    mm_embedding_handle: dict[str, Any] | None = None
    disaggregated_params: DisaggregatedParams | MainDisaggregatedParams | None = None
    avg_decoded_tokens_per_iter: float | None = None


class ChatAnswer(Strict):
    id: str = Field(default_factory=lambda: _id("chatcmpl"))
    object: Literal["chat.completion"] = "chat.completion"
    created: int = Field(default_factory=_now)
    model: str
    choices: list[ChatChoice]
    usage: AnswerUsage
    prompt_token_ids: list[int] | None = None
    prompt_token_ids_b64: str | None = None


Answer = TextAnswer | ChatAnswer


def write(answer: Answer, flavour: Flavour) -> bytes:
    """Return the body of an answer; the 1.2 line does not know prompt_token_ids_b64."""
    if flavour == "main" or not isinstance(answer, ChatAnswer):
        return answer.model_dump_json().encode()
    return answer.model_dump_json(exclude={"prompt_token_ids_b64"}).encode()
