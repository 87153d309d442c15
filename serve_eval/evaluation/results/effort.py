"""Check an effort against what came: thoughts, tokens, and refusals of its fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from serve_eval.protocol.presets import SWITCHES, TEMPLATE_FIELDS
from serve_eval.schema import EffortSeen, ModelPreset, Response
from serve_eval.storage.journal import Record

NO_EFFORT = "none"
REFUSED = (400, 422)
"""HTTP status of a request with a field that the server does not accept."""
MOST_SHOWN = 160
"""Characters of a refusal that a warning quotes."""


def see_effort(task: str, preset: ModelPreset, records: Iterator[Record]) -> EffortSeen:
    """Return what came of the effort of a preset in the records of a task."""
    fields = name_fields(preset.values)
    answers: dict[str, tuple[bool, int]] = {}
    refusals: dict[str, str] = {}
    for record in records:
        if record.response is not None:
            response = record.response
            answers[record.id] = thinks(response), response.usage.completion_tokens
        elif record.failure is not None and (
            record.failure.status in REFUSED
            and any(name in record.failure.message for name in fields)
        ):
            refusals[record.id] = record.failure.message
    tokens = [count for _, count in answers.values() if count]
    refused = [message for id_, message in refusals.items() if id_ not in answers]
    return EffortSeen(
        task=task,
        answers=len(answers),
        thinking=sum(thinking for thinking, _ in answers.values()),
        median_tokens=float(median(tokens)) if tokens else None,
        refused=len(refused),
        refusal=refused[0] if refused else "",
    )


def thinks(response: Response) -> bool:
    """Return True if an answer has thoughts, or tokens that the server counts as thoughts."""
    return bool((response.reasoning or "").strip() or response.usage.reasoning_tokens)


def name_fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields by which the values of a preset ask for an effort."""
    body = values.get("extra_body") or {}
    variables = body.get(TEMPLATE_FIELDS) or {}
    found = [name for name in body if name in ("reasoning_effort", TEMPLATE_FIELDS)]
    if "thinking" in values:
        found += [TEMPLATE_FIELDS, SWITCHES[0]]
    return tuple(dict.fromkeys([*found, *variables]))


def describe_effort(preset: ModelPreset, seen: Sequence[EffortSeen]) -> str | None:
    """Return one warning if what came does not fit the effort, or None."""
    told = [line for one in seen if (line := _judge(preset.effort, one))]
    if not told:
        return None
    sent = ", ".join(name_fields(preset.values)) or "system_prompt"
    return f"effort {preset.effort} (sent as {sent}) was not heeded: {'; '.join(told)}"


def _judge(effort: str, seen: EffortSeen) -> str:
    """Return what is wrong with the answers of a task, or ""."""
    tokens = "" if seen.median_tokens is None else f", {seen.median_tokens:g} tokens in the median"
    if seen.refused:
        said = " ".join(seen.refusal.split())[:MOST_SHOWN]
        return f"{seen.task}: the server refused {seen.refused} requests: {said}"
    if effort == NO_EFFORT and seen.thinking:
        return f"{seen.task}: {seen.thinking} of {seen.answers} answers have thoughts{tokens}"
    if effort != NO_EFFORT and seen.answers and not seen.thinking:
        return (
            f"{seen.task}: none of {seen.answers} answers has thoughts{tokens}. A server may hide"
            " them: start it with its reasoning parser, and see what its chat template reads"
        )
    return ""
