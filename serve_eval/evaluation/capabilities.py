"""Can the endpoint do what the tasks need? Found out by a handful of tiny requests before anything else is sent.

A server that does not know a field often ignores it in silence, and a task would then be scored at chance level. So a
probe looks at what came back, not only at the status. What an endpoint cannot do is an outcome of its own.
"""

from __future__ import annotations

import asyncio
import base64
import re
import struct
import zlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.preflight import PING, refuse, trial
from serve_eval.client.wire_format.logprobs import FIELDS
from serve_eval.errors import EndpointError
from serve_eval.evaluation.engine.request import request_of
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.schema import (
    Ability,
    Failure,
    FailureKind,
    ImagePart,
    ImageUrl,
    Message,
    Need,
    Prompt,
    PromptLogprobs,
    Request,
    Response,
    SamplingParams,
    TextPart,
)
from serve_eval.scorers.likelihood import continuation, is_whole

CONTEXT = "context length"
"""The need that is a number of tokens."""
PREFIX = "prefix"
"""The field of a protocol that names the token before a text."""
TEXT = "The quick brown fox jumps over the lazy dog."
WORD = "violet"
"""What guided decoding has to say to a question that it does not answer, and a tool is to be called with."""
TOOL = "write_down"
_LONGER = "Serve the model with a longer context, or ask for shorter answers (max_tokens)."
LIKELIEST = 8
"""Tokens that the model says and weighs."""
CONTEXT_S = 60.0
"""How long the probe of the context length may take; a server that takes it at its word would generate on."""

_NO_ROUTE = frozenset({404, 405, 501})
_CONTEXT = re.compile(
    r"(?:maximum context length|max_model_len|max_seq_len|context (?:length|window|size))\D{0,40}?(\d{2,})",
    re.IGNORECASE,
)
_HELP: Mapping[Need, str] = {
    Need.COMPLETIONS: "Ask by chat (apply_chat_template: true), or serve /v1/completions.",
    Need.CHAT: "Serve the model with its chat template, or ask with apply_chat_template: false where the task can.",
    Need.PROMPT_LOGPROBS: "Serve the model with one that has echo with logprobs, or prompt_logprobs, such as vLLM: "
    "trtllm-serve has neither over HTTP.",
    Need.CONTINUATION_LOGPROBS: "Serve the model with one that tells the tokens or the text_offset of a prompt.",
    Need.FIRST_TOKEN: "Say what begins a text, --set TASK.prefix='<s>', or name the folder of the model's tokenizer: "
    "--set TASK.tokenizer=DIR.",
    Need.LIKELIEST_TOKENS: "Serve the model with one that gives top_logprobs of a prompt, or the rank of its tokens.",
    Need.IMAGES: "Serve a model that takes images.",
    Need.GUIDED_DECODING: "Start the server with a guided decoding backend (trtllm-serve: guided_decoding_backend).",
    Need.TOOLS: "Start the server with a tool parser that fits the model (trtllm-serve: --tool_parser; vLLM: "
    "--enable-auto-tool-choice --tool-call-parser).",
    Need.TOKENS_PER_STEP: "Ask a server that reports avg_decoded_tokens_per_iter, as trtllm-serve does.",
}


async def probe(client: Client, prepared: Sequence[PreparedTask]) -> tuple[list[Ability], dict[str, Ability]]:
    """Find out what the endpoint can do of what these tasks need, and by task the first thing that it cannot.

    One short request per kind of request comes first. Sets `client.logprobs_form`. Raises EndpointError when no task
    could be asked at all: nothing answers, the key or the model is refused, or a field that the tasks send.
    """
    found: dict[str, Ability] = {}
    for chat in sorted({p.chat for p in prepared}):
        ability = await _route(client, chat, [p for p in prepared if p.chat == chat])
        found[ability.need] = ability
    reached = [p for p in prepared if found[_kind(p)].works]
    chat = Need.CHAT in found and found[Need.CHAT].works is True
    needs = {need for p in reached for need in p.needs}
    if Need.PROMPT_LOGPROBS in needs:
        found |= await _logprobs(client, reached, needs)
    if Need.IMAGES in needs:
        found[Need.IMAGES] = await _images(client)
    if Need.GUIDED_DECODING in needs:
        found[Need.GUIDED_DECODING] = await _guided(client, next(p for p in reached if Need.GUIDED_DECODING in p.needs))
    if Need.TOOLS in needs:
        found[Need.TOOLS] = await _tools(client)
    if Need.TOKENS_PER_STEP in needs:
        found[Need.TOKENS_PER_STEP] = await _tokens_per_step(client, chat=chat)
    longest = max((p.task.context_tokens or 0 for p in reached), default=0)
    limit = await _context(client, longest, chat=chat) if longest else None
    lacking = {p.task.name: lacks for p in prepared if (lacks := _first_lacking(p, found, limit)) is not None}
    if longest:
        told = "not told" if limit is None else f"{limit} tokens"
        found[CONTEXT] = Ability(need=CONTEXT, works=None if limit is None else limit >= longest, seen=told)
    return list(found.values()), lacking


async def _logprobs(client: Client, reached: Sequence[PreparedTask], needs: Set[str]) -> dict[str, Ability]:
    """Find out what the endpoint tells of the tokens of a prompt."""
    found: dict[str, Ability] = {}
    found[Need.PROMPT_LOGPROBS], logprobs = await prompt_logprobs(client)
    if logprobs is None:
        return found
    if Need.CONTINUATION_LOGPROBS in needs:
        found[Need.CONTINUATION_LOGPROBS] = _continuation_logprobs(logprobs)
    if Need.LIKELIEST_TOKENS in needs:
        found[Need.LIKELIEST_TOKENS] = _likeliest_tokens(logprobs)
    if begun := [p for p in reached if p.task.prompt_logprobs and PREFIX in p.task.protocol]:
        found[Need.FIRST_TOKEN] = await first_token(client, begun[0].task.extra)
    return found


def _first_lacking(p: PreparedTask, found: Mapping[str, Ability], limit: int | None) -> Ability | None:
    """Return the first thing that a task needs and the endpoint cannot do. `limit` is how many tokens it takes."""
    lacks = [found[need] for need in sorted(p.needs) if need in found and found[need].works is False]
    if (wanted := p.task.context_tokens) is not None and limit is not None and limit < wanted:
        seen = f"the endpoint takes {limit} tokens, and the longest prompt with its answer has {wanted}"
        lacks.append(Ability(need=CONTEXT, works=False, seen=seen, help=_LONGER))
    return lacks[0] if lacks else None


def _kind(p: PreparedTask) -> Need:
    return Need.CHAT if p.chat else Need.COMPLETIONS


async def _route(client: Client, chat: bool, alike: Sequence[PreparedTask]) -> Ability:
    """Whether one kind of request is answered. Only where the endpoint answers the other kind is this one said to be
    lacking: else the address or the model is wrong."""
    need = Need.CHAT if chat else Need.COMPLETIONS
    extra = {name: value for p in alike for name, value in p.task.extra.items()}
    sampling = replace(alike[0].task.sampling, max_tokens=2)
    failure = await trial(client, chat=chat, sampling=sampling, extra=extra)
    if failure is None:
        return Ability(need=need, works=True, seen="answers a short request")
    no_template = chat and failure.status is not None and "chat template" in failure.message.lower().replace("_", " ")
    if failure.status not in _NO_ROUTE and not no_template:
        await refuse(client, failure, chat=chat, extra=extra)
    if await trial(client, chat=not chat, sampling=SamplingParams(max_tokens=2), extra={}) is not None:
        await refuse(client, failure, chat=chat, extra=extra)
    return Ability(need=need, works=False, seen=failure.message, help=_HELP[need])


async def _sent(client: Client, prompt: Prompt, **more: Any) -> Response | Failure:
    """One request that is no sample. What may have passed is tried again; what holds no answer is not.

    Raises EndpointError when nothing answers any more.
    """
    max_tokens, extra = more.pop("max_tokens", 2), more.pop("extra", {})
    sampling = SamplingParams(max_tokens=max_tokens, stop=more.pop("stop", ()))
    request = Request(sample_id="probe", prompt=prompt, sampling=sampling, extra=extra, **more)
    result = await client.send(request, once=True)
    if isinstance(result, Failure) and result.retryable and result.kind is not FailureKind.INVALID_RESPONSE:
        result = await client.send(request)
    if isinstance(result, Failure) and result.kind in (FailureKind.TIMEOUT, FailureKind.DISCONNECTED):
        raise EndpointError(f"the endpoint stopped answering while it was probed: {result.message}")
    return result


async def prompt_logprobs(client: Client) -> tuple[Ability, PromptLogprobs | None]:
    """The first form in which every token of a short text comes back with its log-probability, and what came."""
    need, seen = Need.PROMPT_LOGPROBS, []
    for form in FIELDS:
        client.logprobs_form = form
        result = await _sent(client, TEXT, prompt_logprobs=True)
        if isinstance(result, Response) and result.prompt_logprobs is not None:
            if misplaced := await _misplaced(client):
                seen.append(f"{form}: {misplaced}")
                continue
            told = result.prompt_logprobs
            counted = f"{form}: {len(told.values)} of {result.usage.prompt_tokens} tokens"
            places = "without" if told.offsets is None else "with"
            return Ability(need=need, works=True, seen=f"{counted}, {places} places"), told
        seen.append(f"{form}: {result.message if isinstance(result, Failure) else 'nothing'}")
    return Ability(need=need, works=False, seen="; ".join(seen), help=_HELP[need]), None


async def first_token(client: Client, extra: Mapping[str, object]) -> Ability:
    """Find out if the first token of a text has a log-probability, since the server puts a token of its own before
    it. Comes after `prompt_logprobs`. `extra` are the fields that a task adds, which may forbid that token."""
    need, result = Need.FIRST_TOKEN, await _sent(client, TEXT, prompt_logprobs=True, extra=extra)
    told = result.prompt_logprobs if isinstance(result, Response) else None
    if told is None or not is_whole(told, TEXT):
        seen = result.message if isinstance(result, Failure) else "the server puts no token before a text"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    return Ability(need=need, works=True, seen="the server puts a token of its own before a text")


async def is_one_token(client: Client, text: str, extra: Mapping[str, object]) -> bool:
    """Tell if the server takes a text, such as <s>, for one token where it stands before another text."""
    results = [await _sent(client, one, prompt_logprobs=True, extra=extra) for one in (TEXT, text + TEXT)]
    counts = [
        len(told.values) + told.skipped
        for result in results
        if isinstance(result, Response) and (told := result.prompt_logprobs) is not None
    ]
    return len(counts) == 2 and counts[1] == counts[0] + 1


async def _misplaced(client: Client) -> str:
    """What shows that the log-probabilities stand at wrong tokens; nothing where nothing does."""
    said = await _sent(client, TEXT, max_tokens=LIKELIEST)
    if isinstance(said, Failure) or not said.text.strip():
        return ""
    weighed = await _sent(client, TEXT + said.text, prompt_logprobs=True)
    told = weighed.prompt_logprobs if isinstance(weighed, Response) else None
    return "" if told is None else misplaced(told)


def misplaced(told: PromptLogprobs) -> str:
    """What shows that these log-probabilities, of TEXT and what the model itself says next, stand at wrong tokens;
    nothing where nothing does.

    What the model says is the likeliest token at every place, and has to be so when it is weighed. llama-cpp-python
    gives each token the place behind its own where the tokenizer puts no token before a text.
    """
    if told.likeliest is None or told.offsets is None:
        return ""
    own = [mark for mark, at in zip(told.likeliest, told.offsets, strict=True) if at >= len(TEXT)]
    if len(own) < LIKELIEST // 2 or 2 * own.count("1") >= len(own):
        return ""
    return f"of {len(own)} tokens that the model says itself only {own.count('1')} are the likeliest at their place"


def _continuation_logprobs(told: PromptLogprobs) -> Ability:
    """Whether the last word of the short text can be told from what stands before it."""
    need, values = Need.CONTINUATION_LOGPROBS, continuation(told, TEXT, TEXT.rindex(" "))
    if values is None:
        seen = "neither the texts of the tokens nor their places"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    return Ability(need=need, works=True, seen=f"{len(values)} of {len(told.values)} tokens")


def _likeliest_tokens(told: PromptLogprobs) -> Ability:
    """Whether it can be told what greedy decoding would have written."""
    need = Need.LIKELIEST_TOKENS
    if told.likeliest is None:
        return Ability(need=need, works=False, seen="neither top_logprobs nor the rank of a token", help=_HELP[need])
    return Ability(need=need, works=True, seen=f"{told.likeliest.count('1')} of {len(told.values)} tokens")


async def _images(client: Client) -> Ability:
    """Whether an image is taken, and adds to the tokens of its prompt."""
    need, question = Need.IMAGES, TextPart(text="Which colour is this?")
    picture = ImagePart(image_url=ImageUrl(url=_png(64)))
    without = await _sent(client, (Message(role="user", content=(question,)),))
    result = await _sent(client, (Message(role="user", content=(picture, question)),))
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=result.message, help=_HELP[need])
    tokens = result.usage.prompt_tokens
    bare = without.usage.prompt_tokens if isinstance(without, Response) else 0
    if not tokens or not bare:
        return Ability(need=need, works=None, seen="answered, but no tokens were counted")
    if tokens <= bare:
        seen = f"the image was ignored: {tokens} tokens with it, {bare} without"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    return Ability(need=need, works=True, seen=f"an image took {tokens - bare} tokens")


def _png(side: int) -> str:
    """A red square as a data URL; smaller ones are refused by some models."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + b"\xff\0\0" * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


async def _guided(client: Client, p: PreparedTask) -> Ability:
    """Whether an answer follows a schema that its question does not ask for, in the form that the task sends."""
    need = Need.GUIDED_DECODING
    form = request_of(p.task, p.dataset.samples[0]).extra.get("response_format")
    if not isinstance(form, Mapping):
        return Ability(need=need, works=None, seen="not probed: the task sends no response_format")
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string", "enum": [WORD]}},
        "required": ["word"],
        "additionalProperties": False,
    }
    if form.get("type") == "json_schema":
        sent = {"type": "json_schema", "json_schema": {"name": "probe", "schema": schema}}
    else:
        sent = {"type": "json", "schema": schema}
    result = await _sent(client, _ping(p.chat), max_tokens=256, extra={"response_format": sent})
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=result.message, help=_HELP[need])
    try:
        followed = msgspec.json.decode(result.text) == {"word": WORD}
    except msgspec.DecodeError:
        followed = False
    if followed:
        return Ability(need=need, works=True, seen="a schema was followed")
    if result.truncated:
        return Ability(need=need, works=None, seen="the answer was cut before it could tell")
    return Ability(need=need, works=False, seen=f"the schema was ignored: {result.text[:80]!r}", help=_HELP[need])


async def _tools(client: Client) -> Ability:
    """Whether an answer to a question that asks for a tool calls it. Where it does not, the tokens of the prompt tell
    whether the tool was seen at all."""
    need, question = Need.TOOLS, f"Call the tool {TOOL} once, with the word {WORD}. Say nothing else."
    schema = {"type": "object", "properties": {"word": {"type": "string", "enum": [WORD]}}, "required": ["word"]}
    function = {"name": TOOL, "description": "Writes a word down.", "parameters": schema}
    prompt = (Message(role="user", content=question),)
    extra = {"tools": [{"type": "function", "function": function}]}
    result = await _sent(client, prompt, max_tokens=256, extra=extra)
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=result.message, help=_HELP[need])
    if any(call.name == TOOL for call in result.tool_calls):
        return Ability(need=need, works=True, seen="a tool was called")
    if result.truncated:
        return Ability(need=need, works=None, seen="the answer was cut before it could tell")
    if TOOL in result.text and WORD in result.text and "{" in result.text:
        seen = f"the call came as text: {result.text[:80]!r}"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    bare = await _sent(client, prompt, max_tokens=1)
    tokens, without = result.usage.prompt_tokens, bare.usage.prompt_tokens if isinstance(bare, Response) else 0
    if tokens and without and tokens <= without:
        seen = f"the tool was ignored: {tokens} tokens with it, {without} without"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    return Ability(need=need, works=None, seen=f"answered without a call: {result.text[:80]!r}")


async def _tokens_per_step(client: Client, *, chat: bool) -> Ability:
    """Whether answers say how many tokens a step of the engine gave, which speculative decoding is judged by."""
    need, result = Need.TOKENS_PER_STEP, await _sent(client, _ping(chat), max_tokens=8)
    told = result.tokens_per_step if isinstance(result, Response) else None
    if told is None:
        seen = result.message if isinstance(result, Failure) else "an answer without avg_decoded_tokens_per_iter"
        return Ability(need=need, works=False, seen=seen, help=_HELP[need])
    return Ability(need=need, works=True, seen=f"{told:g} in a short answer")


def _ping(chat: bool) -> Prompt:
    return (Message(role="user", content=PING),) if chat else PING


async def _context(client: Client, wanted: int, *, chat: bool) -> int | None:
    """The context length in tokens, as far as the endpoint tells it: in /v1/models, or in refusing an answer of
    `wanted` tokens. A stop string ends that answer at once where it is not refused."""
    if (told := await client.context_tokens()) is not None:
        return told
    try:
        async with asyncio.timeout(CONTEXT_S):
            result = await _sent(client, _ping(chat), max_tokens=wanted, stop=(" ", "\n", "2", "."))
    except TimeoutError:
        return None
    if isinstance(result, Failure) and result.status in (400, 413, 422, 500):
        numbers = [int(number) for number in _CONTEXT.findall(result.message)]
        return min(numbers) if numbers else None
    return None


def reason(ability: Ability) -> str:
    """Why a task was not asked, in a line."""
    return f"unsupported: the endpoint lacks {ability.need}: {ability.seen}. {ability.help}".rstrip()
