"""Find and count the errors of tool calls and guided answers as a server gave them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from serve_eval.schema import Outcome, Response, Sample, Score, ToolCall
from serve_eval.scorers._blocks import same
from serve_eval.scorers._validation import is_valid


class CallFault(StrEnum):
    """One kind of error, from the most to the least telling if an answer has several."""

    MARKUP = "markup left"
    BROKEN_TEXT = "broken characters"
    CUT = "cut"
    INVALID_JSON = "invalid JSON"
    EMPTY_ARGUMENTS = "empty arguments"
    UNKNOWN_NAME = "unknown tool"
    SCHEMA = "schema mismatch"
    MISSED = "missed call"
    UNWANTED = "unwanted call"
    EMPTY = "empty answer"
    LOST_TOKENS = "lost tokens"
    FINISH = "wrong finish_reason"
    FRAME = "bad id or index"
    VALUES = "other values"


POINTS_TO: Mapping[CallFault, str] = {
    CallFault.MARKUP: (
        "the tool parser does not fit the model, or misses a mark that arrives in pieces: the call"
        " stays in the text, or marks stay in its arguments"
    ),
    CallFault.BROKEN_TEXT: ("the stream, or the parser, cuts within the bytes of one character"),
    CallFault.CUT: "max_tokens ended the answer: raise it, or the answer never ends",
    CallFault.INVALID_JSON: (
        "a piece of the arguments was lost or sent twice, or guided decoding was not applied"
    ),
    CallFault.EMPTY_ARGUMENTS: (
        "the server writes an empty text where {} is due: clients that parse arguments break"
    ),
    CallFault.UNKNOWN_NAME: (
        "the parser cut the name, or tool_choice was not enforced, or the model made it up"
    ),
    CallFault.SCHEMA: (
        "arguments were lost or changed, or guided decoding ignores a part of the schema"
    ),
    CallFault.MISSED: (
        "the parser did not see the call, tool_choice was not enforced, or the model chose none"
    ),
    CallFault.UNWANTED: "tool_choice was not enforced, or the model chose to call",
    CallFault.EMPTY: "neither a text nor a call: a parser swallowed it, or the model said nothing",
    CallFault.LOST_TOKENS: (
        "the server counts far more tokens than it shows: reasoning or text vanished in a parser"
    ),
    CallFault.FINISH: "the server's ending of a call: clients that look at it miss the call",
    CallFault.FRAME: "the server's frame of the calls: clients join pieces by id and index",
    CallFault.VALUES: "values were changed or mixed up, or the model does not copy well",
}
"""The part of a server that an error points to."""
OF_SERVER = (
    CallFault.EMPTY_ARGUMENTS,
    CallFault.LOST_TOKENS,
    CallFault.FINISH,
    CallFault.FRAME,
)
"""Errors that no model can make."""


Wanted = Literal["call", "no call", "json", "text"]

MARKUP = re.compile(
    r"</?(?:tool_call|function_call|tool_response|think|function|parameter|invoke)\b[^>\n]{0,80}>"
    r"|<function=|<parameter=|\[/?TOOL_CALLS\]|<\|python_tag\|>"
    r"|<\|(?:tool|im_|channel|message|call|start|end|redacted)[^|\n]{0,40}\|>|<｜[^｜\n]{0,40}｜>"
)
"""Marks of the call formats and chat templates of common models."""
TOKENS_OF_A_CALL = 32
"""Tokens of marks around an answer or a call that usage counts and no text shows."""
REPLACED = "\N{REPLACEMENT CHARACTER}"
CALLED = ("tool_calls", "function_call")


class ServedExpectation(Struct, frozen=True, omit_defaults=True):
    """The right answer to a request.

    `wanted` "call": between `least` and `most` calls; `auto`: the model may choose, so that only
    `finish_reason` tool_calls is right. `calls` are those of a right answer, and `exact`: the
    request dictates their arguments. "json": a text that is JSON of `schema`; "text": a text
    that matches `pattern`, whose group, if it has one, is JSON of `schema`. `right` is such a text.
    """

    wanted: Wanted
    calls: tuple[ToolCall, ...] = ()
    least: int = 1
    most: int = 1
    auto: bool = False
    exact: bool = False
    right: str = ""
    pattern: str | None = None
    schema: str | None = None


_decode = msgspec.json.Decoder(ServedExpectation).decode


def read_expectation(sample: Sample) -> ServedExpectation:
    """Return what a sample expects."""
    return _decode(sample.target)


def score_served(sample: Sample, response: Response) -> Score:
    """Score 1 if nothing is wrong. The parts say what is, and the mode is the most telling."""
    found = find_faults(sample, response)
    calls = [{"name": call.name, "arguments": call.arguments} for call in response.tool_calls]
    return Score(
        value=float(not found),
        outcome=Outcome.WRONG if found else Outcome.CORRECT,
        answer=json.dumps(calls, ensure_ascii=False) if calls else response.text,
        parts={fault.value: float(fault in found) for fault in CallFault},
        mode=found[0].value if found else None,
    )


def find_faults(sample: Sample, response: Response) -> tuple[CallFault, ...]:
    """Return all that is wrong with an answer, the most telling first."""
    expected = read_expectation(sample)
    found = set(_find_faults(sample, expected, response))
    if CallFault.CUT in found:  # A cut answer breaks in ways that no parser is to blame for.
        found = {CallFault.CUT}
    return tuple(fault for fault in CallFault if fault in found)


def _find_faults(
    sample: Sample, expected: ServedExpectation, response: Response
) -> Iterator[CallFault]:
    if response.truncated:
        yield CallFault.CUT
    yield from _check_frame(expected, response)
    if expected.wanted in ("json", "text"):
        if response.tool_calls:
            yield CallFault.UNWANTED
        yield from _check_text(expected, response.text)
        return
    tools = _list_tools(sample)
    yield from _check_marks(expected, response, tools)
    made = response.tool_calls
    if expected.wanted == "no call" and not (made or response.text.strip()):
        yield CallFault.EMPTY
    if len(made) < (expected.least if expected.wanted == "call" else 0):
        yield CallFault.MISSED
    if len(made) > (expected.most if expected.wanted == "call" else 0):
        yield CallFault.UNWANTED
    for call in made:
        yield from _check_call(call, tools)
    if expected.exact and not _has_values(expected, made):
        yield CallFault.VALUES


def _list_tools(sample: Sample) -> Mapping[str, Mapping[str, Any]]:
    """Return the schemas of the tools that may be called, by name."""
    fields: Mapping[str, Any] = {} if sample.override is None else sample.override.extra
    tools = [tool["function"] for tool in fields.get("tools", ())]
    choice = fields.get("tool_choice")
    named = choice["function"]["name"] if isinstance(choice, dict) else None
    return {one["name"]: one["parameters"] for one in tools if named in (None, one["name"])}


def _check_frame(expected: ServedExpectation, response: Response) -> Iterator[CallFault]:
    """Check the parts that no model writes: the ending, the ids and the tokens."""
    finish, calls = response.server_finish or response.finish_reason, response.tool_calls
    ended = (*CALLED, "length") if expected.auto else (*CALLED, "length", "stop")
    if (finish not in ended) if calls else (finish in CALLED):
        yield CallFault.FINISH
    if response.call_faults is not UNSET and response.call_faults:
        yield CallFault.FRAME
    shown = response.text + (response.reasoning or "")
    shown += "".join(call.name + call.arguments for call in calls)
    if response.usage.shown_tokens > count_most_tokens(shown, len(calls)):
        yield CallFault.LOST_TOKENS


def count_most_tokens(shown: str, calls: int) -> int:
    """Return the most tokens that an answer can have: one for each byte, and those of marks."""
    return len(shown.encode("utf-8", "surrogatepass")) + TOKENS_OF_A_CALL * (calls + 1)


def _check_text(expected: ServedExpectation, text: str) -> Iterator[CallFault]:
    """Check an answer that guided decoding forms."""
    if REPLACED in text:
        yield CallFault.BROKEN_TEXT
    inner = text
    if expected.pattern is not None:
        matched = re.fullmatch(expected.pattern, text.strip(), re.DOTALL)
        if matched is None:
            yield CallFault.SCHEMA
            return
        if expected.schema is None:
            return
        inner = matched.group(1)
    try:
        found = json.loads(inner)
    except (ValueError, RecursionError):
        yield CallFault.INVALID_JSON
        return
    if not _fits(expected.schema or "{}", found, inner):
        yield CallFault.SCHEMA
    elif expected.exact and not same(found, json.loads(expected.right)):
        yield CallFault.VALUES


def _check_marks(
    expected: ServedExpectation, response: Response, tools: Mapping[str, Any]
) -> Iterator[CallFault]:
    texts = [response.text, *(call.name + call.arguments for call in response.tool_calls)]
    as_text = expected.auto and any(_holds_call(response.text, name) for name in tools)
    if as_text or any(MARKUP.search(text) for text in texts):
        yield CallFault.MARKUP
    if any(REPLACED in text for text in texts):
        yield CallFault.BROKEN_TEXT


def _holds_call(text: str, name: str) -> bool:
    """Return True if a text holds a call of a tool as JSON."""
    quoted = re.escape(json.dumps(name))
    return re.search(rf'"name"\s*:\s*{quoted}\s*,\s*"(?:arguments|parameters)"', text) is not None


def _check_call(call: ToolCall, tools: Mapping[str, Mapping[str, Any]]) -> Iterator[CallFault]:
    found = read_arguments(call)
    if found is None:
        yield CallFault.INVALID_JSON
    if not call.arguments.strip():
        yield CallFault.EMPTY_ARGUMENTS
    if call.name not in tools:
        yield CallFault.UNKNOWN_NAME
    elif found is not None and not _fits(json.dumps(tools[call.name]), found, call.arguments):
        yield CallFault.SCHEMA


def read_arguments(call: ToolCall) -> dict[str, Any] | None:
    """Return the arguments of a call, empty if it has none; None if they are no JSON object."""
    try:
        found = json.loads(call.arguments) if call.arguments.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _fits(schema: str, found: Any, text: str) -> bool:
    try:
        return is_valid(schema, found, partial(json.loads, text))
    except RecursionError:
        return False


def _has_values(expected: ServedExpectation, made: Sequence[ToolCall]) -> bool:
    """Return True if the calls have the arguments that the request dictates, as far as JSON."""
    if len(made) != len(expected.calls):
        return True  # Another fault says so.
    read = [(call.name, read_arguments(call)) for call in made]
    wanted = [(call.name, json.loads(call.arguments)) for call in expected.calls]
    pairs = zip(wanted, read, strict=True)
    return all(b is None or one != other or same(a, b) for (one, a), (other, b) in pairs)


@dataclass(frozen=True, slots=True)
class TriggerCounts:
    """Numbers of calls: those that were wanted, those that were not, and those that are missing."""

    right: int
    unwanted: int
    missed: int

    @property
    def precision(self) -> float:
        """The share of what was done that was wanted; 1 if nothing was done."""
        return _divide(self.right, self.right + self.unwanted)

    @property
    def recall(self) -> float:
        """The share of what was wanted that was done; 1 if nothing was wanted."""
        return _divide(self.right, self.right + self.missed)

    @property
    def f1(self) -> float:
        """The harmonic mean of the two: 2 right / (2 right + unwanted + missed)."""
        return _divide(2 * self.right, 2 * self.right + self.unwanted + self.missed)


def count_trigger(choices: Iterable[tuple[bool, bool]]) -> TriggerCounts:
    """Return the counts of (wanted, done) pairs."""
    right = unwanted = missed = 0
    for wanted, done in choices:
        right += wanted and done
        unwanted += done and not wanted
        missed += wanted and not done
    return TriggerCounts(right, unwanted, missed)


def _divide(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
