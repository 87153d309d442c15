"""lm-eval's requests of a document as one of our samples. Pure but for the types: no request is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from serve_eval.errors import DatasetError, PlanError
from serve_eval.schema import Message, Override, Prompt, Sample, SamplingParams

MAX_TOKENS = 256
"""What lm-eval's own API model generates at most where a task does not say."""
Arguments = Mapping[str, Any]
"""lm-eval's `generation_kwargs`."""


def sampling_of(given: Arguments, max_tokens: int = MAX_TOKENS) -> tuple[SamplingParams, dict[str, Any]]:
    """The sampling that `generation_kwargs` mean, as lm-eval's own API model reads them, and what is sent beside it."""
    rest = {name: value for name, value in given.items() if name != "do_sample"}
    until = rest.pop("until", None) or ()
    wanted = [rest.pop(name, None) for name in ("max_tokens", "max_gen_toks", "max_new_tokens")]
    seed, top_p = rest.pop("seed", None), rest.pop("top_p", None)
    sampling = SamplingParams(
        max_tokens=int(next((number for number in wanted if number is not None), max_tokens)),
        temperature=float(rest.pop("temperature", 0.0) or 0.0),
        top_p=1.0 if top_p is None else float(top_p),
        seed=None if seed is None else int(seed),
        # An empty one stands in every text: all answers would be cut to nothing, and scored.
        stop=tuple(text for text in ((until,) if isinstance(until, str) else until) if text),
    )
    return sampling, rest


def as_text(messages: Sequence[Mapping[str, str]], **how: object) -> str:
    """In the place of a chat template: messages as one text, which `as_messages` reads."""
    return json.dumps(list(messages), ensure_ascii=False)


def as_messages(text: str) -> tuple[Message, ...]:
    """The turns that `as_text` made a text of."""
    return tuple(Message(role=turn["role"], content=turn["content"]) for turn in json.loads(text))


def continued(context: str, continuation: str, prefix: str) -> tuple[str, str] | None:
    """What is given and what is to be judged. White space at the end of a context belongs to the continuation, as
    lm-eval has it, since tokens begin with it; without a context `prefix` stands for one. None where there is none."""
    kept = context.rstrip()
    given, judged = kept, context[len(kept) :] + continuation
    if not context:
        given = prefix
    return (given, judged) if given else None


def generated(instances: Sequence[Any], base: Arguments, *, multiturn: bool, **told: Any) -> Sample:
    """A document whose answer is generated. Raises PlanError for one with several requests."""
    if len(instances) != 1:
        raise PlanError("a document of it needs several answers")
    context, given = instances[0].args
    prompt: Prompt = as_messages(context) if multiturn else context
    return Sample(prompt=prompt, override=None if given == base else _override(base, given), **told)


def judged(instances: Sequence[Any], prefix: str, **told: Any) -> Sample:
    """A document of which continuations are judged. Raises DatasetError for one without a context."""
    pairs = [continued(instance.args[0], instance.args[1], prefix) for instance in instances]
    known = [pair for pair in pairs if pair is not None]
    if len(known) < len(pairs):
        raise DatasetError(
            "a document is asked for without any context, and a client does not know the token that begins a text",
            hint="Say what it is by the option prefix, such as prefix='<s>'.",
        )
    contexts, choices = [context for context, _ in known], tuple(choice for _, choice in known)
    shared = _common_start(contexts)
    heads = tuple(context[len(shared) :] for context in contexts)
    return Sample(prompt=shared, choices=choices, heads=heads if any(heads) else (), **told)


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    return "".join(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))


def rolled(instances: Sequence[Any], prefix: str, **told: Any) -> Sample:
    """A document whose whole text is judged: behind the prefix, if there is one."""
    (text,) = instances[0].args
    return Sample(prompt=prefix, choices=(text,), **told) if prefix else Sample(prompt=text, **told)


def _override(base: Arguments, given: Arguments) -> Override:
    """What a document asks otherwise than its task."""
    (usual, _), (own, rest) = sampling_of(base), sampling_of(given)
    differing = {n: getattr(own, n) for n in ("temperature", "top_p", "seed") if getattr(own, n) != getattr(usual, n)}
    return Override(max_tokens=own.max_tokens, stop=own.stop, extra={**rest, **differing})
