"""Check /v1/responses: a text, a stream, a function call, and the id of an earlier answer.

A server need not have the route. If it has, a text and a stream must be answers; for all else the
row says what is missing.
"""

from __future__ import annotations

from typing import Any

from serve_eval.checks.answer import Answer
from serve_eval.checks.kinds.chat_features import TOOL, TOOLS
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.preflight import NO_ROUTE
from serve_eval.client.wire_format import responses
from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.refusal import InvalidResponse
from serve_eval.client.wire_format.responses_stream import ResponsesStream

NAME = "responses"
QUESTION = "Which colour is the sky? Answer in one short sentence."
FACT = "Remember the word heron, and the word granite, and the word lantern. Say only: yes."
WORDS = ("heron", "granite", "lantern")
UNKNOWN = "resp_00000000000000000000000000000000"
NEXT = "Say the three words."
TOKENS, TOOL_TOKENS = 48, 256
_ROUTE = "/v1/responses"


async def items(session: CheckSession) -> CheckResult:
    """Check the route from its most to its least usual use."""
    whole = await session.post(_body(session, QUESTION))
    if whole.status in NO_ROUTE:
        return report_unsupported(f"{_ROUTE} is not served: HTTP {whole.status}", whole.sent)
    if whole.status != 200:
        refused = report_unsupported if whole.refused else fail_check
        return refused(whole.told, whole.sent)
    try:
        said = _read(whole)
    except InvalidResponse as error:
        return fail_check(error.describe(session.client.masking.message), whole.sent)
    if not (said.text or said.reasoning):
        return fail_check("the answer is empty", whole.sent)
    streamed = await session.post(_body(session, QUESTION, stream=True))
    try:
        timed = _read(streamed)
    except InvalidResponse as error:
        told = error.describe(session.client.masking.message)
        return fail_check(f"stream: {told}", streamed.sent)
    found = {
        "text": True,
        "stream": streamed.streams and bool(timed.text or timed.reasoning),
        "function call": await _calls(session),
        "previous_response_id": await _remembers(session),
        "reasoning items": bool(said.reasoning),
        "usage": bool(said.usage.completion_tokens and timed.usage.completion_tokens),
    }
    has = ", ".join(name for name, there in found.items() if there)
    lacks = ", ".join(name for name, there in found.items() if not there)
    return pass_check(f"{has}; not seen: {lacks}" if lacks else has)


def _body(session: CheckSession, prompt: str, **more: Any) -> dict[str, Any]:
    asked = {"model": session.model or "", "input": prompt, "temperature": 0, "store": False}
    return {**asked, "max_output_tokens": session.fit(TOKENS, len(prompt)), **more}


def _read(answer: Answer) -> Said:
    """Return the answer that the client would read. Raises InvalidResponse."""
    if answer.status != 200 or answer.problem:
        raise InvalidResponse(answer.told)
    if not answer.streams:
        return responses.decode(answer.content, answer.content_type)
    stream = ResponsesStream()
    stream.feed(answer.content, 0.0)
    return stream.finish()


async def _calls(session: CheckSession) -> bool:
    """Return True if the tool that a prompt asks for is called."""
    prompt = f"What is the weather in Paris? Call the tool {TOOL}."
    fields = responses.translate({"tools": TOOLS, "tool_choice": "auto"})
    most = session.fit(TOOL_TOKENS, len(prompt))
    try:
        said = _read(await session.post(_body(session, prompt, max_output_tokens=most, **fields)))
    except InvalidResponse:
        return False
    return any(call.name == TOOL for call in said.tool_calls)


async def _remembers(session: CheckSession) -> bool:
    """Return True if a second turn has the turn before it, named by its id.

    Some servers ignore the id. If the server counts tokens, the prompt must be longer than without
    that turn. Otherwise the answer must repeat words of the first turn, or the server must refuse
    an id that no answer had.
    """
    first = await session.post(_body(session, FACT, store=True))
    alone = await session.post(_body(session, NEXT))
    try:
        named = _read(first).id
        second = await session.post(_body(session, NEXT, previous_response_id=named))
        said, without = _read(second), _read(alone)
    except InvalidResponse:
        return False
    if not said.usage.prompt_tokens or not without.usage.prompt_tokens:
        if any(word in said.text.lower() for word in WORDS):
            return True
        return (await session.post(_body(session, NEXT, previous_response_id=UNKNOWN))).refused
    return said.usage.prompt_tokens > without.usage.prompt_tokens + len(FACT.split()) // 2


CHECKS = (
    Check(
        NAME,
        items,
        requests=7,
        tokens=6 * TOKENS + TOOL_TOKENS,
        prompt_tokens=250,
    ),
)
