"""Read the requests that gateways log, one JSON object a line, in any of their envelopes.

A line is a bare body, or an envelope with the body in it: OpenAI's batch files (`url`, `body`),
request traces of trtllm-serve (`route`, `body`, `recorded_at`), LiteLLM (`messages`,
`model_parameters`, `response`), Helicone (`request_path`, `request_body`, `response_body`) and
Langfuse (`input`, `modelParameters`, `output`). Headers are never read: keys stand in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.errors import DatasetError
from serve_eval.frozen import freeze_places
from serve_eval.schema import RecordedBody, Route, SourceFile

MOST_SHOWN = 10
"""Broken lines that an error names."""
_MOST_LEVELS = 4
"""Envelopes within envelopes that are opened."""
_BODIES = ("body", "request_body", "requestBody", "request", "input", "kwargs")
_PATHS = ("url", "route", "path", "request_path", "endpoint", "target")
_TIMES = (
    *("timestamp", "time", "ts", "recorded_at", "received_at", "arrival_time", "startTime"),
    *("start_time", "request_created_at", "created_at", "createdAt", "requestedAt"),
)
_ANSWERS = (
    "response_body",
    "responseBody",
    "response",
    "output",
    "answer",
    "completion",
    "payload",
)
_PARAMETERS = ("model_parameters", "modelParameters", "optional_params")
_SIGNS = (
    ("messages", Route.CHAT),
    ("prompt", Route.COMPLETIONS),
    ("input", Route.RESPONSES),
)
_UNITS_PER_S = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Least value of a time since 1970 in nanoseconds, microseconds and milliseconds."""


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
            for number, line in enumerate(file, 1):
                content.update(line)
                if not line.strip():
                    continue
                try:
                    parsed = _parse(line)
                    trace = str(parsed.get("trace_id", ""))
                    if parsed.get("event") == "response" and trace:
                        answers[trace] = _find_answer(parsed)
                        continue
                    found.append(read_request(parsed, number))
                    traces[number] = trace
                except ValueError as error:
                    broken.append(BrokenLine(number, str(error)))
    except OSError as error:
        raise DatasetError(f"{path}: cannot be read: {error.strerror}") from error
    if not found:
        raise DatasetError(
            f"{path}: no line is a request{_name_lines(broken)}",
            hint="Each line is a JSON object: a body with messages, prompt or input, or an"
            " envelope with such a body.",
        )
    if answers:
        found = [_join(one, answers.get(traces[one.line])) for one in found]
    return RecordedLog(
        tuple(found), tuple(broken), SourceFile(path=str(path), sha256=content.hexdigest())
    )


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


def hash_body(body: RecordedBody) -> str:
    """Return a hash of what a request asks, whatever the order of its fields."""
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()[:16]


def read_request(parsed: Mapping[str, Any], number: int) -> RecordedRequest:
    """Return the request of a parsed line. Raises ValueError with the reason if it has none."""
    levels = list(_list_levels(parsed))
    fields = _find_body(levels)
    path = next((p for one in levels if (p := _find_path(one))), "")
    route = _find_route(path, fields)
    model = next((m for one in (fields, *levels) if isinstance(m := one.get("model"), str)), None)
    at_s = next((at for one in levels if (at := _find_time(one)) is not None), None)
    answer = next((said for one in levels if (said := _find_answer(one)) is not None), None)
    kept = {name: value for name, value in fields.items() if name != "model"}
    return RecordedRequest(number, RecordedBody(route=route, fields=kept), model, at_s, answer)


def _parse(line: bytes) -> Mapping[str, Any]:
    try:
        parsed = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise ValueError("not a JSON object")
    return parsed


def _list_levels(parsed: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield an object and the envelopes within it, the outermost first."""
    level: Any = parsed
    for _ in range(_MOST_LEVELS):
        yield level
        if _is_body(level):
            return
        inner = next((one for name in _BODIES if (one := _open(level.get(name)))), None)
        if inner is None:
            return
        level = inner


def _open(value: object) -> Mapping[str, Any] | None:
    """Return an object, also one that is logged as the text of its JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _is_body(level: Mapping[str, Any]) -> bool:
    """Return True if an object has a prompt; the `input` of Langfuse may be an envelope."""
    if isinstance(level.get("messages"), list) or isinstance(level.get("prompt"), str | list):
        return True
    given = level.get("input")
    return isinstance(given, list) or (isinstance(given, str) and _open(given) is None)


def _find_body(levels: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the fields of the innermost body. Raises ValueError if none has a prompt."""
    level = levels[-1]
    if not _is_body(level):
        raise ValueError("no messages, prompt or input in it")
    parameters = next((one for name in _PARAMETERS if (one := _open(level.get(name)))), None)
    if parameters is None and not _is_logged(level):
        return level
    sign = next(name for name, _ in _SIGNS if level.get(name))
    if sign == "input" and _holds_turns(level["input"]) and not _find_path(level):
        sign, value = "messages", level["input"]
    else:
        value = level[sign]
    streamed = {"stream": True} if level.get("stream") is True else {}
    tools = {name: level[name] for name in ("tools", "response_format") if level.get(name)}
    given = {name: one for name, one in (parameters or {}).items() if one is not None}
    return {sign: value, **streamed, **tools, **given}


def _is_logged(level: Mapping[str, Any]) -> bool:
    """Return True if fields of a log stand next to a prompt, which no server would take."""
    return any(name in level for name in (*_ANSWERS, *_PARAMETERS, "startTime", "call_type"))


def _holds_turns(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and "role" in one and "type" not in one for one in value
    )


def _find_path(level: Mapping[str, Any]) -> str:
    found = (level.get(name) for name in _PATHS)
    return next((one for one in found if isinstance(one, str) and "/" in one), "")


def _find_route(path: str, fields: Mapping[str, Any]) -> Route:
    """Return the route of a body, by its path or else by its keys. Raises ValueError."""
    plain = path.partition("?")[0].rstrip("/")
    for _, route in _SIGNS:
        if plain.endswith(route) and (
            route is not Route.COMPLETIONS or not plain.endswith(Route.CHAT)
        ):
            return route
    if plain:
        raise ValueError(f"{plain} is not the route of chat, completions or responses")
    return next(route for name, route in _SIGNS if fields.get(name) is not None)


def _find_time(level: Mapping[str, Any]) -> float | None:
    """Return the time of a level in seconds, from a number in any usual unit or a date."""
    for name in _TIMES:
        value = level.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return next((value / per_s for least, per_s in _UNITS_PER_S if value >= least), value)
        if isinstance(value, str) and value:
            try:
                at = datetime.fromisoformat(value)
            except ValueError:
                continue
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return None


def _find_answer(level: Mapping[str, Any]) -> str | None:
    """Return the text of the answer that a level holds, or None."""
    for name in _ANSWERS:
        value = level.get(name)
        if isinstance(value, str) and _open(value) is None:
            return value
        if (answer := _open(value)) is not None:
            inner = answer.get("body")
            return _read_answer(inner if isinstance(inner, dict) else answer)
    return None


def _read_answer(answer: Mapping[str, Any]) -> str | None:
    """Return the text of an answer in the form of any of the routes, or None."""
    match answer:
        case {"choices": [{"message": {"content": str(said)}}, *_]}:
            return said
        case {"choices": [{"message": {}}, *_]}:
            return ""
        case {"choices": [{"text": str(said)}, *_]} | {"output_text": str(said)}:
            return said
        case {"content": str(said)}:
            return said
        case {"output": [*items]}:
            parts = (part for one in items if isinstance(one, dict) for part in _list_parts(one))
            return "".join(text for part in parts if isinstance(text := part.get("text"), str))
    return None


def _list_parts(item: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = item.get("content")
    return [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []


def _join(request: RecordedRequest, answer: str | None) -> RecordedRequest:
    if answer is None:
        return request
    return RecordedRequest(request.line, request.body, request.model, request.at_s, answer)
