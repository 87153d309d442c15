"""Check chat features: tools, guided decoding, the system role, the template's special tokens.

The schema is sent in OpenAI's form and in the form that every trtllm-serve understands. A server
that follows one of them and not the other has a dialect: tasks can send the form that it follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from serve_eval.checks.answer import Answer, NotAnswered, short
from serve_eval.checks.row import (
    CheckOutcome,
    CheckResult,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession, require_answer
from serve_eval.client.preflight import PING
from serve_eval.client.questions import TRTLLM_SERVE
from serve_eval.evaluation.capabilities import SEEN_BLANK, WORD, end_of_blanks, is_blank_json

TOOL = "get_weather"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
TOOL_TOKENS, TEMPLATE_TOKENS = 256, 24
SYSTEM = "Answer in one short sentence."
LONGER = (
    f"{SYSTEM} Be friendly, be exact, name no sources, use no lists, and never repeat what you were"
    " asked. " * 2
)
MARKERS = re.compile(
    r"<\|(?:im_start|im_end|eot_id|start_header_id|end_header_id|endoftext|begin_of_text|assistant|user|system|end)\|>"
    r"|</?s>|\[/?INST\]|<(?:start|end)_of_turn>|<bos>|<eos>"
)
"""Special tokens of common chat templates, which must not appear in an answer."""
_CALL_AS_TEXT = re.compile(r"<tool_call>|\[TOOL_CALLS\]|<\|python_tag\|>|<function=|<｜tool")


def _no_chat() -> CheckResult:
    return report_unsupported("chat is not answered")


async def tools(session: CheckSession) -> CheckResult:
    if not session.chat:
        return _no_chat()
    prompt = f"What is the weather in Paris? Call the tool {TOOL}."
    answer = await session.ask_roomy(
        prompt, chat=True, max_tokens=TOOL_TOKENS, tools=TOOLS, tool_choice="auto"
    )
    message = answer.first.raw.get("message")
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    if calls:
        wrong = _wrong_call(calls)
        return (
            fail_check(wrong, answer.sent)
            if wrong
            else pass_check(short(str(calls[0]["function"]["arguments"]), 60))
        )
    if session.known.thinking.read(answer.first) is None:
        return report_unsupported(session.tell_cut(), answer.sent)
    if _CALL_AS_TEXT.search(answer.first.said):
        return fail_check(
            f"the call is in the text: {short(answer.first.text, 60)!r}; start the server with a"
            " tool parser",
            answer.sent,
        )
    return report_unsupported(
        f"tools were accepted, but none was called: {short(answer.first.said, 60)!r}", answer.sent
    )


def _wrong_call(calls: Any) -> str | None:
    call = calls[0] if isinstance(calls, list) and isinstance(calls[0], dict) else {}
    function = call.get("function")
    if not isinstance(function, dict) or function.get("name") != TOOL:
        return f"a call in another form, or of another tool: {short(str(calls), 80)}"
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "")
    except (msgspec.DecodeError, TypeError):
        arguments = None
    return (
        None
        if isinstance(arguments, dict)
        else f"arguments are not a JSON object: {short(str(function), 80)}"
    )


async def system_role(session: CheckSession) -> CheckResult:
    """Check that a longer system message takes more prompt tokens than a short one."""
    if not session.chat:
        return _no_chat()
    one, other = [await _with_system(session, text) for text in (SYSTEM, LONGER)]
    for answer in (one, other):
        if marker := MARKERS.search(answer.first.text):
            return fail_check(
                f"the answer contains special tokens of the template: {marker[0]}", answer.sent
            )
    tokens, more = one.tokens("prompt_tokens"), other.tokens("prompt_tokens")
    if not tokens or not more:
        return report_unsupported("accepted, but prompt_tokens are not counted", other.sent)
    if more <= tokens:
        return fail_check(
            f"ignored: {tokens} prompt tokens with a short system message, {more} with a long one",
            other.sent,
        )
    return pass_check(f"{more - tokens} more prompt tokens with a longer system message")


async def _with_system(session: CheckSession, text: str) -> Answer:
    body = session.body("Which colour is the sky?", chat=True, max_tokens=TEMPLATE_TOKENS)
    body["messages"] = [{"role": "system", "content": text}, *body["messages"]]
    return require_answer(await session.post(body))


async def special_tokens(session: CheckSession) -> CheckResult:
    """Check that the model's first token is not added twice.

    The chat template already begins with it. A server that adds it again counts as many prompt
    tokens by default as with add_special_tokens true, and more than with false.
    """
    if not session.chat:
        return _no_chat()
    settings: tuple[Mapping[str, Any], ...] = (
        {},
        {"add_special_tokens": False},
        {"add_special_tokens": True},
    )
    answers = [await session.ask("Hello", chat=True, max_tokens=1, **more) for more in settings]
    usual, without, added = (one.tokens("prompt_tokens") for one in answers)
    if not usual or not without or not added:
        return report_unsupported("prompt_tokens are not counted", answers[0].sent)
    if without == added:
        return report_unsupported(
            "cannot be tested: add_special_tokens changes nothing", answers[2].sent
        )
    if usual != without:
        return fail_check(
            f"doubled: {usual} prompt tokens, and {without} without special tokens added",
            answers[0].sent,
        )
    return pass_check(f"{usual} prompt tokens, {added} if they were doubled")


CHECKS = (
    Check("tools", tools, requests=1, tokens=TOOL_TOKENS, prompt_tokens=150),
    Check(
        "system_role",
        system_role,
        requests=2,
        tokens=2 * TEMPLATE_TOKENS,
        prompt_tokens=120,
    ),
    Check("special_tokens", special_tokens, requests=3, tokens=3, prompt_tokens=60),
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
GUIDED_CHECKS = (
    Check(
        "json",
        partial(ask_guided, prompt="What is 1 + 1? Answer in JSON.", form=OBJECT, wanted=None),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=20,
    ),
    *(
        Check(
            name,
            partial(ask_with_schema, form=form, other=other),
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
