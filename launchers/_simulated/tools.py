"""Tool calls of a simulated server.

A known answer of the form `{"tool_calls": [{"name": ..., "arguments": {...}}]}` is returned as
calls if its request offers tools, else as text. An unknown prompt gets a call of the first tool.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.launchers._http.answers import Call, Generated
from serve_eval.launchers._http.requests import Ask
from serve_eval.launchers._simulated import guided


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
    arguments = json.loads(guided.generate_text(function.get("parameters") or {"type": "object"}))
    return json.dumps(
        {"tool_calls": [{"name": function.get("name", "unnamed"), "arguments": arguments}]}
    )
