"""Echo secrets in every encoding and place of an answer, and search for them.

The search does not use the product's code.

A case or the number of a request decides the place.
"""

import asyncio
import base64
import binascii
import gzip
import html
import json
import re
import urllib.parse
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Thread

from tests.client.faulty_server import (
    DONE,
    LAST_CHUNK,
    STREAM_HEAD,
    FaultyServer,
    chunked,
    http,
)

KEY = "sk-live-Q7pRz2VwX9mT4kLd"
ODD = "pa\"ss\\w/or<d>&'9Q7pRz2V"


def behind(before):
    """Return an encoder to Base64 for a secret with a text before it."""
    return lambda key: base64.b64encode(f"{before}{key}".encode()).decode()


WHOLE = {
    "plain": str,
    "upper case": str.upper,
    "lower case": str.lower,
    "JSON": lambda key: json.dumps(key)[1:-1],
    "JSON in JSON": lambda key: json.dumps(json.dumps(key))[1:-1],
    "JSON with slashes escaped": lambda key: json.dumps(key)[1:-1].replace("/", "\\/"),
    "every character as \\u00XX": lambda key: "".join(f"\\u{ord(one):04x}" for one in key),
    "every character as \\xXX": lambda key: "".join(f"\\x{ord(one):02X}" for one in key),
    "repr": repr,
    "HTML": html.escape,
    "HTML by number": lambda key: "".join(f"&#{ord(one)};" for one in key),
    "HTML by hexadecimal number": lambda key: "".join(f"&#x{ord(one):X};" for one in key),
    "URL": lambda key: urllib.parse.quote(key, safe=""),
    "every character in a URL": lambda key: "".join(f"%{ord(one):02x}" for one in key),
    "URL twice": lambda key: urllib.parse.quote(urllib.parse.quote(key, safe=""), safe=""),
    "some characters in a URL": lambda key: f"%{ord(key[0]):02X}{key[1:-1]}%{ord(key[-1]):02X}",
    "hexadecimal": lambda key: key.encode().hex(),
    "HEXADECIMAL": lambda key: key.encode().hex().upper(),
    **{
        f"base64 behind {before!r}": behind(before)
        for before in ("", "a", "ab", "Bearer ", "user:")
    },
    "base64 in a URL": lambda key: urllib.parse.quote(
        base64.b64encode(f"?>{key}~~~".encode()).decode(), safe=""
    ),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"??{key}~~".encode()).decode(),
    "base64 without its end": lambda key: (
        base64.b64encode(f"{key}: x".encode()).decode().rstrip("=")
    ),
}
CUT = {
    "cut behind 22 of 24": lambda key: key[:-2],
    "cut before 22 of 24": lambda key: key[2:],
    "half of it": lambda key: key[: -(-len(key) // 2)],
    "the middle of it": lambda key: key[5 : 5 + -(-len(key) // 2)],
    "cut, in upper case, in a URL": lambda key: urllib.parse.quote(key.upper()[3:], safe=""),
}
WRITINGS = WHOLE | CUT
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]{12,}")


def left(text, *secrets):
    """Return the length of the longest piece of a secret in a text.

    Letter case is ignored, and the text is decoded in every known way.
    """
    texts, newest = {text}, {text}
    for _ in range(3):
        newest = {found for one in newest for found in _decoded(one)} - texts
        texts |= newest
    lows = {one.lower() for one in texts}
    longest = 0
    for secret in map(str.lower, secrets):
        for start in range(len(secret)):
            while start + longest < len(secret) and any(
                secret[start : start + longest + 1] in one for one in lows
            ):
                longest += 1
    return longest


def left_in(data, *secrets):
    """Return the length of the longest piece of a secret in the bytes of a file."""
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return left(data.decode("utf-8", "replace"), *secrets)


def _decoded(text):
    if "%" in text:
        yield urllib.parse.unquote(text)
    if "&" in text:
        yield html.unescape(text)
    if "\\" in text:
        yield re.sub(r"\\(?:u00|x)([0-9a-fA-F]{2})", lambda found: chr(int(found[1], 16)), text)
        yield re.sub(r"""\\(["'/\\])""", r"\1", text)
    for found in re.findall(r"(?:[0-9a-fA-F]{2}){12,}", text):
        yield bytes.fromhex(found).decode("latin-1")
    for run in _BASE64.findall(text):
        for start in range(4):
            piece = run[start:].translate({ord("-"): "+", ord("_"): "/"})
            try:
                yield base64.b64decode(piece[: len(piece) // 4 * 4]).decode("latin-1")
            except binascii.Error:  # pragma: no cover
                continue


PIECE = 3
"""Characters in a piece of a stream."""
FIELDS = (
    "reasoning_content",
    "reasoning",
    "refusal",
    "stop_reason",
    "id",
    "finish_reason",
    "usage",
    "unknown",
)
CALLS = ("tool name", "tool arguments")
ERRORS = {
    "error of OpenAI": ("400 Bad Request", '{"error": {"message": "bad key KEY"}}'),
    "error of trtllm-serve": (
        "400 Bad Request",
        '{"object": "error", "message": "bad key KEY", "code": 400}',
    ),
    "error in a list": (
        "422 Unprocessable Entity",
        '{"detail": [{"msg": "bad KEY"}, {"msg": "KEY"}]}',
    ),
    "error as text": ("400 Bad Request", "bad key KEY"),
    "error as a page": ("413 Too Large", "<html><title>no KEY</title>KEY</html>"),
    "error that is cut": ("400 Bad Request", "=" * 585 + "KEY" * 300),
    "error that cannot be read": ("400 Bad Request", '{"error": "KEY'),
    "refused": ("403 Forbidden", '{"error": "KEY"}'),
    "too many": ("429 Too Many Requests", '{"error": "KEY"}'),
    "server error": ("500 Internal Server Error", '{"error": "KEY"}'),
    "redirect": ("307 Temporary Redirect", "KEY"),
    "reason": ("400 KEY", "{}"),
    "page": ("200 OK", "<html>KEY</html>"),
    "no answer": ("200 OK", '{"told": "KEY"}'),
    "error in a 200": ("200 OK", '{"error": {"message": "KEY"}}'),
    "half": ("200 OK", '{"choices": [{"text": "KEY'),
}
BROKEN = {
    "no HTTP": b"KEY\r\n\r\n",
    "no number": b"HTTP/1.1 KEY\r\n\r\n",
    "bad header": b"HTTP/1.1 200 OK\r\nContent-Length: KEY\r\n\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nKEY\r\n",
    "bad encoding": b"HTTP/1.1 200 OK\r\nContent-Encoding: KEY\r\nContent-Length: 2\r\n\r\n{}",
    "bad type": b"HTTP/1.1 200 OK\r\nContent-Type: KEY\r\nContent-Length: 2\r\n\r\n{}",
}
TEXTS = tuple(WRITINGS)
SOUND = (*TEXTS, *(field for field in FIELDS if field != "finish_reason"))
"""Ways that lead to an answer."""
WAYS = (*TEXTS, *FIELDS, *CALLS, *ERRORS, *BROKEN)
_WAY = re.compile(r"way <(.*?)>")


class Echoing:
    """The server's script.

    `rotating` holds the ways for requests that name none, used in turn; `seen` holds the ways used.
    """

    def __init__(self, rotating):
        self.rotating, self.seen, self.keys = rotating, set(), set()
        self._number = 0

    def __call__(self, request):
        key = request.headers.get("authorization", "").removeprefix("Bearer ") or "no-key-was-sent"
        self.keys.add(key)
        if request.method == "GET" or (
            "prompt" not in request.body and "messages" not in request.body
        ):
            return _writes(http(self._told(request, key)))
        found = _WAY.search(json.dumps(request.body, ensure_ascii=False))
        way = json.loads(f'"{found[1]}"') if found else ""
        if not way and self.rotating:
            self._number += 1
            way = self.rotating[self._number % len(self.rotating)]
        self.seen.add(way)
        if way in BROKEN:
            return _ends(BROKEN[way].replace(b"KEY", key.encode()))
        if way in ERRORS:
            status, body = ERRORS[way]
            said = (
                body.replace("KEY", key)
                if body[:1] != "{"
                else body.replace("KEY", json.dumps(key)[1:-1])
            )
            return _writes(
                http(
                    said.encode(),
                    status.replace("KEY", key),
                    {"Location": f"/{key}", "X-Request-ID": key, **_servers(key)},
                )
            )
        answer = _answer(request.body, way, key)
        return (
            _streams(answer, key)
            if request.body.get("stream")
            else _writes(http(json.dumps(answer).encode(), headers=_servers(key)))
        )

    @staticmethod
    def _told(request, key):
        """Return the endpoint's description of itself."""
        if request.path.endswith("/models"):
            models = [
                {"id": "m", "owned_by": key, "max_model_len": 8000},
                {"id": f"tuned by {key}"},
            ]
            return json.dumps({"data": models}).encode()
        if "metrics" in request.path and "perf" not in request.path:
            return f'ctx_retry_requests_total{{key="{key}"}} 3\n# {key}\n'.encode()
        if request.path.endswith("/perf_metrics"):
            return json.dumps(
                [{"ctx_server": key, "gen_server": key, "ctx_perf_metrics": {"request_id": key}}]
            ).encode()
        if request.path.endswith("/cluster_info"):
            workers = {
                "context_servers": [{"host": "127.0.0.1", "port": 1, "note": key}],
                "generation_servers": [],
            }
            return json.dumps(
                {"is_ready": True, "current_workers": workers, "minimal_instances": key}
            ).encode()
        return json.dumps({"version": f"1.2 {key}", "key": key, "told": [key, {key: key}]}).encode()


def _servers(key):
    return {"X-Context-Server": f"{key}:1", "X-Generation-Server": key}


def _answer(asked, way, key):
    """Return a sound answer with the key in its text or fields."""
    text = f"Your key is {WRITINGS[way](key)} now." if way in WRITINGS else "The answer is 42."
    wanted = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
    finish = "length" if wanted < 4 else "stop"
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "finish_reason": finish}
    told = {
        "id": "cmpl-1",
        "usage": {
            "prompt_tokens": 9 + len(str(asked.get("tools", ""))),
            "completion_tokens": min(wanted, 6),
        },
    }
    if way in FIELDS[:3]:
        message[way] = f"I think of {key}."
    elif way in ("stop_reason", "finish_reason"):
        choice[way] = key
    elif way in ("id", "usage", "unknown"):
        told[way] = key
        choice["unknown"] = key
    elif asked.get("tools") and way in CALLS:
        name, arguments = (
            (key, "{}") if way == "tool name" else ("search", json.dumps({"q": key, "again": key}))
        )
        message["tool_calls"] = [
            {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
        ]
        choice["finish_reason"] = "tool_calls"
    tokens = re.findall(r"\s*\S{1,4}", text)
    if asked.get("logprobs") and not asked.get("echo"):
        tops = [{"token": tokens[0], "logprob": -0.1}, {"token": key, "logprob": -9.0}]
        content = [{"token": token, "logprob": -0.1, "top_logprobs": tops} for token in tokens]
        listed = {
            "tokens": tokens,
            "token_logprobs": [-0.1] * len(tokens),
            "top_logprobs": [{key: -9.0}] * len(tokens),
        }
        choice["logprobs"] = {"content": content} if "messages" in asked else listed
    if "messages" in asked:
        return {**told, "choices": [{**choice, "message": message}]}
    if asked.get("echo") or "prompt_logprobs" in asked:
        prompt = asked["prompt"] if isinstance(asked["prompt"], str) else asked["prompt"][0]
        tokens = re.findall(r"\s*\S+", prompt + " " + " ".join(key)) or ["x"]
        tops = [{token: -0.5, key: -1.0} for token in tokens]
        listed = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": tops}
        told["usage"] = {"prompt_tokens": len(tokens), "completion_tokens": 0}
        return {**told, "choices": [{**choice, "text": text, "logprobs": listed}]}
    return {**told, "choices": [{**choice, "text": text}]}


def _streams(answer, key):
    """Return an act that streams the answer in pieces, none of which contains the key."""

    async def act(turn):
        choice = dict(answer["choices"][0])
        chat = "message" in choice
        parts = choice.pop("message", None) or {"text": choice.pop("text")}
        calls = parts.pop("tool_calls", None)
        events = []
        for name, value in parts.items():
            for start in range(0, len(value or ""), PIECE):
                piece = {name: value[start : start + PIECE]}
                events.append({"index": 0, **({"delta": piece} if chat else piece)})
        for call in calls or ():
            events.append({"index": 0, "delta": {"tool_calls": [{**call, "index": 0}]}})
        events.append(
            {"finish_reason": "stop", **choice, **({"delta": {}} if chat else {"text": ""})}
        )
        told = {name: value for name, value in answer.items() if name != "choices"}
        fields = "".join(f"{name}: {value}\r\n" for name, value in _servers(key).items())
        await turn.write(STREAM_HEAD.removesuffix(b"\r\n") + fields.encode("latin-1") + b"\r\n")
        for event in events:
            await turn.write(
                chunked(b"data: " + json.dumps({**told, "choices": [event]}).encode() + b"\n\n")
            )
        await turn.write(chunked(DONE) + LAST_CHUNK)

    return act


def _writes(data):
    async def act(turn):
        await turn.write(data)

    return act


def _ends(data):
    async def act(turn):
        await turn.write(data)
        await turn.finish()

    return act


@contextmanager
def echoing(rotating=()):
    """Serve such an endpoint from its own thread and yield its base URL."""
    loop, url, ended, script = (
        asyncio.new_event_loop(),
        Future[str](),
        asyncio.Event(),
        Echoing(rotating),
    )

    async def main():
        async with FaultyServer(script) as server:
            url.set_result(server.base_url)
            await ended.wait()

    thread = Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        yield url.result(30), script
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()
