"""Probes of log-probabilities of prompts: their form, their places, and the token that begins a
text.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.client.client import Client
from serve_eval.client.wire_format.logprobs import FIELDS
from serve_eval.evaluation.capabilities.probe_request import HELP, send_probe
from serve_eval.schema import Ability, Failure, Need, PromptLogprobs, Response
from serve_eval.scorers.likelihood import continuation, is_whole

PREFIX = "prefix"
"""The field of a protocol that names the token before a text."""
TEXT = "The quick brown fox jumps over the lazy dog."
LIKELIEST = 8
"""Tokens that the model says and weighs."""


async def prompt_logprobs(client: Client) -> tuple[Ability, PromptLogprobs | None]:
    """Find the first form in which every token of a short text comes back with its log-probability,
    and what came.
    """
    need, seen = Need.PROMPT_LOGPROBS, []
    for form in FIELDS:
        client.logprobs_form = form
        result = await send_probe(client, TEXT, prompt_logprobs=True)
        if isinstance(result, Response) and result.prompt_logprobs is not None:
            if misplaced := await _find_misplaced(client):
                seen.append(f"{form}: {misplaced}")
                continue
            told = result.prompt_logprobs
            counted = f"{form}: {len(told.values)} of {result.usage.prompt_tokens} tokens"
            places = "without" if told.offsets is None else "with"
            return Ability(need=need, works=True, seen=f"{counted}, {places} places"), told
        seen.append(f"{form}: {result.message if isinstance(result, Failure) else 'nothing'}")
    return Ability(need=need, works=False, seen="; ".join(seen), help=HELP[need]), None


async def first_token(client: Client, extra: Mapping[str, object]) -> Ability:
    """Find out if the first token of a text has a log-probability, since the server puts a token of
    its own before it. Comes after `prompt_logprobs`. `extra` are the fields that a task adds, which
    may forbid that token.
    """
    need, result = (
        Need.FIRST_TOKEN,
        await send_probe(client, TEXT, prompt_logprobs=True, extra=extra),
    )
    told = result.prompt_logprobs if isinstance(result, Response) else None
    if told is None or not is_whole(told, TEXT):
        seen = (
            result.message
            if isinstance(result, Failure)
            else "the server puts no token before a text"
        )
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=True, seen="the server puts a token of its own before a text")


async def is_one_token(client: Client, text: str, extra: Mapping[str, object]) -> bool:
    """Tell if the server takes a text, such as <s>, for one token where it stands before another
    text.
    """
    results = [
        await send_probe(client, one, prompt_logprobs=True, extra=extra)
        for one in (TEXT, text + TEXT)
    ]
    counts = [
        len(told.values) + told.skipped
        for result in results
        if isinstance(result, Response) and (told := result.prompt_logprobs) is not None
    ]
    return len(counts) == 2 and counts[1] == counts[0] + 1


async def _find_misplaced(client: Client) -> str:
    """Say what shows that the log-probabilities stand at wrong tokens; nothing where nothing
    does.
    """
    said = await send_probe(client, TEXT, max_tokens=LIKELIEST)
    if isinstance(said, Failure) or not said.text.strip():
        return ""
    weighed = await send_probe(client, TEXT + said.text, prompt_logprobs=True)
    told = weighed.prompt_logprobs if isinstance(weighed, Response) else None
    return "" if told is None else find_misplaced(told)


def find_misplaced(told: PromptLogprobs) -> str:
    """Say what shows that these log-probabilities stand at wrong tokens; nothing where nothing
    does.

    They are those of TEXT and what the model itself says next.

    What the model says is the likeliest token at every place, and has to be so when it is weighed.
    llama-cpp-python gives each token the place behind its own where the tokenizer puts no token
    before a text.
    """
    if told.likeliest is None or told.offsets is None:
        return ""
    own = [mark for mark, at in zip(told.likeliest, told.offsets, strict=True) if at >= len(TEXT)]
    if len(own) < LIKELIEST // 2 or 2 * own.count("1") >= len(own):
        return ""
    return (
        f"of {len(own)} tokens that the model says itself only {own.count('1')} are the likeliest"
        " at their place"
    )


def continuation_logprobs(told: PromptLogprobs) -> Ability:
    """Tell if the last word of the short text can be told from what stands before it."""
    need, values = Need.CONTINUATION_LOGPROBS, continuation(told, TEXT, TEXT.rindex(" "))
    if values is None:
        seen = "neither the texts of the tokens nor their places"
        return Ability(need=need, works=False, seen=seen, help=HELP[need])
    return Ability(need=need, works=True, seen=f"{len(values)} of {len(told.values)} tokens")


def likeliest_tokens(told: PromptLogprobs) -> Ability:
    """Tell if the answer says what greedy decoding would have written."""
    need = Need.LIKELIEST_TOKENS
    if told.likeliest is None:
        return Ability(
            need=need,
            works=False,
            seen="neither top_logprobs nor the rank of a token",
            help=HELP[need],
        )
    return Ability(
        need=need, works=True, seen=f"{told.likeliest.count('1')} of {len(told.values)} tokens"
    )
