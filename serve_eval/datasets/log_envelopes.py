"""Find the request in a line of a gateway's log, however deeply it is nested. Pure.

The body is the outermost object with a prompt. The search goes level by level, and decodes objects
that are logged as JSON strings or in base64. It skips headers, which contain keys, and answers. The
objects around the body have the route, the time, the answer and the parameters.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from serve_eval.schema import RecordedBody, Route

Level = Mapping[str, Any]
_MOST_LEVELS, _MOST_OBJECTS = 8, 400
"""Envelopes within envelopes, and objects of a line, that are searched."""
_BODIES = ("body", "request_body", "requestBody", "request", "input", "inputs", "kwargs")
"""Usual names of a body, which are searched first; a body of another name must have a model."""
_PATHS = (
    *("url", "route", "path", "request_path", "endpoint", "target", "uri", "request_uri"),
    *("requestUri", "request", "request_line", "request_url", "http.target", "url.path"),
)
_TIMES = (
    *("timestamp", "time", "ts", "recorded_at", "received_at", "arrival_time", "startTime"),
    *("start_time", "request_created_at", "created_at", "createdAt", "requestedAt", "@timestamp"),
    *("started_at", "startedDateTime", "timestamp_ms", "time_iso8601", "msec", "time_local"),
    *("request_timestamp", "event_time_unix_ms", "timestamp_utc", "timestamp_rel_s"),
    *("datetime", "date", "created", "request_time"),
)
_LEAST_TIME = 1e8
"""Least number of seconds since 1970: smaller ones are offsets, or durations of requests."""
_ANSWERS = (
    *("response_body", "responseBody", "response", "output", "outputs", "answer", "completion"),
    *("resp", "choices", "payload", "result"),
)
_PARAMETERS = ("model_parameters", "modelParameters", "optional_params", "invocation_params")
_UNSEARCHED = {*_ANSWERS, *_PARAMETERS, "tools"} - {"payload", "result"}
_SIGNS = (
    ("messages", Route.CHAT),
    ("prompt", Route.COMPLETIONS),
    ("input", Route.RESPONSES),
)
_OTHER_ROUTES = (
    *("/embeddings", "/rerank", "/score", "/pooling", "/classify", "/moderations", "/tokenize"),
    *("/transcriptions", "/translations", "/speech", "/generations", "/edits", "/messages"),
    *("/models", "/detokenize", "/generate", "/health", "/metrics", "/batches", "/files"),
)
_UNITS_PER_S = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
"""Least value of a time since 1970 in nanoseconds, microseconds and milliseconds."""
_REDACTED = "redacted-by-litellm"
_MOST_NAMES = 8
"""Fields that the message about a line without a request names."""


def open_line(parsed: Level) -> tuple[RecordedBody, str | None, float | None, str | None]:
    """Return the body of a line, the model that was asked, the time and the text of the answer.

    Raises ValueError with the reason if the line has no request, or several.
    """
    levels = _find_levels(parsed)
    fields = _find_body(levels)
    path = next((p for one in reversed(levels) if (p := _find_path(one))), "")
    route = _find_route(path, fields)
    model = next((m for one in (fields, *levels) if isinstance(m := one.get("model"), str)), None)
    at_s = _find_time(levels)
    answer = next((said for one in levels if (said := find_answer(one)) is not None), None)
    kept = {name: value for name, value in fields.items() if name != "model"}
    return RecordedBody(route=route, fields=kept), model, at_s, answer


class _Place(NamedTuple):
    """An object of a line with those around it, the names that lead to it, and its last list."""

    levels: tuple[Level, ...]
    names: str = ""
    list_at: str = ""


def _find_levels(parsed: Level) -> tuple[Level, ...]:
    """Return the objects around the outermost body, and the body last. Raises ValueError."""
    reached = [_Place((_unfold(parsed),))]
    found = reached if _is_body(reached[0].levels[0]) else []
    seen, cut = 0, ""
    for _ in range(_MOST_LEVELS):
        if found or seen > _MOST_OBJECTS:
            break
        cut = cut or next((told for at in reached if (told := _describe_cut(at.levels[-1]))), "")
        reached = [inner for at in reached for inner in _list_inner(at)]
        seen += len(reached)
        found = [at for at in reached if _is_named_body(at)]
    if not found:
        names = ", ".join(list(parsed)[:_MOST_NAMES]) or "none"
        raise ValueError(cut or f"no messages, prompt or input in it; its fields: {names}")
    if len(found) > 1 and (at := found[0].list_at) and found[1].list_at == at:
        raise ValueError(
            f"{len(found)} requests in one object; write each on a line: jq -c '{at}[]'"
        )
    return found[0].levels


def _list_inner(place: _Place) -> Iterator[_Place]:
    """Yield the objects in an object and in its lists."""
    for name, value in _order(place.levels[-1]):
        names = f"{place.names}.{name}"
        if isinstance(value, list):
            inner = (one for item in value if (one := open_text(item)) is not None)
            yield from (_Place((*place.levels, _unfold(one)), names, names) for one in inner)
        elif (one := open_text(value)) is not None:
            yield _Place((*place.levels, _unfold(one)), names, place.list_at)


def _is_named_body(place: _Place) -> bool:
    """Return True for a body; one with an unusual name must have a model, or turns."""
    body = place.levels[-1]
    usual = place.names.rpartition(".")[2] in _BODIES
    return _is_body(body) and (usual or "model" in body or _holds_turns(body.get("messages")))


def _order(level: Level) -> list[tuple[str, Any]]:
    """Return the fields of an object to search, usual names of a body first."""
    usual = [(name, level[name]) for name in _BODIES if name in level]
    rest = [
        (name, value)
        for name, value in level.items()
        if name not in _BODIES and name not in _UNSEARCHED and not name.lower().endswith("headers")
    ]
    return usual + rest


def open_text(value: object) -> Level | None:
    """Return an object, decoded if it is logged as a JSON string or in base64."""
    if isinstance(value, str):
        text: str | bytes = value.lstrip()
        if value[:2] in ("ey", "ew"):  # an object in base64
            try:
                text = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError):
                return None
        elif not value.lstrip().startswith("{"):
            return None
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def _describe_cut(level: Level) -> str:
    """Return why a text that begins like a body cannot be read, or ""."""
    for name, value in level.items():
        if name in _UNSEARCHED or not isinstance(value, str) or value.lstrip()[:1] != "{":
            continue
        if open_text(value) is None and any(f'"{sign}"' in value for sign, _ in _SIGNS):
            return f"{name} is cut: no whole JSON in its {len(value):,} characters"
    return ""


def _unfold(level: Level) -> Level:
    """Return an object with its turns, decoded if they are logged as a JSON string."""
    folded = {
        name: turns
        for name in ("messages", "input")
        if (turns := _open_turns(level.get(name))) is not None
    }
    return {**level, **folded} if folded else level


def _open_turns(value: object) -> list[Any] | None:
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return None
    try:
        turns = msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return None
    whole = turns and all(isinstance(one, dict) and "role" in one for one in turns)
    return turns if whole else None


def _is_body(level: Level) -> bool:
    """Return True if an object has a prompt; the `input` of Langfuse may be an envelope."""
    if isinstance(level.get("messages"), list) or isinstance(level.get("prompt"), str | list):
        return True
    given = level.get("input")
    return isinstance(given, list) or (isinstance(given, str) and open_text(given) is None)


def _find_body(levels: Sequence[Level]) -> Level:
    """Return the fields of a body, including parameters that were logged next to it.

    Raises ValueError for a body of another API, or one whose texts were removed.
    """
    level = levels[-1]
    around = [one for level in levels for one in (level, open_text(level.get("extra")) or {})]
    parameters = next(
        (one for at in around for name in _PARAMETERS if (one := open_text(at.get(name)))), None
    )
    turns = level.get("messages") or ()
    if _REDACTED in str(turns)[:1000]:
        raise ValueError("its messages are redacted")
    if not all(isinstance(one, dict) and "role" in one for one in turns):
        raise ValueError("its messages are not all objects with a role")
    if "anthropic_version" in level or ("messages" in level and "system" in level):
        raise ValueError("a body of Anthropic's Messages, which OpenAI's routes do not take")
    given = {name: one for name, one in (parameters or {}).items() if one is not None}
    if not _is_logged(level):
        ours = {name: one for name, one in level.items() if name not in (*_TIMES, *_PATHS)}
        return {**given, **ours}
    sign = next((name for name, _ in _SIGNS if level.get(name)), "")
    if not sign:
        raise ValueError("its prompt is empty")
    value = level[sign]
    if sign == "input" and not any(_find_path(one) for one in levels):
        if not _holds_turns(value):
            raise ValueError(
                "its input is not a list of messages, and no route is logged: add a url"
            )
        sign = "messages"
    streamed = {"stream": True} if level.get("stream") is True else {}
    tools = {name: level[name] for name in ("tools", "response_format") if level.get(name)}
    return {sign: value, **streamed, **tools, **given}


def _is_logged(level: Level) -> bool:
    """Return True if fields of a log stand next to a prompt, which no server would take."""
    return any(name in level for name in (*_ANSWERS, *_PARAMETERS, "startTime", "call_type"))


def _holds_turns(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and "role" in one and "type" not in one for one in value
    )


def _find_path(level: Level) -> str:
    """Return the path of a request, also from a request line: POST /v1/... HTTP/1.1."""
    for name in _PATHS:
        value = level.get(name)
        if isinstance(value, str) and len(value) < 2048 and "/" in value and "{" not in value:
            words = value.split()
            found = words[1] if len(words) > 1 and words[0].isupper() else value
            plain = found.partition("?")[0].rstrip("/")
            return plain if plain.startswith("/") or "://" in plain else f"/{plain}"
    return ""


def _find_route(path: str, fields: Level) -> Route:
    """Return the route of a body, by its path or else by its keys. Raises ValueError."""
    for _, route in _SIGNS:
        if path.endswith(route) and (
            route is not Route.COMPLETIONS or not path.endswith(Route.CHAT)
        ):
            return route
    if path.endswith(_OTHER_ROUTES):
        raise ValueError(f"{path} is not the route of chat, completions or responses")
    found = next((route for name, route in _SIGNS if fields.get(name) is not None), None)
    if found is None:
        raise ValueError("its prompt is empty")
    return found


def _find_time(levels: Sequence[Level]) -> float | None:
    """Return the time of a request in seconds, a date if there is one, or else an offset."""
    read = ((name, _read_time(one.get(name))) for one in levels for name in _TIMES)
    found = [
        at for name, at in read if at is not None and (at >= _LEAST_TIME or name != "request_time")
    ]
    return next((at for at in found if at >= _LEAST_TIME), next(iter(found), None))


def _read_time(value: object) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return _read_date(str(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        per_s = next((per_s for least, per_s in _UNITS_PER_S if value >= least), 1.0)
        return value / per_s
    return None


def _read_date(text: str) -> float | None:
    """Return the seconds of a date in ISO's form or in that of access logs, or None."""
    for read in (datetime.fromisoformat, _read_local):
        try:
            at = read(text)
        except ValueError:
            continue
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    return None


def _read_local(text: str) -> datetime:
    return datetime.strptime(text.strip("[]"), "%d/%b/%Y:%H:%M:%S %z")


def find_answer(level: Level) -> str | None:
    """Return the text of the answer that a level holds, or None."""
    for name in _ANSWERS:
        value = level.get(name)
        if isinstance(value, str) and open_text(value) is None:
            return _join_events(value)
        if name == "choices" and isinstance(value, list):
            return _read_answer(level)
        if (answer := open_text(value)) is not None:
            inner = answer.get("body")
            if isinstance(inner, str) and open_text(inner) is None:
                return _join_events(inner)
            return _read_answer(open_text(inner) or answer)
    return None


def _join_events(text: str) -> str:
    """Return the text of an answer, or the joined deltas of an event stream."""
    if not text.lstrip().startswith("data:"):
        return text
    parts = []
    for line in text.splitlines():
        event = open_text(line.removeprefix("data:").strip()) or {}
        for choice in event.get("choices") or ():
            match choice:
                case {"delta": {"content": str(said)}} | {"text": str(said)}:
                    parts.append(said)
        if event.get("type") == "response.output_text.delta":
            parts.append(str(event.get("delta", "")))
    return "".join(parts)


def _read_answer(answer: Level) -> str | None:
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


def _list_parts(item: Level) -> Iterator[Level]:
    content = item.get("content")
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict):
            yield one
