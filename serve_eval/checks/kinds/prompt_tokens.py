"""Check that the server reads prompts as the files of its model say."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from serve_eval.checks.answer import Answer
from serve_eval.checks.check import Check
from serve_eval.checks.row import CheckResult, fail_check, pass_check, report_unsupported
from serve_eval.checks.session import CheckSession
from serve_eval.client.wire_format.wire import CHAT_COMPLETIONS, COMPLETIONS, UNREADABLE
from serve_eval.evidence.prompt_audit.audit import PROMPTS, audit
from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer
from serve_eval.evidence.prompt_audit.reading import PromptCause, PromptFinding
from serve_eval.evidence.prompt_audit.server_tokens import (
    MOST_ANSWERS,
    MOST_REQUESTS,
    PostReply,
    PromptReader,
)

_SOUND = frozenset({PromptCause.SAME, PromptCause.SAME_COUNT})
_SHOWN = 3
"""Most findings that the row has."""


async def prompt_tokens(session: CheckSession, *, local: LocalTokenizer) -> CheckResult:
    """Check that the server's tokens of each prompt are those of the files."""
    answered = [one for one in PROMPTS if (session.text if isinstance(one, str) else session.chat)]
    findings = await audit(_reader(session), local, answered, today=local.today)
    wrong = [one for one in findings if _is_wrong(one)]
    if wrong:
        return fail_check(_describe(wrong))
    if all(one.cause is PromptCause.NOT_READ for one in findings):
        return report_unsupported(_describe(findings))
    notes = [one for one in findings if one.cause not in _SOUND]
    same = sum(one.cause is PromptCause.SAME or one.same is True for one in findings)
    counted = sum(one.cause is PromptCause.SAME_COUNT for one in findings)
    told = f"{same} prompts have the ids of the files" if same else ""
    if counted:
        told += f"{', ' if told else ''}{counted} their number of tokens (ids are not available)"
    return pass_check(f"{told}; {_describe(notes)}" if notes else told)


def _is_wrong(finding: PromptFinding) -> bool:
    return finding.same is False or finding.cause is PromptCause.ROUTES_DISAGREE


def _describe(findings: list[PromptFinding]) -> str:
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
        name="prompt_tokens",
        run=partial(prompt_tokens, local=local),
        requests=len(PROMPTS) * MOST_REQUESTS,
        tokens=len(PROMPTS) * MOST_ANSWERS,
        prompt_tokens=400,
    )
