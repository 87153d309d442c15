"""Check guided decoding: a JSON answer, and one that follows a schema.

The schema is sent in OpenAI's form and in the form that every trtllm-serve understands. A server
that follows one of them and not the other has a dialect: tasks can send the form that it follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from serve_eval.checks.answer import NotAnswered, short
from serve_eval.checks.row import (
    CheckOutcome,
    CheckResult,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.preflight import PING
from serve_eval.client.questions import TRTLLM_SERVE
from serve_eval.evaluation.capabilities import (
    SEEN_BLANK,
    WORD,
    end_of_blanks,
    is_blank_json,
)

TOKENS = 128
SCHEMA = {
    "type": "object",
    "properties": {"word": {"type": "string", "enum": [WORD]}},
    "required": ["word"],
    "additionalProperties": False,
}
OBJECT = {"type": "json_object"}
OPENAI = {"type": "json_schema", "json_schema": {"name": "smoke", "schema": SCHEMA}}
PORTABLE = {"type": "json", "schema": SCHEMA}


async def ask_guided(
    session: CheckSession, *, prompt: str, form: Mapping[str, Any], wanted: object
) -> CheckResult:
    """Ask for something that the form does not allow: an answer that follows the form was guided.

    If `wanted` is None, any JSON object follows the form.
    """
    answer = await session.ask_roomy(prompt, max_tokens=TOKENS, response_format=form)
    first = answer.first
    text = session.known.thinking.read(first)
    if text is None:
        return report_unsupported(session.tell_cut(), answer.sent)
    if first.finish == "length" and is_blank_json(text):
        return report_unsupported(
            f"{SEEN_BLANK}. {end_of_blanks(session.known.server)}", answer.sent
        )
    if not text.strip():
        return report_unsupported("the answer was empty", answer.sent)
    try:
        found = msgspec.json.decode(text.strip())
    except msgspec.DecodeError:
        if first.finish == "length" and text.lstrip().startswith("{"):
            return report_unsupported(f"the JSON did not end within {TOKENS} tokens", answer.sent)
        return report_unsupported(f"ignored: {short(text, 60)!r}", answer.sent)
    if not isinstance(found, dict):
        return report_unsupported(f"ignored: {short(text, 60)!r}", answer.sent)
    if wanted is not None and found != wanted:
        return fail_check(f"JSON that violates the schema: {short(text, 60)}", answer.sent)
    return pass_check(short(text, 60))


async def ask_with_schema(
    session: CheckSession, *, form: Mapping[str, Any], other: Mapping[str, Any]
) -> CheckResult:
    """Ask with a schema. If the server follows it in the `other` form only, that is a dialect.

    trtllm-serve promises both forms.
    """
    found = await ask_guided(session, prompt=PING, form=form, wanted=_FOLLOWED)
    if found.outcome is not CheckOutcome.FAIL or session.known.server == TRTLLM_SERVE:
        return found
    try:
        instead = await ask_guided(session, prompt=PING, form=other, wanted=_FOLLOWED)
    except NotAnswered:
        return found
    if instead.outcome is not CheckOutcome.PASS:
        return found
    return replace(
        found,
        outcome=CheckOutcome.UNSUPPORTED,
        told=f"{found.told}; the schema is followed as response_format type {other['type']}",
    )


_FOLLOWED = {"word": WORD}
CHECKS = (
    Check(
        name="json",
        run=partial(ask_guided, prompt="What is 1 + 1? Answer in JSON.", form=OBJECT, wanted=None),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=20,
    ),
    *(
        Check(
            name=name,
            run=partial(ask_with_schema, form=form, other=other),
            requests=2,
            tokens=2 * TOKENS,
            prompt_tokens=40,
        )
        for name, form, other in (
            ("json_schema", OPENAI, PORTABLE),
            ("json_portable", PORTABLE, OPENAI),
        )
    ),
)
