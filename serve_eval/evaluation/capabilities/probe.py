"""Probe an endpoint for what tasks need: each kind of request, then the needs of its tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from serve_eval.client.client import Client
from serve_eval.client.preflight import NO_ROUTE, refuse, trial
from serve_eval.datasets.small_media import dot, number
from serve_eval.evaluation.capabilities import features
from serve_eval.evaluation.capabilities.features import probe_guided_decoding
from serve_eval.evaluation.capabilities.probe_request import (
    CONTEXT,
    HELP,
    LONGER,
    context_length,
    refuses_shortest,
)
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Ability, AudioForm, Need, Route, SamplingParams
from serve_eval.schema.media import media_form, media_kind


async def probe(
    client: Client, prepared: Sequence[PreparedTask]
) -> tuple[list[Ability], dict[str, Ability]]:
    """Return what the endpoint can do of what these tasks need, and each task's first lack.

    One short request per kind of request comes first. Sets `client.logprobs_form`. Raises
    EndpointError if no task could be asked at all: nothing answers, or the key, the model or a
    field of the tasks is refused.
    """
    found: dict[str, Ability] = {}
    for chat in sorted({p.chat for p in prepared}):
        ability = await _route(client, chat, [p for p in prepared if p.chat == chat])
        found[ability.need] = ability
    chat = Need.CHAT in found and found[Need.CHAT].works is True
    asked = [p for p in prepared if found[Need.CHAT if p.chat else Need.COMPLETIONS].works]
    needs = {need for p in asked for need in p.needs}
    if Need.PROMPT_LOGPROBS in needs:
        found |= await _logprobs(client, asked, needs)
    found |= await _features(client, asked, needs, chat=chat)
    longest = max((p.task.context_tokens or 0 for p in asked), default=0)
    limit = await context_length(client, longest, chat=chat) if longest else None
    lacking = {
        p.task.name: lacks for p in prepared if (lacks := _first_lack(p, found, limit)) is not None
    }
    if longest:
        told = "not reported" if limit is None else f"{limit} tokens"
        found[CONTEXT] = Ability(
            need=CONTEXT, works=None if limit is None else limit >= longest, seen=told
        )
    for one in asked:
        doubted = one.task.context_tokens is None and one.task.name not in lacking
        if doubted and (lacks := await refuses_shortest(client, one)) is not None:
            lacking[one.task.name] = found[CONTEXT] = lacks
    return list(found.values()), lacking


async def _logprobs(
    client: Client, asked: Sequence[PreparedTask], needs: Collection[Need]
) -> dict[str, Ability]:
    """Probe the log-probabilities of prompts, and what the tasks read from them."""
    found: dict[str, Ability] = {}
    found[Need.PROMPT_LOGPROBS], told = await features.prompt_logprobs(client)
    if told is None:
        return found
    if Need.CONTINUATION_LOGPROBS in needs:
        found[Need.CONTINUATION_LOGPROBS] = features.continuation_logprobs(told)
    if Need.LIKELIEST_TOKENS in needs:
        found[Need.LIKELIEST_TOKENS] = features.likeliest_tokens(told)
    begun = [p for p in asked if p.task.prompt_logprobs and features.PREFIX in p.task.protocol]
    if begun:
        found[Need.FIRST_TOKEN] = await features.first_token(client, begun[0].task.extra)
    return found


async def _features(
    client: Client, asked: Sequence[PreparedTask], needs: Collection[Need], *, chat: bool
) -> dict[str, Ability]:
    found: dict[str, Ability] = {}
    if Need.IMAGES in needs:
        found[Need.IMAGES] = await features.images(client)
    if Need.AUDIO in needs:
        found[Need.AUDIO] = await features.media(client, Need.AUDIO, number(_audio_form(asked)))
    if Need.VIDEO in needs:
        found[Need.VIDEO] = await features.media(client, Need.VIDEO, dot())
    if Need.GUIDED_DECODING in needs:
        guided = next(p for p in asked if Need.GUIDED_DECODING in p.needs)
        found[Need.GUIDED_DECODING] = await probe_guided_decoding(client, guided)
    if Need.TOOLS in needs:
        found[Need.TOOLS] = await features.tools(client)
    if Need.TOKENS_PER_STEP in needs:
        found[Need.TOKENS_PER_STEP] = await features.tokens_per_step(client, chat=chat)
    return found


def _audio_form(asked: Sequence[PreparedTask]) -> AudioForm:
    """Return the form in which the first sound of the tasks is sent."""
    parts = (
        part
        for p in asked
        for sample in p.dataset.samples
        if not isinstance(sample.prompt, str)
        for turn in sample.prompt
        for part in turn.media
    )
    forms = (media_form(part) for part in parts if media_kind(part) == "sound")
    return "audio_url" if next(forms, "input_audio") == "audio_url" else "input_audio"


def _first_lack(
    prepared: PreparedTask, found: Mapping[str, Ability], limit: int | None
) -> Ability | None:
    """Return the first thing that a task needs and the endpoint lacks.

    `limit` is the context length, if known.
    """
    lacks = [
        found[need]
        for need in sorted(prepared.needs)
        if need in found and found[need].works is False
    ]
    if lacks:
        return lacks[0]
    if (
        (wanted := prepared.task.context_tokens) is not None
        and limit is not None
        and limit < wanted
    ):
        seen = (
            f"the endpoint takes {limit} tokens, but the longest prompt with its answer has"
            f" {wanted}"
        )
        return Ability(need=CONTEXT, works=False, seen=seen, help=LONGER)
    return None


async def _route(client: Client, chat: bool, alike: Sequence[PreparedTask]) -> Ability:
    """Check that one kind of request is answered.

    It is reported as lacking only if the endpoint answers the other kind: otherwise the address or
    the model is wrong.
    """
    need = Need.CHAT if chat else Need.COMPLETIONS
    extra = {name: value for p in alike for name, value in p.task.extra.items()}
    sampling = replace(alike[0].task.sampling, max_tokens=2)
    failure = await trial(client, chat=chat, sampling=sampling, extra=extra)
    if failure is None:
        return Ability(need=need, works=True, seen="answers a short request")
    no_template = (
        chat
        and failure.status is not None
        and "chat template" in failure.message.lower().replace("_", " ")
    )
    named = chat and client.chat_route is not Route.CHAT  # other routes are no substitute
    if named or (failure.status not in NO_ROUTE and not no_template):
        await refuse(client, failure, chat=chat, extra=extra)
    if (
        await trial(client, chat=not chat, sampling=SamplingParams(max_tokens=2), extra={})
        is not None
    ):
        await refuse(client, failure, chat=chat, extra=extra)
    return Ability(need=need, works=False, seen=failure.message, help=HELP[need])


def reason(ability: Ability) -> str:
    """Return a line that says why a task was not asked."""
    return (
        f"unsupported: the endpoint lacks {ability.need}: {ability.seen}. {ability.help}".rstrip()
    )
