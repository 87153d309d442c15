"""What the server of the benchmark answers, as bytes that are ready but for the id of the request.

A prompt may carry `[[ID]]` and a number; the answer begins with the same, so that a client can check that every answer
is its own. The texts end in `#### 42`, so that a scorer of GSM8K has something to extract.
"""

from __future__ import annotations

import re

CHUNKS = 200
"""Pieces of text in a streamed answer; the chunks with the finish reason and the usage come on top."""

_ID = re.compile(rb"\[\[ID\]\]\d+")
_STREAM = re.compile(rb'"stream":\s*true')
_WORK = " The number asked for follows from the steps that are given, one after another." * 9
_USAGE = '{"prompt_tokens":1100,"completion_tokens":202,"total_tokens":1302}'
_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def wants_stream(body: bytes) -> bool:
    """Whether the request asks for an event stream. The quotes of a prompt are escaped: it cannot look so."""
    return _STREAM.search(body) is not None


def request_id(body: bytes) -> bytes:
    """`[[ID]]` and the digits after it, as in the request; empty where there is none."""
    found = _ID.search(body)
    return found.group() if found else b""


def http(body: bytes) -> bytes:
    """A whole HTTP answer of status 200 with a JSON body."""
    return _JSON_HEAD % len(body) + body


class Whole:
    """Answers in one piece, of about 1.05 KB."""

    def __init__(self, *, chat: bool) -> None:
        text = f'{_WORK}\\n#### 42","refusal":null}}' if chat else f'{_WORK}\\n#### 42"'
        said = '"message":{"role":"assistant","content":"' if chat else '"text":"'
        kind = "chat.completion" if chat else "text_completion"
        self._before = (
            f'{{"id":"cmpl-6f1e2d3c4b5a","object":"{kind}","created":1764000000,"model":"bench",'
            f'"choices":[{{"index":0,{said}'
        ).encode()
        self._after = f'{text},"logprobs":null,"finish_reason":"stop"}}],"usage":{_USAGE}}}'.encode()

    def to(self, body: bytes) -> bytes:
        """The whole HTTP answer to a request's body."""
        return http(self._before + request_id(body) + self._after)


class Streamed:
    """Answers as server-sent events, each in an HTTP chunk of its own."""

    def __init__(self, *, chat: bool) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._head = (
            f'data: {{"id":"cmpl-6f1e2d3c4b5a","object":"{kind}","created":1764000000,"model":"bench","choices":['
        )
        self._chat = chat
        self.piece = _chunk(self._event(" word").encode())
        finish = self._event("", '"stop"').encode()
        usage = f'{self._head}],"usage":{_USAGE}}}\n\n'.encode()
        self.end = _chunk(finish) + _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _event(self, text: str, finish: str = "null") -> str:
        said = f'"delta":{{"content":"{text}"}}' if self._chat else f'"text":"{text}"'
        return f'{self._head}{{"index":0,{said},"logprobs":null,"finish_reason":{finish}}}],"usage":null}}\n\n'

    def first(self, body: bytes) -> bytes:
        """The first piece, which carries the id."""
        return _chunk(self._event(request_id(body).decode()).encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
