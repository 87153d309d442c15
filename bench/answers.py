"""Answers of the benchmark server, as bytes that are ready except for the id of the request.

A prompt may contain `[[ID]]` and a number. The answer begins with the same, so that a client can
check that every answer is its own. The texts end in `#### 42`, so that a scorer of GSM8K can
extract a number.
"""

from __future__ import annotations

import json
import re
import time

CHUNKS = 200
"""Pieces of text in a streamed answer, without the chunks of the finish reason and the usage."""

_ID = re.compile(rb"\[\[ID\]\]\d+")
_STREAM = re.compile(rb'"stream":\s*true')
_ECHO = re.compile(rb'"echo":\s*true')
_LIMIT = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
TOKENS = 202
"""Tokens of a whole answer.

A request that allows fewer gets that number and finish_reason "length": before a run the tool
checks that its limit is kept.
"""
_WORK = " The number asked for follows from the steps that are given, one after another." * 9
_JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


_STAMP = b"6f1e2d3c4b5a"
"""Part of every answer's id, which `stamp` replaces by a time of the same length."""
_STAMP_MODULUS = 10**12


def stamp(answer: bytes) -> bytes:
    """Return an answer whose id holds the present time of the monotonic clock, in microseconds."""
    now = time.monotonic_ns() // 1000 % _STAMP_MODULUS
    return answer.replace(_STAMP, b"%012d" % now, 1)


def wants_logprobs(body: bytes) -> bool:
    """Return True if the request asks for the log-probabilities of its prompt."""
    return _ECHO.search(body) is not None


def wants_stream(body: bytes) -> bool:
    """Return True if the request asks for an event stream.

    A prompt cannot match, because its quotes are escaped.
    """
    return _STREAM.search(body) is not None


def tokens(body: bytes, whole: int = TOKENS) -> int:
    """Return the number of tokens of the answer: `whole`, or fewer if the request allows fewer."""
    found = _LIMIT.search(body)
    return min(whole, int(found.group(1))) if found else whole


def usage(completion_tokens: int) -> str:
    """Return the counts of an answer as JSON."""
    total = 1100 + completion_tokens
    return (
        f'{{"prompt_tokens":1100,"completion_tokens":{completion_tokens},"total_tokens":{total}}}'
    )


def request_id(body: bytes) -> bytes:
    """Return `[[ID]]` and the digits after it, as in the request; empty without an id."""
    found = _ID.search(body)
    return found.group() if found else b""


def http(body: bytes) -> bytes:
    """Return a whole HTTP answer of status 200 with a JSON body."""
    return _JSON_HEAD % len(body) + body


class Whole:
    """Answers in one piece: of about 1.05 KB, or of a word for each of `whole` tokens."""

    def __init__(self, *, chat: bool, whole: int = 0) -> None:
        self._closing = '","refusal":null}' if chat else '"'
        said = '"message":{"role":"assistant","content":"' if chat else '"text":"'
        kind = "chat.completion" if chat else "text_completion"
        self._before = (
            f'{{"id":"cmpl-6f1e2d3c4b5a","object":"{kind}","created":1764000000,"model":"bench",'
            f'"choices":[{{"index":0,{said}'
        ).encode()
        self._whole = whole or TOKENS
        work = " word" * (whole - 5) if whole else _WORK
        self._after = self._end(f"{work}\\n#### 42", "stop", self._whole)

    def _end(self, text: str, finish: str, completion_tokens: int) -> bytes:
        rest = f'"logprobs":null,"finish_reason":"{finish}"}}],"usage":{usage(completion_tokens)}}}'
        return f"{text}{self._closing},{rest}".encode()

    def to(self, body: bytes) -> bytes:
        """Return the whole HTTP answer to a request's body."""
        allowed = tokens(body, self._whole)
        cut = allowed < self._whole
        after = self._end(" word" * allowed, "length", allowed) if cut else self._after
        return http(self._before + request_id(body) + after)


class Likelihoods:
    """Log-probabilities of prompts, in the form of `echo`.

    A token is a word with the space before it. Prompts that differ only in the digits of their ids
    share all but these, so that the server is quick.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def to(self, body: bytes) -> bytes:
        """Return the whole HTTP answer to a request's body."""
        own = request_id(body)
        blank = b"[[ID]]" + b"0" * (len(own) - 6) if own else b""
        key = body.replace(own, blank, 1) if own else body
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._new(json.loads(key)["prompt"])
        return http(known.replace(blank, own, 1) if own else known)

    def _new(self, prompt: str) -> bytes:
        words = re.findall(r"^\S+|\s+\S*", prompt)
        offsets = [0]
        for word in words[:-1]:
            offsets.append(offsets[-1] + len(word))
        values = [None, *(-0.25 - (i % 7) / 8 for i in range(1, len(words)))]
        listed = {
            "tokens": words,
            "token_logprobs": values,
            "text_offset": offsets,
            "top_logprobs": [None, *({w: v} for w, v in zip(words[1:], values[1:], strict=True))],
        }
        choice = {"index": 0, "text": "", "logprobs": listed, "finish_reason": "length"}
        counts = {"prompt_tokens": len(words), "completion_tokens": 0, "total_tokens": len(words)}
        return json.dumps(
            {"id": "cmpl-6f1e2d3c4b5a", "choices": [choice], "usage": counts}, separators=(",", ":")
        ).encode()


class Streamed:
    """Answers as server-sent events, each in its own HTTP chunk."""

    def __init__(self, *, chat: bool, whole: int = 0) -> None:
        kind = "chat.completion.chunk" if chat else "text_completion"
        self._head = (
            "data:"
            f' {{"id":"cmpl-6f1e2d3c4b5a","object":"{kind}","created":1764000000,"model":"bench",'
            '"choices":['
        )
        self._chat = chat
        self._whole, self._pieces = whole or TOKENS, whole or CHUNKS
        self.piece = _chunk(self._event(" word").encode())
        self._end = self._closing("stop", self._whole)

    def _closing(self, finish: str, completion_tokens: int) -> bytes:
        finished = self._event("", f'"{finish}"').encode()
        counts = f'{self._head}],"usage":{usage(completion_tokens)}}}\n\n'.encode()
        return _chunk(finished) + _chunk(counts) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"

    def _event(self, text: str, finish: str = "null") -> str:
        said = f'"delta":{{"content":"{text}"}}' if self._chat else f'"text":"{text}"'
        choice = f'{{"index":0,{said},"logprobs":null,"finish_reason":{finish}}}'
        return f'{self._head}{choice}],"usage":null}}\n\n'

    def length(self, body: bytes) -> int:
        """Return the number of text pieces in the answer to a request."""
        return min(self._pieces, tokens(body, self._whole))

    def end(self, body: bytes) -> bytes:
        """Return the events after the last piece."""
        allowed = tokens(body, self._whole)
        return self._end if allowed == self._whole else self._closing("length", allowed)

    def first(self, body: bytes) -> bytes:
        """Return the first piece, which carries the id."""
        return _chunk(self._event(request_id(body).decode()).encode())


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
