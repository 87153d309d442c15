"""Probe single features: images, tools, and reports of speculative decoding."""

from __future__ import annotations

import base64
import struct
import zlib

from serve_eval.client.client import Client
from serve_eval.evaluation.capabilities.probe_request import (
    HELP,
    WORD,
    describe_cut,
    ping,
    send_probe,
    send_with_room,
)
from serve_eval.schema import (
    Ability,
    Failure,
    ImagePart,
    ImageUrl,
    MediaPart,
    Message,
    Need,
    Response,
    TextPart,
)
from serve_eval.schema.media import media_kind

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
