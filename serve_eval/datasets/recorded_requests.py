"""Read the requests that gateways log, in any of their envelopes, and mask fields in them.

A line is a bare body, or an envelope with the body in it (`datasets.log_envelopes`), as OpenAI's
batch files, trtllm-serve, LiteLLM, Helicone, Langfuse, and gateways that log bodies have it. A file
may also be one JSON array of such objects.

A path such as `metadata.email` or `messages[*].name` names fields to mask: `*` matches any key,
`[*]` every item of a list. Paths also reach into strings that contain JSON, such as the arguments
of a tool call. A masked string becomes ***, a masked number 0; the structure of the body is
unchanged. Patterns mask all their matches in strings.
"""

from __future__ import annotations

import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from serve_eval.datasets.log_envelopes import find_answer, open_line
from serve_eval.errors import DatasetError, PlanError
from serve_eval.frozen import freeze_places
from serve_eval.masking import HIDDEN
from serve_eval.schema import RecordedBody, SourceFile
from serve_eval.secret_signs import hide

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


USUAL_FIELDS = ("user", "safety_identifier", "metadata.*", "api_key", "extra_headers.*")
"""Fields that identify people or hold keys, and do not affect answers."""
ITEMS = "[*]"
_STEP = re.compile(r"(?:^|\.)(\*|[A-Za-z_][\w-]*)|(\[\*\]|\[\d+\])")
Steps = tuple[str, ...]


def read_paths(paths: Iterable[str]) -> tuple[Steps, ...]:
    """Return the steps of each path. Raises PlanError for a text that is no path."""
    found, wrong = [], []
    for path in paths:
        steps = tuple(one[1] or one[2] for one in _STEP.finditer(path))
        whole = "".join(one[0] for one in _STEP.finditer(path)) == path
        if steps and whole and not path.startswith("."):
            found.append(steps)
        else:
            wrong.append(f"mask_fields: {path!r} is not a path such as metadata.email")
    if wrong:
        raise PlanError(wrong, hint="Write keys with dots, and lists as messages[*].content")
    return tuple(found)


def read_patterns(patterns: Iterable[str]) -> tuple[re.Pattern[str], ...]:
    """Return compiled regular expressions. Raises PlanError for an invalid or an empty one."""
    found, wrong = [], []
    for pattern in patterns:
        try:
            found.append(re.compile(pattern))
        except re.error as error:
            wrong.append(f"mask_patterns: {pattern!r} is no regular expression: {error}")
    if any(one.match("") for one in found):
        wrong.append("mask_patterns: a pattern matches the empty text")
    if wrong:
        raise PlanError(wrong)
    return tuple(found)


def mask_body(
    body: RecordedBody, paths: Sequence[Steps], patterns: Sequence[re.Pattern[str]] = ()
) -> tuple[RecordedBody, int]:
    """Return a body with these fields, pattern matches and known forms of keys masked.

    The number counts the replaced strings and numbers.
    """
    count = _Count()
    fields: Any = body.fields
    for steps in paths:
        fields = _mask_at(fields, steps, count)
    fields = _hide_secrets(fields, patterns, count)
    return RecordedBody(route=body.route, fields=fields), count.masked


class _Count:
    """Count what was replaced."""

    masked = 0


def _mask_at(value: Any, steps: Steps, count: _Count) -> Any:
    """Return a value with what a path leads to replaced."""
    if not steps:
        return _blank(value, count)
    step, rest = steps[0], steps[1:]
    if isinstance(value, Mapping):
        chosen = value.keys() if step == "*" else {step} & value.keys()
        return {
            name: _mask_at(inner, rest, count) if name in chosen else inner
            for name, inner in value.items()
        }
    if isinstance(value, list) and step.startswith("["):
        every = step == ITEMS
        return [
            _mask_at(inner, rest, count) if every or step == f"[{place}]" else inner
            for place, inner in enumerate(value)
        ]
    return _mask_inside(value, steps, count) if isinstance(value, str) else value


def _mask_inside(text: str, steps: Steps, count: _Count) -> str:
    """Return a JSON string with the values at a path masked; other strings are unchanged."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        opened = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    masked = _mask_at(opened, steps, count)
    return text if masked == opened else msgspec.json.encode(masked).decode()


def _blank(value: Any, count: _Count) -> Any:
    """Return a value of the same form without its texts and numbers."""
    if isinstance(value, Mapping):
        return {name: _blank(inner, count) for name, inner in value.items()}
    if isinstance(value, list):
        return [_blank(inner, count) for inner in value]
    if value is None or isinstance(value, bool):
        return value
    count.masked += 1
    return HIDDEN if isinstance(value, str) else 0


def _hide_secrets(value: Any, patterns: Sequence[re.Pattern[str]], count: _Count) -> Any:
    """Return a value with pattern matches and known forms of keys masked."""
    if isinstance(value, Mapping):
        return {name: _hide_secrets(inner, patterns, count) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hide_secrets(inner, patterns, count) for inner in value]
    if not isinstance(value, str):
        return value
    hidden = hide(value, HIDDEN)
    for pattern in patterns:
        hidden = pattern.sub(HIDDEN, hidden)
    count.masked += hidden != value
    return hidden
