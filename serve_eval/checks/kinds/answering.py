"""Check that the endpoint answers, whole or streamed, also through the package `openai`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from serve_eval.checks.answer import (
    OFF,
    Answer,
    AnswerChoice,
    Stream,
    count,
    count_shown,
    count_thoughts,
    read_stream,
    short,
)
from serve_eval.checks.row import (
    CheckResult,
    SentRequest,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession
from serve_eval.plugins.registry import nearest
from serve_eval.schema import LOOPED

if TYPE_CHECKING:
    from openai import AsyncOpenAI


TOKENS = 16
PROMPT, EXPECTED = "The capital of France is", "Paris"
_ENDINGS = ("stop", "length", "tool_calls", "function_call", LOOPED)
"""The meanings of a finish_reason."""
_NO_TEMPLATE = ("chat template", "chat_template")


async def whole(session: CheckSession, *, chat: bool) -> CheckResult:
    """Check every part of one answer that clients read."""
    answer = await session.post(session.body(PROMPT, chat=chat, max_tokens=TOKENS))
    if answer.status == 404 and "model" in answer.told.lower():
        return fail_check(
            f"{answer.told}.{nearest(session.model or '', session.known.listed)}", answer.sent
        )
    if answer.status in (404, 405, 501) or any(
        word in answer.told.lower() for word in _NO_TEMPLATE
    ):
        return report_unsupported(answer.told, answer.sent)
    if not answer.answered:
        hint = (
            f" (--set connection.max_tokens_field={other_field(session)}?)"
            if "max_completion_tokens" in answer.told
            else ""
        )
        return fail_check(f"{answer.told}{hint}", answer.sent)
    if chat:
        session.chat = True
    else:
        session.text = True
    if wrong := _form(answer, chat):
        return fail_check(wrong, answer.sent)
    session.known.whole[chat] = answer.first
    if told := find_misfiled(answer.first.text, answer.first.thoughts, answer.first.finish):
        return fail_check(told, answer.sent)
    if prompt_tokens := answer.tokens("prompt_tokens"):
        session.known.prompt_tokens[chat] = prompt_tokens
    counted = answer.tokens()
    length = "tokens not counted" if counted is None else f"{counted} tokens"
    kept = f", {len(answer.first.thoughts)} characters of thoughts" if answer.first.thoughts else ""
    ended = answer.first.raw.get("finish_reason")
    return pass_check(f"{short(answer.first.text, 50)!r}{kept}, {ended}, {length}")


def other_field(session: CheckSession) -> str:
    return (
        "max_tokens"
        if session.client.max_tokens_field == "max_completion_tokens"
        else "max_completion_tokens"
    )


def _form(answer: Answer, chat: bool) -> str | None:
    """Return what is wrong with the parts of an answer, or None."""
    raw, first = answer.first.raw, answer.first
    if chat and not isinstance(raw.get("message"), dict):
        return "the choice has no message"
    if chat and raw["message"].get("role") != "assistant":
        return f"the message's role is {raw['message'].get('role')!r}, not 'assistant'"
    if not chat and not isinstance(raw.get("text"), str):
        return "the choice has no text"
    if first.finish not in _ENDINGS:
        return f"finish_reason is {raw.get('finish_reason')!r}"
    if not first.said.strip() and not _hides_thoughts(answer):
        return f"the answer is empty, finish_reason {first.finish!r}"
    return None


def _hides_thoughts(answer: Answer) -> bool:
    """Return whether the server generated tokens that it counts and does not show."""
    return count_thoughts(answer.parsed.get("usage")) > 0


async def check_streamed(session: CheckSession, *, chat: bool) -> CheckResult:
    """Check a streamed answer: all events are JSON, it has a finish_reason, and it ends cleanly."""
    if not (session.chat if chat else session.text):
        return report_unsupported(f"{'chat' if chat else 'completions'} are not answered")
    more = {"stream": True, "stream_options": {"include_usage": True}}
    answer = await session.post(session.body(PROMPT, chat=chat, max_tokens=TOKENS, **more))
    if answer.status != 200:
        return answer.instead()
    if not answer.streams:
        return report_unsupported("stream was ignored: a complete response came", answer.sent)
    stream = read_stream(answer)
    if wrong := _broken(answer, stream):
        return fail_check(wrong, answer.sent)
    session.known.streams[chat] = stream
    before = session.known.whole.get(chat)
    if told := find_misfiled(stream.text, stream.thoughts, stream.finish, before):
        return fail_check(told, answer.sent)
    if not stream.done:
        return fail_check("the stream ends without data: [DONE]", answer.sent)
    return pass_check(f"{stream.chunks} chunks, {stream.finish}, [DONE]")


def _broken(answer: Answer, stream: Stream) -> str | None:
    """Return why a stream does not hold a complete answer, or None."""
    if stream.error:
        return f"an error in a stream that began with HTTP 200: {short(stream.error)}"
    if answer.problem:
        return f"the stream was cut after {stream.chunks} chunks: {answer.problem}"
    if stream.broken:
        return f"an event is not a JSON object: {short(stream.broken)}"
    if stream.done and not stream.chunks:
        return "the stream holds [DONE] and no answer: the answer is lost"
    if not stream.finish:
        return f"the stream ended without a finish_reason after {stream.chunks} chunks"
    if not stream.said.strip() and not count_thoughts(stream.usage):
        return f"the streamed answer is empty, finish_reason {stream.finish!r}"
    return None


async def usage(session: CheckSession) -> CheckResult:
    """Check that the streams of earlier checks counted their tokens, as stream_options asked."""
    if not session.known.streams:
        return report_unsupported("no stream was complete")
    over = [
        chat
        for chat, one in session.known.streams.items()
        if (count_shown(one.usage) or 0) > TOKENS
    ]
    if over:
        return fail_check(f"{_kind(over[0])} counts more than {TOKENS} tokens, which was the limit")
    without = [
        _kind(chat)
        for chat, stream in session.known.streams.items()
        if not count(stream.usage, "completion_tokens")
    ]
    if without:
        return report_unsupported(
            f"stream_options.include_usage was ignored: no token counts in {' and '.join(without)}"
        )
    told = [
        f"{_kind(chat)} {count(one.usage, 'completion_tokens')} tokens"
        for chat, one in session.known.streams.items()
    ]
    return pass_check(", ".join(told))


def find_misfiled(
    text: str, thoughts: str, finish: str | None, whole: AnswerChoice | None = None
) -> str | None:
    """Return how an answer, or a part of it, arrived as reasoning, or None.

    Its reasoning is the text of the `whole` answer to the same prompt, or it ended of itself with
    the expected word in its reasoning and no text.
    """
    blame = "the server's reasoning parser takes an answer for thoughts"
    if not text.strip() and finish == "stop" and EXPECTED in thoughts:
        return f"the answer arrives as reasoning, without a text: {short(thoughts)!r}: {blame}"
    if whole is None or not thoughts.strip():
        return None
    if not text.strip() and thoughts.strip() == whole.text.strip():
        return f"the reasoning of the stream is the text of the whole answer: {blame}"
    if (thoughts + text).strip() == whole.text.strip() and not whole.thoughts.strip():
        return f"the beginning of the whole answer's text is reasoning in the stream: {blame}"
    return None


def _kind(chat: bool) -> str:
    return "chat" if chat else "completions"


CHECKS = (
    Check("chat", partial(whole, chat=True), requests=1, tokens=TOKENS, prompt_tokens=20),
    Check(
        "completions",
        partial(whole, chat=False),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=10,
    ),
    Check(
        "stream_chat",
        partial(check_streamed, chat=True),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=20,
    ),
    Check(
        "stream_completions",
        partial(check_streamed, chat=False),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=10,
    ),
    Check("stream_usage", usage, requests=0),
)


SDK_TOKENS = 8


async def by_sdk(session: CheckSession, *, chat: bool, stream: bool) -> CheckResult:
    """Check that the package reads one answer of one kind.

    Earlier checks tested the form of the response. This one tests what the package reads in it.
    """
    if not (session.chat if chat else session.text):
        return report_unsupported(f"{'chat' if chat else 'completions'} are not answered")
    import openai

    body = session.roomy_body(
        PROMPT, chat=chat, max_tokens=SDK_TOKENS, **({"stream": True} if stream else {})
    )
    sent = SentRequest(
        url=session.base_url + ("/chat/completions" if chat else "/completions"), body=body
    )
    package, mask = session.sdk(body), session.client.masking.message
    try:
        async with package as client:
            text = mask(await _text(client, body, chat=chat, stream=stream))
    except openai.APIStatusError as error:
        refused = error.status_code in (400, 404, 422, 501)
        return (report_unsupported if refused else fail_check)(
            f"HTTP {error.status_code}: {short(mask(str(error)))}", sent
        )
    except Exception as error:  # Users' programs would see any error of the package.
        return fail_check(f"{type(error).__name__}: {short(mask(str(error)))}", sent)
    if not text and chat and session.known.thinking.thinks:
        return report_unsupported(session.tell_cut(), sent)
    if not text:
        return fail_check("the package reads no text in the answer", sent)
    return pass_check(f"{short(text, 50)!r}")


async def _text(client: AsyncOpenAI, body: dict[str, Any], *, chat: bool, stream: bool) -> str:
    """Return the whole answer."""
    create: Any = client.chat.completions.create if chat else client.completions.create
    # The package takes fields that OpenAI does not have only apart from the others.
    others = {name: body[name] for name in OFF if name in body}
    known = {name: value for name, value in body.items() if name not in others}
    answer = await create(**known, **({"extra_body": others} if others else {}))
    if not stream:
        return _piece(answer.choices[0].message if chat else answer.choices[0], chat)
    pieces = [
        _piece(chunk.choices[0].delta if chat else chunk.choices[0], chat)
        async for chunk in answer
        if chunk.choices
    ]
    return "".join(pieces)


def _piece(said: Any, chat: bool) -> str:
    if not chat:
        return said.text or ""
    return (
        said.content
        or getattr(said, "reasoning_content", None)
        or getattr(said, "reasoning", None)
        or ""
    )


SDK_CHECKS = tuple(
    Check(
        f"openai_{'stream_' if stream else ''}{'chat' if chat else 'completions'}",
        partial(by_sdk, chat=chat, stream=stream),
        requests=1,
        tokens=SDK_TOKENS,
        prompt_tokens=20,
    )
    for stream in (False, True)
    for chat in (True, False)
)
