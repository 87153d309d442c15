"""Convert lm-eval's requests of a document to one of our samples, without sending anything."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.schema import Message, Override, Prompt, Sample, SamplingParams

MAX_TOKENS = 256
"""The token limit of lm-eval's own API model, for tasks without one."""
Arguments = Mapping[str, Any]
"""lm-eval's `generation_kwargs`."""


def read_sampling(
    given: Arguments, max_tokens: int = MAX_TOKENS
) -> tuple[SamplingParams, dict[str, Any]]:
    """Return the sampling of `generation_kwargs`, and the other fields to send.

    They are read as in lm-eval's own API model.
    """
    rest = {name: value for name, value in given.items() if name != "do_sample"}
    until = rest.pop("until", None) or ()
    wanted = [rest.pop(name, None) for name in ("max_tokens", "max_gen_toks", "max_new_tokens")]
    seed, top_p = rest.pop("seed", None), rest.pop("top_p", None)
    sampling = SamplingParams(
        max_tokens=int(next((number for number in wanted if number is not None), max_tokens)),
        temperature=float(rest.pop("temperature", 0.0) or 0.0),
        top_p=1.0 if top_p is None else float(top_p),
        seed=None if seed is None else int(seed),
        # Every text contains the empty stop string: all answers would be cut to nothing.
        stop=tuple(text for text in ((until,) if isinstance(until, str) else until) if text),
    )
    return sampling, rest


def as_text(messages: Sequence[Mapping[str, str]], **how: object) -> str:
    """Return messages as one text, which `as_messages` reads, instead of a chat template."""
    return json.dumps(list(messages), ensure_ascii=False)


def as_messages(text: str) -> tuple[Message, ...]:
    """Return the messages of a text from `as_text`."""
    return tuple(Message(role=turn["role"], content=turn["content"]) for turn in json.loads(text))


Prefix = str | bool
"""The beginning of a text to the model that nothing else precedes: a text to send, or True if the
server puts its own token there. An empty text or False means nothing."""


def split_continuation(context: str, continuation: str, prefix: Prefix) -> tuple[str, str]:
    """Return the given text and the text to judge.

    White space at the end of a context belongs to the continuation, as in lm-eval, since tokens
    begin with it. Without a context, `prefix` replaces it; a continuation may start with the prefix
    itself. Without both, the given text is empty.
    """
    if context:
        kept = context.rstrip()
        return kept, context[len(kept) :] + continuation
    if not isinstance(prefix, str):
        return "", continuation
    return prefix, continuation.removeprefix(prefix) or continuation


def build_generated(
    instances: Sequence[Any], base: Arguments, *, multiturn: bool, **told: Any
) -> Sample:
    """Return a document with a generated answer.

    Raises PlanError for a document with several requests.
    """
    if len(instances) != 1:
        raise PlanError("one of its documents needs several answers")
    context, given = instances[0].args
    prompt: Prompt = as_messages(context) if multiturn else context
    return Sample(prompt=prompt, override=None if given == base else _override(base, given), **told)


def build_judged(instances: Sequence[Any], prefix: Prefix, **told: Any) -> Sample:
    """Return a document whose continuations are judged.

    Continuations without a given text need an endpoint that puts its own token before a text.
    """
    pairs = [
        split_continuation(instance.args[0], instance.args[1], prefix) for instance in instances
    ]
    contexts, choices = [context for context, _ in pairs], tuple(choice for _, choice in pairs)
    shared = _common_start(contexts)
    heads = tuple(context[len(shared) :] for context in contexts)
    return Sample(prompt=shared, choices=choices, heads=heads if any(heads) else (), **told)


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return "".join(
        a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    )


def build_rolled(instances: Sequence[Any], prefix: Prefix, **told: Any) -> Sample:
    """Return a document whose whole text is judged, after the prefix if there is one.

    Without a prefix its first token is left out, unless the server puts one before it.
    """
    (text,) = instances[0].args
    given = prefix if isinstance(prefix, str) else ""
    return Sample(prompt=given, choices=(text,), **told) if prefix else Sample(prompt=text, **told)


def _override(base: Arguments, given: Arguments) -> Override:
    """Return the sampling in which a document differs from its task."""
    (usual, _), (own, rest) = read_sampling(base), read_sampling(given)
    differing = {
        n: getattr(own, n)
        for n in ("temperature", "top_p", "seed")
        if getattr(own, n) != getattr(usual, n)
    }
    return Override(max_tokens=own.max_tokens, stop=own.stop, extra={**rest, **differing})
