"""Names of what can be wrong with a tool call or a guided answer, and the part to look at."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


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
