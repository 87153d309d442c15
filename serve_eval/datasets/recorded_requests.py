"""Read the requests that gateways log, one JSON object a line, in any of their envelopes.

A line is a bare body, or an envelope with the body in it (`datasets.log_envelopes`), as OpenAI's
batch files, trtllm-serve, LiteLLM, Helicone, Langfuse, and gateways that log bodies have it. A file
may also be one JSON array of such objects.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval.datasets.log_envelopes import find_answer, open_line
from serve_eval.errors import DatasetError
from serve_eval.frozen import freeze_places
from serve_eval.schema import RecordedBody, SourceFile

MOST_SHOWN = 10
"""Broken lines that an error names."""


@freeze_places
class RecordedRequest:
    """A request of a log: its line, its body, the model that was asked, and what else was logged.

    `at_s` is when it arrived, in seconds since 1970 or another beginning (None: not logged).
    `answer` is the text of the recorded answer (None: none was logged; "": it has no text).
    """

    line: int
    body: RecordedBody
    model: str | None = None
    at_s: float | None = None
    answer: str | None = None


@freeze_places
class BrokenLine:
    """A line without a request that can be sent again, and the reason."""

    line: int
    reason: str


@freeze_places
class RecordedLog:
    """The requests of a log, with the lines that hold none, and the file itself."""

    requests: tuple[RecordedRequest, ...]
    broken: tuple[BrokenLine, ...]
    source: SourceFile

    @property
    def duplicates(self) -> int:
        """The requests whose whole body an earlier one has."""
        return len(self.requests) - len({hash_body(one.body) for one in self.requests})


def read_log(path: Path) -> RecordedLog:
    """Return the requests of a file. Raises DatasetError if it cannot be read or has none."""
    found: list[RecordedRequest] = []
    broken: list[BrokenLine] = []
    answers: dict[str, str | None] = {}
    traces: dict[int, str] = {}
    content = hashlib.sha256()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(_split(file, content), 1):
                if not line.strip():
                    continue
                try:
                    parsed = _parse(line)
                    trace = str(parsed.get("trace_id", ""))
                    if parsed.get("event") == "response" and trace:
                        answers[trace] = find_answer(parsed)
                        continue
                    found.append(read_request(parsed, number))
                    traces[number] = trace
                except ValueError as error:
                    broken.append(BrokenLine(number, str(error)))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    if not found:
        raise DatasetError(f"{path}: no line is a request{_name_lines(broken)}", hint=LINES)
    if answers:
        found = [_join(one, answers.get(traces[one.line])) for one in found]
    return RecordedLog(
        tuple(found), tuple(broken), SourceFile(path=str(path), sha256=content.hexdigest())
    )


LINES = (
    "Each line is a JSON object with the whole body of a request, under any name. Write another"
    " form as lines: jq -c '.[]' FILE, or jq -c '{body: PATH}' FILE. A server's own text log has no"
    " bodies: log them at a gateway."
)


def _split(file: BinaryIO, content: hashlib._Hash) -> Iterator[bytes]:
    """Yield the lines of a file, or the items of a JSON array; `content` hashes the file."""
    first = file.readline()
    content.update(first)
    first = first.removeprefix(codecs.BOM_UTF8)
    if first.lstrip().startswith(b"["):
        rest = file.read()
        content.update(rest)
        with suppress(msgspec.DecodeError):
            yield from map(bytes, msgspec.json.decode(first + rest, type=list[msgspec.Raw]))
            return
        yield from (first + rest).splitlines(keepends=True)
        return
    yield first
    for line in file:
        content.update(line)
        yield line


def refuse_broken(log: RecordedLog) -> None:
    """Raise DatasetError if a line of a log is broken: none is left out without a word."""
    if log.broken:
        lines = len(log.requests) + len(log.broken)
        raise DatasetError(
            f"{log.source.path}: lines that are no request: {len(log.broken)} of {lines}"
            f"{_name_lines(log.broken)}",
            hint="Mend them, or leave them out: --set requests.skip_broken=true",
        )


def _name_lines(broken: tuple[BrokenLine, ...] | list[BrokenLine]) -> str:
    told = "".join(f"\n  line {one.line}: {one.reason}" for one in broken[:MOST_SHOWN])
    more = len(broken) - MOST_SHOWN
    return f":{told}\n  and {more} more" if more > 0 else f":{told}" if told else ""


def list_uncompared(bodies: Sequence[RecordedBody]) -> list[str]:
    """Return notes about answers that are compared only in part, with the number of requests."""
    several = sum(_asks_for_several(one.fields) for one in bodies)
    logprobs = sum(_asks_for_logprobs(one.fields) for one in bodies)
    found = {
        f"requests for several answers: {several}; only the first is compared": several,
        f"requests for log-probabilities: {logprobs}; only texts are compared": logprobs,
    }
    return [line for line, count in found.items() if count]


def _asks_for_several(fields: Mapping[str, Any]) -> bool:
    prompt = fields.get("prompt")
    batch = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    return batch or (isinstance(n := fields.get("n"), int) and n > 1)


def _asks_for_logprobs(fields: Mapping[str, Any]) -> bool:
    asked = (fields.get("echo"), fields.get("logprobs"), fields.get("prompt_logprobs"))
    return any(one not in (None, False) for one in asked)


def hash_body(body: RecordedBody) -> str:
    """Return a hash of what a request asks, whatever the order of its fields."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]


def read_request(parsed: Mapping[str, Any], number: int) -> RecordedRequest:
    """Return the request of a parsed line. Raises ValueError with the reason if it has none."""
    return RecordedRequest(number, *open_line(parsed))


def _parse(line: bytes) -> Mapping[str, Any]:
    if line.startswith(b"\x1f\x8b"):
        raise ValueError("compressed; unpack the file: gunzip FILE")
    try:
        parsed = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def _join(request: RecordedRequest, answer: str | None) -> RecordedRequest:
    if answer is None:
        return request
    return RecordedRequest(request.line, request.body, request.model, request.at_s, answer)
