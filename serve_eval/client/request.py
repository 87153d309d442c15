"""Make the ids, the headers and the body of requests, with media read at that time."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec
from msgspec import UNSET

import serve_eval
from serve_eval.client.transport import REQUEST_ID
from serve_eval.client.wire_format import wire
from serve_eval.client.wire_format.wire import NeutralFields
from serve_eval.errors import PlanError
from serve_eval.schema import (
    MediaFile,
    MediaPart,
    Message,
    Prompt,
    Request,
    Route,
    SamplingParams,
    SendMedia,
    TextPart,
)
from serve_eval.schema.media import inline, link

_quote = msgspec.json.Encoder().encode


class _Kind(NamedTuple):
    """The objects that decide all fields of a text request but its prompt, compared by identity."""

    sampling: SamplingParams
    extra: Mapping[str, object]
    neutral: NeutralFields
    stream: bool


class RequestEncoder:
    """Encodes the requests of a client to its model.

    `neutral` are the fields that requests get which lack them, once a probe has found them.
    """

    def __init__(
        self,
        model: str,
        max_tokens_field: str,
        send_media: SendMedia,
        chat_route: Route = Route.CHAT,
    ) -> None:
        self._model, self._max_tokens_field, self._send_media = model, max_tokens_field, send_media
        self._chat_route = chat_route
        self.neutral = NeutralFields()
        self._kind: _Kind | None = None
        self._seen_twice = False
        self._around: tuple[bytes, bytes] | None = None

    async def encode(
        self, request: Request, *, stream: bool = False, over: Mapping[str, object] | None = None
    ) -> bytes:
        """Return the JSON body of a request; fields of `over` replace any other.

        Media files are read in a thread. Raises DatasetError if one is missing or has changed.
        """
        body = self.encode_at_once(request, stream=stream, over=over)
        if body is not None:
            return body
        return await asyncio.to_thread(
            lambda: self._encode(put_media(request, self._send_media), stream, over)
        )

    def encode_at_once(
        self, request: Request, *, stream: bool = False, over: Mapping[str, object] | None = None
    ) -> bytes | None:
        """Return the JSON body of a request, or None if media files have to be read for it."""
        prompt = request.prompt
        if not isinstance(prompt, str):
            return None if has_files(prompt) else self._encode(request, stream, over)
        if over is not None or request.prompt_logprobs or request.recorded is not UNSET:
            return self._encode(request, stream, over)
        kind = self._kind
        if (
            kind is not None
            and kind.sampling is request.sampling
            and kind.extra is request.extra
            and kind.neutral is self.neutral
            and kind.stream is stream
        ):
            if not self._seen_twice:
                self._seen_twice, self._around = True, self._find_around(request, stream)
            if self._around is not None:
                before, behind = self._around
                return before + _quote(prompt) + behind
        else:
            self._kind = _Kind(request.sampling, request.extra, self.neutral, stream)
            self._seen_twice, self._around = False, None
        return self._encode(request, stream, None)

    def _find_around(self, request: Request, stream: bool) -> tuple[bytes, bytes] | None:
        """Return the JSON before and behind the prompt, or None if a field replaces the first ones.

        Requests of a task mostly differ in their prompts only.
        """
        before = b'{"model":' + _quote(self._model) + b',"prompt":'
        whole = self._encode(msgspec.structs.replace(request, prompt=""), stream, None)
        return (before, whole[len(before) + 2 :]) if whole.startswith(before + b'""') else None

    def _encode(self, request: Request, stream: bool, over: Mapping[str, object] | None) -> bytes:
        return wire.encode(
            request,
            self._model,
            stream=stream,
            max_tokens_field=self._max_tokens_field,
            over=over,
            neutral=self.neutral,
            by=self._chat_route,
        )


def has_files(prompt: Prompt) -> bool:
    """Return True if a medium of a prompt lies in a file."""
    return not isinstance(prompt, str) and any(
        isinstance(part, MediaFile) for turn in prompt for part in turn.media
    )


def put_media(request: Request, send_media: SendMedia) -> Request:
    """Return a request with the bytes of its media files, or their paths, in place of the files.

    Raises DatasetError if a file is missing or has changed.
    """
    if isinstance(request.prompt, str) or not has_files(request.prompt):
        return request
    prompt = tuple(_put(turn, send_media) for turn in request.prompt)
    return msgspec.structs.replace(request, prompt=prompt)


def _put(turn: Message, send_media: SendMedia) -> Message:
    if isinstance(turn.content, str):
        return turn
    return replace(turn, content=tuple(_put_part(part, send_media) for part in turn.content))


def _put_part(part: TextPart | MediaPart, send_media: SendMedia) -> TextPart | MediaPart:
    if not isinstance(part, MediaFile):
        return part
    return inline(part) if send_media == "inline" else link(part)


ID_CHARACTERS = 36
"""Length of a request id, a UUID. An id that a server shortened names no request."""


class RequestIds:
    """Make ids that begin with `own` and count up; `made` is their number.

    The ids are UUIDs because llama-cpp-python refuses others.
    """

    def __init__(self) -> None:
        self.own, self.made = str(uuid.uuid4())[:-12], 0

    def new(self) -> str:
        """Return the id of the next request."""
        self.made += 1
        return f"{self.own}{self.made:012x}"

    def find_named(self, told: str) -> str | None:
        """Return the id of one of our requests in a reply's text, or None."""
        at = told.find(self.own)
        return None if at < 0 or len(told) < at + ID_CHARACTERS else told[at : at + ID_CHARACTERS]


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_OWN = {"content-length", "transfer-encoding", REQUEST_ID.lower()}


def request_headers(api_key: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the default headers, replaced or extended by those `given`.

    Raises PlanError for a header that cannot be sent.
    """
    headers = {
        "User-Agent": f"serve-eval/{serve_eval.__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    for name, value in given.items():
        if not _TOKEN.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise PlanError(
                f"header {name!r}: its name or value has a character that cannot be sent in a"
                " header"
            )
    replaced = {name.lower() for name in given}
    return {
        **{name: value for name, value in headers.items() if name.lower() not in replaced},
        **{name: value for name, value in given.items() if name.lower() not in _OWN},
    }


def holds_key(headers: Mapping[str, str]) -> bool:
    """Return True if a header looks like a key."""
    return any(name.lower() == "authorization" or "key" in name.lower() for name in headers)
