"""Check the tokens that a server says it read or wrote, against the files of its model.

A template or a first token that is not the expected one changes a score and no answer's form.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from serve_eval.checks.answer import Answer
from serve_eval.checks.kinds.answering import PROMPT
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import Check, CheckSession
from serve_eval.client.wire_format.refusal import UNREADABLE
from serve_eval.client.wire_format.wire import CHAT_COMPLETIONS, COMPLETIONS
from serve_eval.evidence.prompt_audit import (
    INTERNAL,
    MOST_ANSWERS,
    MOST_REQUESTS,
    PROMPTS,
    RETURN_FIELD,
    TOKENIZE,
    PostReply,
    PromptReader,
    ReturnedIds,
    audit,
    describe_difference,
    read_ids,
    read_returned,
    tokenizing_body,
)
from serve_eval.evidence.prompt_tokens import LocalTokenizer, PromptCause, PromptFinding
from serve_eval.schema import Message

TOKENS = 8


async def tokenize(session: CheckSession) -> CheckResult:
    """Check that answers count as many prompt tokens as the server's tokenizer gives."""
    counts = session.known.prompt_tokens
    if not counts:
        return report_unsupported("prompt_tokens are not counted")
    told, last = [], None
    for chat, counted in counts.items():
        last = await _tokenize(session, chat=chat)
        if (ids := read_ids(last.parsed.get("tokens"))) is None or last.status != 200:
            continue
        session.known.prompt_ids[chat] = ids
        if len(ids) != counted:
            return fail_check(
                f"{_kind(chat)} count {counted} prompt tokens, but the server's tokenizer gives"
                f" {len(ids)}: a special token too many or too few, or another chat template",
                last.sent,
            )
        told.append(f"{_kind(chat)} {counted}")
    if not told:
        return report_unsupported(
            "not offered: no route gives token ids in the form of vLLM",
            None if last is None else last.sent,
        )
    return pass_check(f"{', '.join(told)} prompt tokens, as counted in answers")


async def _tokenize(session: CheckSession, *, chat: bool) -> Answer:
    body = tokenizing_body((Message(role="user", content=PROMPT),) if chat else PROMPT)
    model = {"model": session.model or ""}
    answer = await session.post_elsewhere(session.root + TOKENIZE, {**model, **body})
    if answer.status == 200 or chat:
        return answer
    return await session.post_elsewhere(session.root + INTERNAL, body)


async def return_ids(session: CheckSession) -> CheckResult:
    """Check that the token ids in an answer are those of its prompt, and as many as it counts."""
    told = []
    for chat in (True, False):
        if not (session.chat if chat else session.text):
            continue
        body = session.body(PROMPT, chat=chat, max_tokens=TOKENS)
        answer = await session.post({**body, RETURN_FIELD: True})
        if not chat and not any(_ids_in(answer)):
            answer = await session.post({**body, "detokenize": False})
        found = _ids_in(answer)
        if not any(found):
            continue
        if wrong := _wrong(answer, found, session.known.prompt_ids.get(chat)):
            return fail_check(f"{_kind(chat)}: {wrong}", answer.sent)
        told.append(f"{_kind(chat)} {_describe(found)}")
    if not told:
        return report_unsupported(
            "not offered: neither return_token_ids nor detokenize false gives ids"
        )
    return pass_check("; ".join(told))


def _ids_in(answer: Answer) -> ReturnedIds:
    """Return the ids in an answer; none of what is not an answer."""
    if not answer.answered:
        return ReturnedIds(None, None)
    return read_returned(answer.first.raw, answer.parsed)


def _wrong(answer: Answer, found: ReturnedIds, tokenized: list[int] | None) -> str | None:
    """Return what is wrong with the ids of an answer, or None.

    The token that ends the answer may be missing.
    """
    prompt, counted = answer.tokens("prompt_tokens"), answer.shown_tokens
    if found.prompt is not None:
        if tokenized is not None and found.prompt != tokenized:
            difference = describe_difference(found.prompt, tokenized)
            return f"the ids of the prompt differ from the tokenizer's: {difference}"
        if prompt is not None and len(found.prompt) != prompt:
            return f"{len(found.prompt)} ids of a prompt of {prompt} tokens"
    written = None if found.answer is None or counted is None else counted - len(found.answer)
    if written not in (None, 0, 1):
        return f"{len(found.answer or ())} ids of an answer of {counted} tokens"
    return None


def _describe(found: ReturnedIds) -> str:
    read = "" if found.prompt is None else f"{len(found.prompt)} read, "
    return f"{read}{len(found.answer or ())} written"


def _kind(chat: bool) -> str:
    return "chat" if chat else "completions"


CHECKS = (
    Check("tokenize", tokenize, requests=3),
    Check(
        "returned_ids",
        return_ids,
        requests=3,
        tokens=3 * TOKENS,
        prompt_tokens=50,
    ),
)


_SOUND = frozenset({PromptCause.SAME, PromptCause.SAME_COUNT})
_SHOWN = 3
"""Most findings that the row has."""


async def prompt_tokens(session: CheckSession, *, local: LocalTokenizer) -> CheckResult:
    """Check that the server's tokens of each prompt are those of the files."""
    answered = [one for one in PROMPTS if (session.text if isinstance(one, str) else session.chat)]
    findings = await audit(_reader(session), local, answered, today=local.today)
    wrong = [
        one for one in findings if one.same is False or one.cause is PromptCause.ROUTES_DISAGREE
    ]
    if wrong:
        return fail_check(_join_findings(wrong))
    if all(one.cause is PromptCause.NOT_READ for one in findings):
        return report_unsupported(_join_findings(findings))
    notes = [one for one in findings if one.cause not in _SOUND]
    same = sum(one.cause is PromptCause.SAME or one.same is True for one in findings)
    counted = sum(one.cause is PromptCause.SAME_COUNT for one in findings)
    told = f"{same} prompts have the ids of the files" if same else ""
    if counted:
        told += f"{', ' if told else ''}{counted} their number of tokens (ids are not available)"
    return pass_check(f"{told}; {_join_findings(notes)}" if notes else told)


def _join_findings(findings: list[PromptFinding]) -> str:
    shown = [f"{one.prompt}: {one.told}" for one in findings[:_SHOWN]]
    if (more := len(findings) - _SHOWN) > 0:
        shown.append(f"{more} more")
    return "; ".join(shown)


def _reader(session: CheckSession) -> PromptReader:
    async def post(path: str, body: Mapping[str, Any]) -> PostReply:
        if path in (session.base_path + COMPLETIONS, session.base_path + CHAT_COMPLETIONS):
            return _reply(await session.post(body))
        return _reply(await session.post_elsewhere(path, body))

    return PromptReader(
        post=post,
        side="the server",
        model=session.model or "",
        base_path=session.base_path,
        max_tokens_field=session.client.max_tokens_field,
    )


def _reply(answer: Answer) -> PostReply:
    try:
        body = msgspec.json.decode(answer.content) if answer.status else None
    except UNREADABLE:
        body = None
    return PostReply(answer.status, body, "" if answer.answered else answer.told)


def prompt_tokens_check(local: LocalTokenizer) -> Check:
    """Return the check that compares with the files of a model."""
    return Check(
        "prompt_tokens",
        partial(prompt_tokens, local=local),
        requests=len(PROMPTS) * MOST_REQUESTS,
        tokens=len(PROMPTS) * MOST_ANSWERS,
        prompt_tokens=400,
    )
