"""Compare the stand-in with recorded answers of trtllm-serve's serving layer: `make conformance`.

The recordings are those of the main branch; a line is one request with its answer. Each request is
sent to a stand-in of the flavour `main`, and three things are compared: the status, the keys (of a
whole body, or of each kind of event) and the framing (media type, marks of a stream, an early end).
Texts, token ids, log-probabilities and counts depend on the engine and are not compared, since the
recordings have an engine of their own. The texts of refusals are counted apart.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from serve_eval.launchers._http.server import serve_app
from serve_eval.launchers._standin.config import orchestrator
from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.orchestrator import Orchestrating
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig

RECORDED = Path(__file__).parents[3] / "shared" / "recorded_trtllm" / "answers.jsonl"
MODEL = "org/model"
METRICS = ("chat_perf", "completion_perf", "completion_stream_perf")
"""Requests that ask for metrics by a header, which the recordings do not hold."""
LIMIT_S = 20.0
FAULTS = {
    "ERR_ENGINE": Faults(
        error_after=0, error_says="Assertion failed: no free blocks (kvCacheManager.cpp:911)"
    ),
    "ERR_MID": Faults(fail_stream=3, error_says="Assertion failed: mid (kvCacheManager.cpp:912)"),
}
"""Faults of the engine that the recordings ask for by a word of the prompt."""
ELSEWHERE = {
    "completion_err_cpp": "a fatal fault ends the process: tests/standin/test_faults.py",
    "docs": "the recorded body is cut",
}
"""Cases that this comparison leaves out."""
ENGINE = {
    "completion_max0": "the engine decides about max_tokens below 1; theirs takes it for 1",
    "completion_maxneg": "the engine decides about max_tokens below 1; theirs takes it for 1",
    "get_health_generate": "aiohttp sends no answer without a media type",
}
"""Cases whose difference is none of the serving layer, with the reason."""


@dataclass(frozen=True, slots=True)
class Shape:
    """An answer without what its engine decides."""

    status: int
    framing: tuple[object, ...]
    keys: frozenset[str]
    text: str


def shape_of(status, headers, body, *, broken):
    """Return the shape of an answer."""
    names = {name.casefold(): value for name, value in headers.items()}
    kind = names.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        events = [event for event in body.split("\n\n") if event.strip()]
        marks = tuple(mark for mark, _ in Counter(map(_mark, events)).items())
        ends = tuple(_mark(event) for event in events if _mark(event) != "data")
        keys = {key for event in events for key in _event_keys(event)}
        return Shape(status, (kind, marks, ends, broken), frozenset(keys), "")
    try:
        value = json.loads(body)
    except ValueError:
        return Shape(status, (kind, broken), frozenset(), "")
    told = value if isinstance(value, dict) else {}
    text = str(told.get("detail") or told.get("error") or told.get("message") or "")
    more = {name for name in names if name in ("server-timing", "x-trtllm-start-end-time")}
    keys = set(_keys(value)) | more
    return Shape(status, (kind, broken), frozenset(keys), _plain(text) if status >= 400 else "")


def _mark(event):
    """Return the kind of an event: a role, data, an error, the end, or its own name."""
    name, _, rest = event.partition("data: ")
    if rest.startswith("[DONE]"):
        return "[DONE]"
    if '"error"' in rest[:12]:
        return "error"
    role = '"role"' in rest
    return f"{name.strip()}{'role' if role else 'data'}{' ' if rest.endswith(' ') else ''}"


def _event_keys(event):
    _, _, rest = event.partition("data: ")
    if rest.strip() != "[DONE]":
        yield from (f"{_mark(event).strip()}:{key}" for key in _keys(json.loads(rest)))


def _keys(value, path=""):
    """Yield the paths of a JSON value; the names of tokens in top_logprobs are none."""
    if isinstance(value, dict):
        tokens = path.endswith("top_logprobs[]") and "token" not in value
        for key, one in value.items():
            if not tokens:
                yield f"{path}.{key}"
                yield from _keys(one, f"{path}.{key}")
    elif isinstance(value, list):
        for one in value:
            yield from _keys(one, f"{path}[]")


def _plain(text):
    """Return a refusal without the file that it names."""
    return re.sub(r'\s+File "[^"]*", line \d+, in \S+', "", text)


class Deployment:
    """A worker and an orchestrator with two workers, each with the settings of the recordings."""

    async def __aenter__(self):
        self._stack = AsyncExitStack()
        enter = self._stack.enter_async_context
        args = {"return_perf_metrics": True, "max_num_tokens": 8192}
        pair = {**args, "cache_transceiver_config": {"backend": "DEFAULT"}}
        guided = {**args, "guided_decoding_backend": "xgrammar"}
        self.urls = {}
        for word, faults in {"": Faults(), **FAULTS}.items():
            self.urls["worker", word] = await enter(serve_app(self._worker(guided, faults)))
            hosts = []
            for _ in ("context", "generation"):
                url = await enter(serve_app(self._worker(pair, faults)))
                hosts.append(url.removeprefix("http://").removesuffix("/v1"))
            front = {
                "context_servers": {"urls": hosts[:1]},
                "generation_servers": {"urls": hosts[1:]},
                "return_perf_metrics": True,
            }
            server = Orchestrating(orchestrator(front, "main"), Faults(), "main", LIMIT_S)
            assert await server.workers_healthy(LIMIT_S)
            await enter(server.watching())
            self.urls["orchestrator", word] = await enter(serve_app(server.app))
        self._session = await enter(
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=LIMIT_S))
        )
        return self

    async def __aexit__(self, *error):
        await self._stack.aclose()

    @staticmethod
    def _worker(args, faults):
        config = WorkerConfig(
            model=MODEL,
            host="127.0.0.1",
            port=0,
            args=args,
            allow_request_chat_template=False,
        )
        return create(config, MadeUpModel(), faults, "main")

    async def answer(self, row):
        """Send the request of a row, and return the shape of the answer."""
        method, path, body = row["request"] or ("POST", "/v1/completions", None)
        data = row["raw"] if row["raw"] is not None else None if body is None else json.dumps(body)
        headers = {"Content-Type": "application/json"} if data is not None else {}
        if row["case"] == "raw_text_ct":
            headers = {"Content-Type": "text/plain"}
        if row["case"] == "raw_utf8":
            data = b'{"model":"m","prompt":"\xff"}'
        if row["case"] in METRICS:
            headers["X-TRTLLM-return-metrics"] = "1"
        word = next((word for word in FAULTS if word in json.dumps(body)), "")
        url = self.urls[row["server"], word].removesuffix("/v1") + path
        text, broken = b"", False
        sent = self._session.request(method, url, data=data, headers=headers, allow_redirects=False)
        async with sent as response:
            try:
                async for part in response.content.iter_any():
                    text += part
            except aiohttp.ClientError:
                broken = True
            return shape_of(response.status, response.headers, text.decode(), broken=broken)


async def compare(rows):
    """Return what is unlike by case; an equal case has an empty list."""
    found = {}
    async with Deployment() as deployment:
        for row in rows:
            theirs = shape_of(
                row["status"], row["headers"], row["body"] or "", broken=bool(row["broken"])
            )
            ours = await deployment.answer(row)
            found[f"{row['server']} {row['case']}"] = list(list_differences(theirs, ours))
    return found


def list_differences(theirs, ours):
    """Yield what is unlike; "text ..." for a refusal in other words."""
    if theirs.status != ours.status:
        yield f"status {theirs.status}, ours {ours.status}"
        return
    if theirs.framing != ours.framing:
        yield f"framing {theirs.framing}, ours {ours.framing}"
    if lacking := sorted(theirs.keys - ours.keys):
        yield f"keys lacking: {', '.join(lacking)}"
    if extra := sorted(ours.keys - theirs.keys):
        yield f"keys of ours alone: {', '.join(extra)}"
    if theirs.text != ours.text:
        yield f"text {theirs.text[:160]!r}, ours {ours.text[:160]!r}"


def read(file=RECORDED):
    """Return the recorded rows that are compared."""
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return [row for row in rows if row["status"] is not None and row["case"] not in ELSEWHERE]


def main():
    """Print the unlike cases and the shares."""
    if not RECORDED.is_file():
        print(f"no recordings: {RECORDED.name} is not next to the checkout")
        return 0
    found = asyncio.run(compare(read()))
    unlike = {
        case: [one for one in all_of if not one.startswith("text ")]
        for case, all_of in found.items()
    }
    for case, all_of in found.items():
        reason = ENGINE.get(case.partition(" ")[2])
        for one in all_of:
            print(f"{case}: {one}" + (f" ({reason})" if reason else ""))
    equal = sum(not one for one in unlike.values())
    texts = sum(any(one.startswith("text ") for one in all_of) for all_of in found.values())
    print(f"{equal} of {len(found)} equal in status, keys and framing ({equal / len(found):.1%})")
    print(f"{texts} refusals in other words; left out: {len(ELSEWHERE)} cases")
    return 0


if __name__ == "__main__":
    sys.exit(main())
