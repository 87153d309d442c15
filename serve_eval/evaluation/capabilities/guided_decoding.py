"""Probe guided decoding in the form that a task sends, and in the other form if that fails."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.questions.self_description import SGLANG, VLLM
from serve_eval.client.wire_format.refusal import shorten
from serve_eval.evaluation.capabilities.probe_request import (
    HELP,
    WORD,
    describe_cut,
    ping,
    send_with_room,
)
from serve_eval.evaluation.engine.request import request_of
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Ability, Failure, Need

FIELD = "response_format"
"""The field of a request with the schema, and the task option that chooses its form."""
TOKENS = 256
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
FORMS: Mapping[str, Mapping[str, object]] = {
    "json": {"type": "json", "schema": SCHEMA},
    "json_schema": {"type": "json_schema", "json_schema": {"name": "probe", "schema": SCHEMA}},
}
"""The form of trtllm-serve, which vLLM refuses, and OpenAI's."""
_BLANK = re.compile(r"\s{32,}")
_COMPACT = '--structured-outputs-config \'{"backend":"xgrammar","disable_any_whitespace":true}\''


async def probe_guided_decoding(client: Client, prepared: PreparedTask) -> Ability:
    """Check that an answer follows a schema that its question does not mention.

    The schema is sent in the form that the task uses. If that fails, the ability says whether the
    other form works: the form is part of the protocol, so only the user may change it.
    """
    need = Need.GUIDED_DECODING
    form = request_of(prepared.task, prepared.dataset.samples[0]).extra.get(FIELD)
    if not isinstance(form, Mapping):
        return Ability(need=need, works=None, seen=f"not probed: the task sends no {FIELD}")
    own = "json_schema" if form.get("type") == "json_schema" else "json"
    found = await _try_form(client, own, chat=prepared.chat)
    if found.works is not False:
        return found
    other = "json" if own == "json_schema" else "json_schema"
    tried = await _try_form(client, other, chat=prepared.chat)
    if tried.works is False:
        return replace(found, seen=f"{found.seen}. The form {other}: {tried.seen}")
    works = "works" if tried.works else "is accepted"
    return replace(
        found,
        seen=f"{FIELD} {own}: {found.seen}. The form {other} {works}: {tried.seen}",
        help=" ".join(filter(None, (_choose(prepared, other), tried.help))),
    )


def _choose(prepared: PreparedTask, form: str) -> str:
    """Return how to send another form."""
    if FIELD not in prepared.task.protocol:
        return f"Send the schema in the form {form}."
    return (
        f"Use --set {prepared.task.name}.{FIELD}={form}. The form is part of the protocol: a"
        f" reference then needs --allow-mismatch {FIELD}."
    )


async def _try_form(client: Client, form: str, *, chat: bool) -> Ability:
    need, extra = Need.GUIDED_DECODING, {FIELD: FORMS[form]}
    result = await send_with_room(client, ping(chat), max_tokens=TOKENS, extra=extra)
    if isinstance(result, Failure):
        return Ability(need=need, works=False, seen=shorten(result.message), help=HELP[need])
    try:
        followed = msgspec.json.decode(result.text) == {"word": WORD}
    except msgspec.DecodeError:
        followed = False
    if followed:
        return Ability(need=need, works=True, seen="a schema was followed")
    if result.truncated and is_blank_json(result.text):
        server = (await client.describe()).get("server")
        return Ability(need=need, works=None, seen=SEEN_BLANK, help=end_of_blanks(server))
    if result.truncated:
        return Ability(need=need, works=None, seen=describe_cut(result))
    seen = f"the schema was ignored: {result.text[:80]!r}"
    return Ability(need=need, works=False, seen=seen, help=HELP[need])


SEEN_BLANK = "the model wrote white space within the JSON until max_tokens"


def is_blank_json(text: str) -> bool:
    """Return True if a cut-off answer is JSON with a long run of white space in it or after it."""
    begun = text.lstrip()
    return begun[:1] in ("", "{", "[") and _BLANK.search(text) is not None


def end_of_blanks(server: object) -> str:
    """Return what ends white space that a schema allows. `server` is its kind, None if unknown."""
    if server in (None, VLLM):
        return f"To forbid white space, start vLLM with {_COMPACT}."
    if server == SGLANG:
        return "To forbid white space, start SGLang with --constrained-json-disable-any-whitespace."
    return "The schema allows it, so only max_tokens ends it."


def warn_of_guided_decoding(abilities: list[Ability]) -> list[str]:
    """Return a warning for answers that will be cut, though the task can be asked."""
    return [
        f"guided decoding: {one.seen}. {one.help}"
        for one in abilities
        if one.need == Need.GUIDED_DECODING and one.works is None and one.help
    ]
