"""Check chat features: tools, the system role, and the template's special tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from serve_eval.checks.answer import Answer, short
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession, require_answer

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
    Check(name="tools", run=tools, requests=1, tokens=TOOL_TOKENS, prompt_tokens=150),
    Check(
        name="system_role",
        run=system_role,
        requests=2,
        tokens=2 * TEMPLATE_TOKENS,
        prompt_tokens=120,
    ),
    Check(name="special_tokens", run=special_tokens, requests=3, tokens=3, prompt_tokens=60),
)
