"""Turn token ids into an answer with its thoughts, tool calls, pieces and log-probabilities."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from serve_eval.launchers._simulated.answers import generate_call
from serve_eval.launchers._standin.fields import Request
from serve_eval.launchers._standin.model import EOS, decode, encode

[FILLER] = encode(".")
"""The token for an answer that must not be empty."""
FILLERS = tuple(encode(" " + " ".join("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")))
"""Tokens that stand in for the alternatives of a distribution."""


class Output(NamedTuple):
    """An answer: the generated ids, and the text that is shown of them."""

    ids: list[int]
    text: str
    finish_reason: str
    stop_reason: int | str | None = None

    def pieces(self) -> Iterator[tuple[str, int]]:
        """Yield the text in the steps of a stream, with the number of tokens generated so far."""
        shown = 0
        for count in range(1, len(self.ids) + 1):
            so_far = self.text if count == len(self.ids) else decode(self.ids[:count])
            if count < len(self.ids) and so_far.endswith("�"):
                continue
            yield self.text[shown : len(so_far)], count
            shown = max(shown, min(len(so_far), len(self.text)))


def generate(answer: Sequence[int], request: Request, max_tokens: int) -> Output:
    """Cut an answer, which ends with EOS, at the limits of the request."""
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    ids: list[int] = []
    for token in _endless(answer, request):
        ids.append(token)
        if token == EOS and not request.ignore_eos:
            return Output(ids, _text(ids, request), "stop")
        if token in (request.stop_token_ids or ()):
            return Output(ids, _text(ids[:-1], request), "stop", token)
        text = _text(ids, request) if stops else ""
        found = [(at, stop) for stop in stops if stop and (at := text.find(stop)) >= 0]
        if found:
            at, stop = min(found)
            return Output(
                ids,
                text[: at + (len(stop) if request.include_stop_str_in_output else 0)],
                "stop",
                stop,
            )
        if len(ids) >= max_tokens:
            break
    return Output(ids, _text(ids, request), "length")


def _endless(answer: Sequence[int], request: Request) -> Iterator[int]:
    produced = 0
    while True:
        for token in answer:
            if token == EOS and produced < request.min_tokens:
                if len(answer) > 1:
                    continue
                token = FILLER
            produced += 1
            yield token


def _text(ids: Sequence[int], request: Request) -> str:
    return decode(ids, special=not request.skip_special_tokens)


def text_logprobs(ids: Sequence[int], top: int, at: int = 0) -> dict[str, Any]:
    """Return log-probabilities as in text completions; `at` is the offset of the first token."""
    tokens = [decode([token]) for token in ids]
    offsets = []
    for token in tokens:
        offsets.append(at)
        at += len(token)
    tops = [
        {decode([one]): _logprob(token) - rank for rank, one in _list_top(token, top)}
        for token in ids
    ]
    return {
        "text_offset": offsets,
        "token_logprobs": [_logprob(token) for token in ids],
        "tokens": tokens,
        "top_logprobs": tops if top else None,
    }


def chat_logprobs(ids: Sequence[int], top: int | None) -> dict[str, Any]:
    """Return log-probabilities as in chat completions, each with `top` alternatives."""
    return {
        "content": [
            {
                **_describe(token, _logprob(token)),
                "top_logprobs": (
                    [_describe(one, _logprob(token) - rank) for rank, one in _list_top(token, top)]
                    if top
                    else None
                ),
            }
            for token in ids
        ]
    }


def _describe(token: int, logprob: float) -> dict[str, Any]:
    text = decode([token])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _list_top(token: int, count: int) -> list[tuple[int, int]]:
    """Return ranks and ids of the likeliest tokens: the chosen one, and then made-up ones."""
    others = [one for one in FILLERS if one != token]
    return [(0, token), *enumerate(others[: count - 1], 1)] if count else []


def _logprob(token: int) -> float:
    return -((token % 97) + 1) / 100


def split_thoughts(text: str, *, ended: bool = True) -> tuple[str, str]:
    """Split thoughts and answer as a reasoning parser does.

    Until the text has `ended`, a possible beginning of a tag belongs to neither.
    """
    opened, tag, rest = text.partition("<think>")
    if opened or not tag:
        return ("", "") if not ended and "<think>".startswith(text) else ("", text)
    thoughts, closed, answer = rest.partition("</think>")
    if ended and not closed:
        return thoughts, ""
    if not closed:
        whole = max(n for n in range(len("</think>")) if thoughts.endswith("</think>"[:n]))
        return thoughts[: len(thoughts) - whole], ""
    return thoughts, answer


def split_calls(text: str) -> list[dict[str, Any]]:
    """Return the calls that a model wrote, as a tool parser finds them."""
    try:
        written = json.loads(text)["tool_calls"]
        named = [
            (call["name"], json.dumps(call.get("arguments", {}), ensure_ascii=False))
            for call in written
        ]
    except (ValueError, TypeError, KeyError):
        return []
    return [
        {
            "id": f"chatcmpl-tool-{i}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for i, (name, arguments) in enumerate(named)
    ]


def opaque_state(ids: Sequence[int], tensor_parallel: int, place: Mapping[str, Any]) -> str:
    """Return the state that a context worker passes to the generation worker.

    It shows whether the two fit, and where in the deployment the state was made.
    """
    state = {**place, "tp": tensor_parallel, "prompt": _digest(ids)}
    return base64.b64encode(json.dumps(state).encode()).decode()


def state_of(opaque: str | None) -> dict[str, Any]:
    """Return the state, or nothing if other software wrote it."""
    try:
        found = json.loads(base64.b64decode(opaque or "", validate=True))
    except ValueError:
        return {}
    return found if isinstance(found, dict) and "prompt" in found else {}


def fits(state: dict[str, Any], ids: Sequence[int]) -> bool:
    return not state or state["prompt"] == _digest(ids)


def _digest(ids: Sequence[int]) -> str:
    return hashlib.sha256(str(list(ids)).encode()).hexdigest()[:16]


OPEN, CLOSE = "<think>", "</think>"
BEGINNING = (
    "Okay, let me think about this. The user asks a question, and I have to find out what is wanted"
    " before I write an answer to it. So let me begin with the first part."
)
LOOPED_CHARS = 40_000
"""Length of thoughts that repeat themselves: more than a smoke test has room for."""
WORDS = ("maybe", "so", "wait,", "then", "it", "could", "be", "7", "or", "12.", "First", "no,")


class ThoughtsForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the thoughts of a server that `thinks`."""

    opened: bool = False
    """The chat template ends in <think>, so that an answer begins within its thoughts."""
    words: int | None = None
    """Words of thought, instead of those of the request's effort."""
    holds: str = ""
    """Text within the thoughts, such as a stop string or an answer that is given up again."""
    unclosed: bool = False
    """A fault: the model ends its message without having ended its thoughts."""
    repeats: str = ""
    """A fault: the thoughts repeat this text until any usual limit cuts them."""


def shape_thoughts(thoughts: Sequence[int], form: ThoughtsForm, drawn: str = "") -> list[int]:
    """Return the ids of thoughts in another form; none if there are none.

    Thoughts of a given number of words begin alike, and go on as `drawn` chooses.
    """
    if not thoughts or form == ThoughtsForm():
        return list(thoughts)
    inner, _, behind = decode(thoughts).removeprefix(OPEN).partition(CLOSE)
    if form.words is not None:
        inner = _draw_words(form.words, drawn)
    inner += form.repeats * (LOOPED_CHARS // max(1, len(form.repeats)))
    middle = len(inner) // 2 // 3 * 3
    inner = inner[:middle] + form.holds + inner[middle:]
    return encode(f"{'' if form.opened else OPEN}{inner}{'' if form.unclosed else CLOSE}{behind}")


def _draw_words(count: int, drawn: str) -> str:
    """Return words of thought: BEGINNING, and after it the words of a generator."""
    rng = random.Random(drawn)
    begun = BEGINNING.split()[:count]
    return " ".join(["", *begun, *rng.choices(WORDS, k=count - len(begun)), ""])


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
