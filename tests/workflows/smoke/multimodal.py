"""The eyes and ears of the endpoint of the tests: it takes media, or has one fault with them."""

import msgspec

from serve_eval.datasets.small_media import dot, number, shape
from serve_eval.launchers._http.requests import RefusedRequest
from serve_eval.launchers._simulated.media import accept_media
from serve_eval.launchers._simulated.simulator import SimulatorConfig
from serve_eval.schema import Message
from serve_eval.schema.media import media_sha256
from tests.scripted_server import fail, json_reply

TOKENS = 64
LARGE_BYTES = 10_000_000
SEEN = {
    media_sha256(shape()): "A red circle.",
    media_sha256(number()): "seven",
    media_sha256(dot()): "Right.",
}
"""The right reply about each of the small media."""


def split(body):
    """Return the media of a request, and the request with texts in place of parts."""
    messages = body.get("messages")
    if not messages or all(isinstance(turn.get("content"), str | None) for turn in messages):
        return [], dict(body)
    turns = msgspec.convert(messages, tuple[Message, ...])
    texts = [{"role": turn.role, "content": turn.text} for turn in turns]
    return [part for turn in turns for part in turn.media], {**body, "messages": texts}


def refuse(media, has, size):
    """Return the refusal of media, or None if they are taken."""
    if not media or has("ignores_media"):
        return None
    if has("no_media"):
        return fail(400, "this is not a multimodal model")
    if has("no_media_500"):
        return fail(500, "image input is not supported - hint: provide the mmproj")
    if has("media_500"):
        return fail(500, "Internal Server Error")
    if size > LARGE_BYTES and has("large_413"):
        return json_reply({"error": {"message": "Request Entity Too Large"}}, 413)
    if size > LARGE_BYTES and has("large_500"):
        return fail(500, "Internal Server Error")
    try:
        accept_media((Message(role="user", content=tuple(media)),), SimulatorConfig())
    except RefusedRequest as refused:
        truncated = "truncated" in str(refused.body)
        if has("takes_texts") and not truncated:
            return None
        if (has("reads_halves") or has("ignores_halves")) and truncated:
            return None
        if (has("texts_500") and not truncated) or (has("halves_500") and truncated):
            return fail(500, "Internal Server Error")
        return json_reply(refused.body, refused.status)
    return None


def count_tokens(media, has):
    """Return the prompt tokens of media."""
    whole = [part for part in media if media_sha256(part) in SEEN]
    return 0 if has("ignores_media") else TOKENS * len(whole if has("ignores_halves") else media)


def answer(media, has):
    """Return what is seen or heard, or None."""
    if not media or has("ignores_media"):
        return None
    return "I cannot tell." if has("blind") else SEEN.get(media_sha256(media[0]))
