"""Check with the official `openai` package, as users' programs use it: once in each mode."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from serve_eval.checks.answer import OFF, short
from serve_eval.checks.kinds.answering import PROMPT
from serve_eval.checks.row import (
    CheckResult,
    SentRequest,
    fail_check,
    pass_check,
    report_unsupported,
)
from serve_eval.checks.session import Check, CheckSession

if TYPE_CHECKING:
    from openai import AsyncOpenAI

TOKENS = 8


async def by_sdk(session: CheckSession, *, chat: bool, stream: bool) -> CheckResult:
    """Check that the package reads one answer of one kind.

    Earlier checks tested the form of the response. This one tests what the package reads in it.
    """
    if not (session.chat if chat else session.text):
        return report_unsupported(f"{'chat' if chat else 'completions'} are not answered")
    import openai

    body = session.roomy_body(
        PROMPT, chat=chat, max_tokens=TOKENS, **({"stream": True} if stream else {})
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


CHECKS = tuple(
    Check(
        name=f"openai_{'stream_' if stream else ''}{'chat' if chat else 'completions'}",
        run=partial(by_sdk, chat=chat, stream=stream),
        requests=1,
        tokens=TOKENS,
        prompt_tokens=20,
    )
    for stream in (False, True)
    for chat in (True, False)
)
