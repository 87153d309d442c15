"""Tool calls of a worker: parsed, streamed in pieces, and broken on demand as real parsers do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from serve_eval.launchers._simulated.guided import generate_call
from serve_eval.launchers._standin.generation import CLOSE, Output, split_calls, split_thoughts

PIECE = 5
"""Characters of the arguments in a piece of a stream."""


class ToolFaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Faults of parsers and streams."""

    drops_last_piece: bool = False
    """A stream ends without its last piece of text or arguments."""
    cuts_characters: bool = False
    """A stream decodes each piece alone: a character that takes several pieces is lost."""
    interval: int = 1
    """Tokens in a piece of a stream; from 10 on, the parser takes streamed calls for text."""
    leaves_markup: bool = False
    """The parser does not find the end of a call: all of it stays in the text."""
    breaks_json_above: int | None = None
    """With more open connections, JSON loses a sign."""
    loses_reasoning: bool = False
    """Thoughts vanish if a call follows."""
    one_index: bool = False
    """All calls of a stream have the index 0."""
    one_id: bool = False
    """All calls of an answer have one id."""
    wrong_finish: bool = False
    """The finish_reason of a call is stop."""
    wrong_usage: bool = False
    """A stream counts the tokens of its prompt twice."""
    forgets_arguments: bool = False
    """The parser drops all but the first argument."""
    ignores_choice: bool = False
    """`tool_choice` is not applied: no call is forced."""

    def interferes(self, in_flight: int) -> bool:
        """Return True if JSON breaks at this number of requests in flight."""
        return self.breaks_json_above is not None and in_flight > self.breaks_json_above


class Parsed(msgspec.Struct):
    """An answer as the parsers split it. A stream may show it otherwise."""

    text: str
    thoughts: str | None
    calls: list[dict[str, Any]]

    def finish(self, output: Output, faults: ToolFaults) -> str:
        return "tool_calls" if self.calls and not faults.wrong_finish else output.finish_reason


def parse_answer(
    output: Output,
    faults: ToolFaults,
    *,
    tools: bool,
    reasoning: bool,
    opened: bool = False,
    in_flight: int = 0,
    streamed: bool = False,
    markup: bool = False,
) -> Parsed:
    """Return the parts of an answer. `tools` and `reasoning`: the server has these parsers.

    `opened`: the prompt ended within the thoughts. `markup`: calls that no parser reads stay in the
    text as the model writes them.
    """
    whole = f"<think>{output.text}" if opened else output.text
    thoughts, text = split_thoughts(whole) if reasoning else (None, output.text)
    if faults.interferes(in_flight) and "{" in text:
        text = text.replace(":", "", 1) if not split_calls(text) else text
    # A tool parser finds a call behind thoughts that no reasoning parser took away.
    inline, closed, rest = text.rpartition(CLOSE)
    calls = split_calls(rest) if tools and output.finish_reason == "stop" else []
    if calls and (faults.leaves_markup or (streamed and faults.interval >= 10)):
        return Parsed(inline + closed + write_markup(calls), thoughts, [])
    if markup and not tools and (unread := split_calls(rest)):
        return Parsed(inline + closed + write_markup(unread), thoughts, [])
    for call in calls:
        _damage(call, faults, broken=faults.interferes(in_flight))
    if calls and faults.loses_reasoning:
        thoughts = ""
    return Parsed(inline + closed if calls else text, thoughts, calls)


def write_markup(calls: list[dict[str, Any]]) -> str:
    """Return calls as a model writes them, before a parser reads them."""
    return "".join(f"<tool_call>{json.dumps(call['function'])}</tool_call>" for call in calls)


def force_call(output: Output, tool: Mapping[str, Any], faults: ToolFaults) -> Parsed:
    """Return the answer to a request that names the tool: guided decoding writes its arguments."""
    name = tool.get("name")
    called = [call for call in split_calls(output.text) if call["function"]["name"] == name]
    calls = (called or split_calls(generate_call([{"function": tool}])))[:1]
    for call in calls:
        _damage(call, faults, broken=False)
    return Parsed("", None, calls)


def _damage(call: dict[str, Any], faults: ToolFaults, *, broken: bool) -> None:
    function = call["function"]
    if faults.one_id:
        call["id"] = "chatcmpl-tool"
    if faults.forgets_arguments:
        kept = list(json.loads(function["arguments"]).items())[:1]
        function["arguments"] = json.dumps(dict(kept), ensure_ascii=False)
    if broken:
        function["arguments"] = function["arguments"].replace(":", "", 1)[:-1]


def split_pieces(text: str, faults: ToolFaults) -> list[str]:
    """Return the pieces of a stream of a text, as the faults leave them."""
    size = PIECE * faults.interval
    if faults.cuts_characters:
        raw = text.encode()
        cut = [raw[i : i + size] for i in range(0, len(raw), size)]
        return [piece.decode("utf-8", "replace") for piece in cut]
    return [text[i : i + size] for i in range(0, len(text), size)]


def list_deltas(parsed: Parsed, faults: ToolFaults) -> Iterator[dict[str, Any]]:
    """Yield the pieces of a streamed answer."""
    deltas: list[dict[str, Any]] = []
    deltas += [{"reasoning_content": one} for one in split_pieces(parsed.thoughts or "", faults)]
    deltas += [{"content": one} for one in split_pieces(parsed.text, faults)]
    for place, call in enumerate(parsed.calls):
        index = 0 if faults.one_index else place
        function = {**call["function"], "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, **call, "function": function}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": one}}]}
            for one in split_pieces(call["function"]["arguments"], faults)
        ]
    yield from deltas[:-1] if faults.drops_last_piece else deltas
