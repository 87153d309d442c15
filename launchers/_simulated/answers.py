"""Find the answer of the simulated endpoint to a request, or make up one that fits a schema.

The answer file has one JSON object per line: `sha256` of the prompt
(`serve_eval.schema.media`), the texts `right` and `wrong`, and the `probability` of the right
one. A token is a word with the white space before it.

Hashes decide chance. The answer is right if a uniform number of (seed, run, prompt) is below the
probability times (1 - damage), so more damage only adds wrong answers. The prompts that fail, are
cut or come back empty depend on (seed, prompt).

A known answer of the form `{"tool_calls": [{"name": ..., "arguments": {...}}]}` is returned as
calls if its request offers tools, else as text. An unknown prompt gets a call of the first tool.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from serve_eval.launchers._http.answers import Call, Events, Generated, TokenUsage, answer_body
from serve_eval.launchers._http.requests import Ask
from serve_eval.launchers._simulated.config import SimulatorConfig
from serve_eval.schema import Prompt
from serve_eval.schema.media import prompt_sha256, uniform, without_answers

UNKNOWN_ANSWER = "I do not know."
SAMPLED_ANSWERS = (
    UNKNOWN_ANSWER,
    "I cannot tell.",
    "That is unknown to me.",
    "Nobody told me that.",
    "I have no answer to this.",
)
"""Answers to a prompt that the answer file does not know: the first, or with a temperature, one
that the request's seed decides."""


class _Entry(msgspec.Struct):
    """A line of the answer file."""

    sha256: str
    right: str
    wrong: str
    probability: float


class AnswerFile:
    """Draws chance once, when it reads the answer file; a request then only looks up.

    `by_hash` has the answer of each known prompt, `failing` the hashes of the prompts that fail.
    Raises OSError or msgspec.MsgspecError for a bad answer file.
    """

    def __init__(self, config: SimulatorConfig) -> None:
        self._config = config
        self.by_hash: dict[str, Generated] = {}
        self.failing: set[str] = set()
        self._entries: dict[str, _Entry] = {}
        self._drawn: Counter[str] = Counter()
        lines = config.answers.read_bytes() if config.answers else b""
        for entry in msgspec.json.Decoder(_Entry).decode_lines(lines):
            self.by_hash[entry.sha256] = self._draw(entry)
            if config.varied:
                self._entries[entry.sha256] = entry
            if uniform(f"{config.seed}:fail:{entry.sha256}") < config.failure_rate:
                self.failing.add(entry.sha256)

    def find_key(self, prompt: Prompt) -> str:
        """Return the hash of a prompt, or that of its turns without answers if it is unknown.

        An answer file has the turns of a conversation without answers, which it does not foresee.
        """
        key = prompt_sha256(prompt)
        if isinstance(prompt, str) or key in self.by_hash:
            return key
        said = without_answers(prompt)
        other = key if len(said) == len(prompt) else prompt_sha256(said)
        return other if other in self.by_hash else key

    def answer(self, key: str, ask: Ask) -> Generated:
        """Return the answer to a prompt by its hash, or a made-up one if it is unknown.

        With `varied`, it is drawn again each time.
        """
        if key in self._entries:
            again = self._drawn[key]
            self._drawn[key] += 1
            return self._draw(self._entries[key], again)
        return self.by_hash.get(key) or self._make_up(key, ask)

    def _draw(self, entry: _Entry, again: int = 0) -> Generated:
        config, key = self._config, entry.sha256
        drawn = f"{config.seed}:{config.run}:{key}" + (f":{again}" if again else "")
        right = uniform(drawn) < entry.probability * (1.0 - config.damage)
        text = entry.right if right else entry.wrong
        if uniform(f"{config.seed}:empty:{key}") < config.empty_rate:
            return Generated("", "stop")
        if uniform(f"{config.seed}:truncate:{key}") < config.truncate_rate:
            return Generated(first(text, max(1, len(text.split()) // 2)), "length")
        return Generated(text, "stop")

    def _make_up(self, key: str, ask: Ask) -> Generated:
        if ask.response_format and not self._config.no_guided:
            schema = schema_of(ask.response_format)
            if schema is not None:
                return Generated(generate_text(schema), "stop")
        if ask.tools:
            return Generated(generate_call(ask.tools), "stop")
        draw = (
            int(len(SAMPLED_ANSWERS) * uniform(f"{ask.seed or 0}:{key}")) if ask.temperature else 0
        )
        return Generated(SAMPLED_ANSWERS[draw], "stop")


class Asked(NamedTuple):
    """A request that can be answered, with its token counts."""

    ask: Ask
    prompts: Sequence[Prompt]
    hashes: Sequence[str]
    max_tokens: int
    prompt_tokens: int

    def usage(self, generated: Sequence[Generated]) -> TokenUsage:
        """Count the words of the prompts and of their answers."""
        said = [
            text
            for one in generated
            for text in (one.text, *(call.arguments for call in one.calls))
        ]
        return TokenUsage(self.prompt_tokens, sum(len(text.split()) for text in said if text))


def whole(asked: Asked, number: int, generated: Sequence[Generated]) -> bytes:
    """Return the answer as one JSON body."""
    return answer_body(asked.ask, number, generated, asked.usage(generated))


async def events(
    asked: Asked, number: int, generated: Sequence[Generated], *, finish: bool = True
) -> AsyncIterator[bytes]:
    """Yield the answer as server-sent events, one per word."""
    stream = Events(asked.ask, number)
    for index, one in enumerate(generated):
        for event in stream.begin_choice(index, one):
            yield event
        for piece in pieces(one.text or ""):
            yield stream.piece(index, piece)
        for place, call in enumerate(one.calls):
            for event in stream.call(index, place, call, pieces(call.arguments)):
                yield event
        if finish:
            yield stream.end(index, one)
    for event in stream.finish(asked.usage(generated)):
        yield event


MEDIA_TOKENS = 64
"""Number of tokens for an image, a sound or a video in a prompt."""

_WORD = re.compile(r"\s*\S+")
_PIECE = re.compile(r"\s*\S+|\s+")


def of_prompt(prompt: Prompt, truncate: int | None) -> int:
    """Return the number of tokens of a prompt; only the last `truncate` count."""
    texts = [prompt] if isinstance(prompt, str) else [turn.text for turn in prompt]
    media = 0 if isinstance(prompt, str) else sum(len(turn.media) for turn in prompt)
    words = sum(len(text.split()) for text in texts) + MEDIA_TOKENS * media
    return words if truncate is None else min(words, truncate)


def pieces(text: str) -> Iterator[str]:
    """Yield a text word by word, each with the white space before it."""
    return (match.group() for match in _PIECE.finditer(text))


def first(text: str, count: int) -> str:
    """Return the text up to the end of its `count`-th word."""
    end = 0
    for word in itertools.islice(_WORD.finditer(text), count):
        end = word.end()
    return text[:end]


def limit(generated: Generated, max_tokens: int, stops: Sequence[str]) -> Generated:
    """Return the answer cut at `max_tokens` words and before the first stop string."""
    text, finish_reason, *_ = generated
    assert text is not None
    if len(text) > max_tokens and len(text.split()) > max_tokens:
        text, finish_reason = first(text, max_tokens), "length"
    ends = [(end, stop) for stop in stops if (end := text.find(stop)) >= 0]
    if ends:
        end, stop = min(ends)
        return Generated(text[:end], "stop", stop)
    return Generated(text, finish_reason)


_PLAIN: Mapping[str, object] = {
    "string": "a",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_LARGEST = 10_000
"""Maximum items or characters of a made-up value."""


def schema_of(response_format: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of a `response_format`; None if it has none.

    Accepts trtllm-serve's form and OpenAI's.
    """
    inner = response_format.get("json_schema")
    found = inner.get("schema", inner) if isinstance(inner, dict) else response_format.get("schema")
    return found if isinstance(found, dict) else None


def generate_text(schema: Mapping[str, Any]) -> str:
    """Return a small JSON text that a schema allows.

    The schema must have no pattern and allow something small. Returns null for a schema that needs
    itself or is not valid.
    """
    try:
        return json.dumps(_generate(schema, schema, frozenset({"#"})))
    except (AttributeError, RecursionError, TypeError, ValueError):
        return "null"


def _generate(schema: Any, root: Mapping[str, Any], within: frozenset[str]) -> object:
    """Return the smallest value of a schema.

    `within` are the references that lead here; the smallest value needs none of them again. Raises
    RecursionError for a schema that needs itself.
    """
    if not isinstance(schema, Mapping):
        return _PLAIN["string"]
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][0]
    if isinstance(reference := schema.get("$ref"), str):
        if reference in within:
            raise RecursionError("the schema needs itself")
        return _generate(_resolve_reference(root, reference), root, within | {reference})
    if ways := schema.get("anyOf") or schema.get("oneOf"):
        return _first_fitting(ways, root, within)
    return _generate_type(schema, root, within)


def _first_fitting(ways: Sequence[Any], root: Mapping[str, Any], within: frozenset[str]) -> object:
    """Follow the first way that does not need itself."""
    for way in ways[:-1]:
        with suppress(RecursionError):
            return _generate(way, root, within)
    return _generate(ways[-1], root, within)


def _generate_type(
    schema: Mapping[str, Any], root: Mapping[str, Any], within: frozenset[str]
) -> object:
    """Return a small value of the schema's type."""
    match _type(schema):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _generate(properties.get(name), root, within)
                for name in schema.get("required", ())
            }
        case "array":
            return [
                _generate(schema.get("items"), root, within)
                for _ in range(_size(schema, "minItems", 0))
            ]
        case "string":
            return "a" * min(
                _size(schema, "minLength", 1), int(schema.get("maxLength", 1 + _LARGEST))
            )
        case "integer" | "number" as kind:
            return _number(schema, _PLAIN[kind])
        case kind:
            return _PLAIN.get(kind, "a")


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "object" if {"properties", "required"} & schema.keys() else "string")
    return str(kind[0] if isinstance(kind, list) and kind else kind)


def _size(schema: Mapping[str, Any], word: str, usual: int) -> int:
    return min(max(usual, int(schema.get(word, 0))), _LARGEST)


def _number(schema: Mapping[str, Any], usual: Any) -> object:
    """Return the usual number, or one near it within the bounds."""
    least = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf) + 1)
    most = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf) - 1)
    return min(max(usual, least), most)


def _resolve_reference(root: Mapping[str, Any], reference: str) -> object:
    """Return the part of the schema that a reference names."""
    found: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        found = (
            found.get(name.replace("~1", "/").replace("~0", "~"))
            if isinstance(found, Mapping)
            else None
        )
    return found


class _Call(msgspec.Struct):
    name: str
    arguments: Any = {}


class _Calls(msgspec.Struct, forbid_unknown_fields=True):
    tool_calls: list[_Call]


_decode = msgspec.json.Decoder(_Calls).decode


def split_calls(generated: Generated, ask: Ask) -> Generated:
    """Return the answer with its tool calls separated.

    The answer is unchanged unless the request offers tools and the whole answer calls some.
    """
    if not ask.tools or generated.finish_reason != "stop" or not generated.text:
        return generated
    try:
        found = _decode(generated.text).tool_calls
    except msgspec.DecodeError:
        return generated
    calls = [Call(call.name, json.dumps(call.arguments)) for call in found]
    return (
        generated._replace(text=None, finish_reason="tool_calls", calls=calls)
        if calls
        else generated
    )


def generate_call(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return a call of the first tool, with arguments that its schema allows."""
    function = tools[0].get("function") or {}
    arguments = json.loads(generate_text(function.get("parameters") or {"type": "object"}))
    return json.dumps(
        {"tool_calls": [{"name": function.get("name", "unnamed"), "arguments": arguments}]}
    )
