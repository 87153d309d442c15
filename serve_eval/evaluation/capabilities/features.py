"""Probe single features: media, tools, guided decoding, log-probabilities."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.questions import SGLANG, VLLM
from serve_eval.client.wire_format.logprobs import FIELDS
from serve_eval.client.wire_format.refusal import shorten
from serve_eval.evaluation.capabilities.probe_request import (
    HELP,
    WORD,
    describe_cut,
    ping,
    send_probe,
    send_with_room,
)
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.schema import (
    Ability,
    Failure,
    ImagePart,
    ImageUrl,
    MediaPart,
    Message,
    Need,
    PromptLogprobs,
    Response,
    TextPart,
)
from serve_eval.schema.media import media_kind
from serve_eval.scorers.likelihood import continuation, is_whole

TOOL = "write_down"


async def images(client: Client) -> Ability:
    """Check that an image is accepted and adds tokens to its prompt."""
    return await media(client, Need.IMAGES, ImagePart(image_url=ImageUrl(url=_png(64))))


async def media(client: Client, need: Need, part: MediaPart) -> Ability:
    """Check that a medium is accepted and adds tokens to its prompt."""
    question, kind = TextPart(text="What is this?"), media_kind(part)
    without = await send_probe(client, (Message(role="user", content=(question,)),))
    result = await send_probe(client, (Message(role="user", content=(part, question)),))
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=result.message, help=HELP[need])
    tokens = result.usage.prompt_tokens
    bare = without.usage.prompt_tokens if isinstance(without, Response) else 0
    if not tokens or not bare:
        return Ability(need=need, works=None, seen="answered, but no tokens were counted")
    if tokens <= bare:
        seen = f"the {kind} was ignored: {tokens} tokens with it, {bare} without"
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    article = "an" if kind == "image" else "a"
    return Ability(need=need, works=True, seen=f"{article} {kind} took {tokens - bare} tokens")


def _png(side: int) -> str:
    """Return a red square as a data URL; some models refuse smaller ones."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = (b"\0" + b"\xff\0\0" * side) * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows, 9))
        + chunk(b"IEND", b"")
    )
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


async def tools(client: Client) -> Ability:
    """Check that an answer to a question that asks for a tool calls it.

    If it does not, the prompt's token count shows if the server saw the tool at all.
    """
    need, question = (
        Need.TOOLS,
        f"Call the tool {TOOL} once, with the word {WORD}. Say nothing else.",
    )
    schema = {
        "type": "object",
        "properties": {"word": {"type": "string", "enum": [WORD]}},
        "required": ["word"],
    }
    function = {"name": TOOL, "description": "Writes a word down.", "parameters": schema}
    prompt = (Message(role="user", content=question),)
    extra = {"tools": [{"type": "function", "function": function}]}
    result = await send_with_room(client, prompt, max_tokens=256, extra=extra)
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=result.message, help=HELP[need])
    if any(call.name == TOOL for call in result.tool_calls):
        return Ability(need=need, works=True, seen="a tool was called")
    if result.truncated:
        return Ability(need=need, works=None, seen=describe_cut(result))
    if TOOL in result.text and WORD in result.text and "{" in result.text:
        seen = f"the call came as text: {result.text[:80]!r}"
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    bare = await send_probe(client, prompt, max_tokens=1)
    tokens, without = (
        result.usage.prompt_tokens,
        bare.usage.prompt_tokens if isinstance(bare, Response) else 0,
    )
    if tokens and without and tokens <= without:
        seen = f"the tool was ignored: {tokens} tokens with it, {without} without"
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=None, seen=f"answered without a call: {result.text[:80]!r}")


async def tokens_per_step(client: Client, *, chat: bool) -> Ability:
    """Check that answers report the tokens per engine step, which measure speculative decoding."""
    need, result = Need.TOKENS_PER_STEP, await send_probe(client, ping(chat), max_tokens=8)
    told = result.tokens_per_step if isinstance(result, Response) else None
    if told is None:
        seen = (
            result.message
            if isinstance(result, Failure)
            else "an answer without avg_decoded_tokens_per_iter"
        )
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=True, seen=f"{told:g} in a short answer")


FIELD = "response_format"
"""The field of a request with the schema, and the task option that chooses its form."""
TOKENS = 256
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
FORMS: Mapping[str, Mapping[str, object]] = {
    "json": {"type": "json", "schema": SCHEMA},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "probe", "schema": SCHEMA}},
}
"""The form of trtllm-serve, which vLLM refuses, and OpenAI's."""
_BLANK = re.compile(r"\s{32,}")
_COMPACT = '--structured-outputs-config \'{"backend":"xgrammar","disable_any_whitespace":true}\''


async def probe_guided_decoding(client: Client, prepared: PreparedTask) -> Ability:
    """Check that an answer follows a schema that its question does not mention.

    The schema is sent in the form that the task uses. If that fails, the ability says whether the
    other form works: the form is part of the protocol, so only the user may change it.
    """
    need = Need.GUIDED_DECODING
    form = request_of(prepared.task, prepared.dataset.samples[0]).extra.get(FIELD)
    if not isinstance(form, Mapping):
        return Ability(need=need, works=None, seen=f"not probed: the task sends no {FIELD}")
    own = "json_schema" if form.get("type") == "json_schema" else "json"
    found = await _try_form(client, own, chat=prepared.chat)
    if found.works is not False:
        return found
    other = "json" if own == "json_schema" else "json_schema"
    tried = await _try_form(client, other, chat=prepared.chat)
    if tried.works is False:
        return replace(found, seen=f"{found.seen}. The form {other}: {tried.seen}")
    works = "works" if tried.works else "is accepted"
    return replace(
        found,
        seen=f"{FIELD} {own}: {found.seen}. The form {other} {works}: {tried.seen}",
        help=" ".join(filter(None, (_choose(prepared, other), tried.help))),
    )


def _choose(prepared: PreparedTask, form: str) -> str:
    """Return how to send another form."""
    if FIELD not in prepared.task.protocol:
        return f"Send the schema in the form {form}."
    return (
        f"Use --set {prepared.task.name}.{FIELD}={form}. The form is part of the protocol: a"
        f" reference then needs --allow-mismatch {FIELD}."
    )


async def _try_form(client: Client, form: str, *, chat: bool) -> Ability:
    need, extra = Need.GUIDED_DECODING, {FIELD: FORMS[form]}
    result = await send_with_room(client, ping(chat), max_tokens=TOKENS, extra=extra)
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=shorten(result.message), help=HELP[need])
    try:
        followed = msgspec.json.decode(result.text) == {"word": WORD}
    except msgspec.DecodeError:
        followed = False
    if followed:
        return Ability(need=need, works=True, seen="a schema was followed")
    if result.truncated and is_blank_json(result.text):
        server = (await client.describe()).get("server")
        return Ability(need=need, works=None, seen=SEEN_BLANK, help=end_of_blanks(server))
    if result.truncated:
        return Ability(need=need, works=None, seen=describe_cut(result))
    seen = f"the schema was ignored: {result.text[:80]!r}"
    return Ability(need=need, works=False, seen=seen, help=HELP[need])


SEEN_BLANK = "the model wrote white space within the JSON until max_tokens"


def is_blank_json(text: str) -> bool:
    """Return True if a cut-off answer is JSON with a long run of white space in it or after it."""
    begun = text.lstrip()
    return begun[:1] in ("", "{", "[") and _BLANK.search(text) is not None


def end_of_blanks(server: object) -> str:
    """Return what ends white space that a schema allows. `server` is its kind, None if unknown."""
    if server in (None, VLLM):
        return f"To forbid white space, start vLLM with {_COMPACT}."
    if server == SGLANG:
        return "To forbid white space, start SGLang with --constrained-json-disable-any-whitespace."
    return "The schema allows it, so only max_tokens ends it."


def warn_of_guided_decoding(abilities: list[Ability]) -> list[str]:
    """Return a warning for answers that will be cut, though the task can be asked."""
    return [
        f"guided decoding: {one.seen}. {one.help}"
        for one in abilities
        if one.need == Need.GUIDED_DECODING and one.works is None and one.help
    ]


PREFIX = "prefix"
"""The field of a protocol that names the token before a text."""
TEXT = "The quick brown fox jumps over the lazy dog."
LIKELIEST = 8
"""Tokens that the model generates and then scores."""


async def prompt_logprobs(client: Client) -> tuple[Ability, PromptLogprobs | None]:
    """Find the first form that returns every token of a short text with its log-probability.

    Return the ability and the log-probabilities.
    """
    need, seen = Need.PROMPT_LOGPROBS, []
    for form in FIELDS:
        client.logprobs_form = form
        result = await send_probe(client, TEXT, prompt_logprobs=True)
        if isinstance(result, Response) and result.prompt_logprobs is not None:
            if misplaced := await _find_misplaced(client):
                seen.append(f"{form}: {misplaced}")
                continue
            told = result.prompt_logprobs
            counted = f"{form}: {len(told.values)} of {result.usage.prompt_tokens} tokens"
            places = "without" if told.offsets is None else "with"
            return Ability(need=need, works=True, seen=f"{counted}, {places} places"), told
        seen.append(f"{form}: {result.message if isinstance(result, Failure) else 'nothing'}")
    return Ability(need=need, works=False, seen="; ".join(seen), help=HELP[need]), None


async def first_token(client: Client, extra: Mapping[str, object]) -> Ability:
    """Check if the first token of a text has a log-probability.

    It has one if the server puts its own token before a text. Call this after `prompt_logprobs`.
    `extra` are the fields that a task adds, which may forbid that token.
    """
    need, result = (
        Need.FIRST_TOKEN,
        await send_probe(client, TEXT, prompt_logprobs=True, extra=extra),
    )
    told = result.prompt_logprobs if isinstance(result, Response) else None
    if told is None or not is_whole(told, TEXT):
        seen = (
            result.message
            if isinstance(result, Failure)
            else "the server puts no token before a text"
        )
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=True, seen="the server puts a token of its own before a text")


async def is_one_token(client: Client, text: str, extra: Mapping[str, object]) -> bool:
    """Return True if the server reads a text, such as <s>, as one token before another text."""
    results = [
        await send_probe(client, one, prompt_logprobs=True, extra=extra)
        for one in (TEXT, text + TEXT)
    ]
    counts = [
        len(told.values) + told.skipped
        for result in results
        if isinstance(result, Response) and (told := result.prompt_logprobs) is not None
    ]
    return len(counts) == 2 and counts[1] == counts[0] + 1


async def _find_misplaced(client: Client) -> str:
    """Return the evidence that log-probabilities are at wrong tokens; empty if there is none."""
    said = await send_probe(client, TEXT, max_tokens=LIKELIEST)
    if isinstance(said, Failure) or not said.text.strip():
        return ""
    weighed = await send_probe(client, TEXT + said.text, prompt_logprobs=True)
    told = weighed.prompt_logprobs if isinstance(weighed, Response) else None
    return "" if told is None else find_misplaced(told)


def find_misplaced(told: PromptLogprobs) -> str:
    """Return the evidence that these log-probabilities are at wrong tokens; empty if there is none.

    They are those of TEXT followed by the model's own continuation. The generated token is the
    likeliest one at every position, and must stay so when it is scored. llama-cpp-python gives each
    token the position of the next token if the tokenizer puts no token before a text.
    """
    if told.likeliest is None or told.offsets is None:
        return ""
    own = [mark for mark, at in zip(told.likeliest, told.offsets, strict=True) if at >= len(TEXT)]
    if len(own) < LIKELIEST // 2 or 2 * own.count("1") >= len(own):
        return ""
    return (
        f"of {len(own)} tokens generated by the model, only {own.count('1')} are the likeliest at"
        " their position"
    )


def continuation_logprobs(told: PromptLogprobs) -> Ability:
    """Check that the last word of the short text can be separated from what precedes it."""
    need, values = Need.CONTINUATION_LOGPROBS, continuation(told, TEXT, TEXT.rindex(" "))
    if values is None:
        seen = "neither the texts of the tokens nor their places"
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=True, seen=f"{len(values)} of {len(told.values)} tokens")


def likeliest_tokens(told: PromptLogprobs) -> Ability:
    """Check that the response reports what greedy decoding would have written."""
    need = Need.LIKELIEST_TOKENS
    if told.likeliest is None:
        return Ability(
            need=need,
            works=False,
            seen="neither top_logprobs nor the rank of a token",
            help=HELP[need],
        )
    return Ability(
        need=need, works=True, seen=f"{told.likeliest.count('1')} of {len(told.values)} tokens"
    )
