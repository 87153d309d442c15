"""Compare options of context servers with those of generation servers, before a launch. Pure.

Only what certainly cannot work is an error, and other modules raise it. The rest is a warning that
names both values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

OWN_DRAFTS = ("ngram", "suffix", "user_provided")
"""Methods of speculation that find drafts in the text, and so need no KV cache of their own."""


class SharedOption(NamedTuple):
    """An option in which both sides should agree: what it sets, both values, and why."""

    what: str
    context: Any
    generation: Any
    why: str


def list_differences(options: Sequence[SharedOption]) -> Iterator[str]:
    """Yield a warning for each option whose values differ."""
    for one in options:
        if one.context != one.generation:
            yield (
                f"context servers have {one.what} {_show(one.context)}, generation servers"
                f" {_show(one.generation)}: {one.why}"
            )


def describe_speculation(
    context: Mapping[str, Any] | None, generation: Mapping[str, Any] | None, method: str
) -> SharedOption:
    """Return the option of speculation; equal if neither side needs a KV cache for its drafts.

    `method` is the key of its method.
    """
    needed = [
        None if side is None or str(side.get(method, "")).lower() in OWN_DRAFTS else dict(side)
        for side in (context, generation)
    ]
    return SharedOption(
        "speculation",
        needed[0],
        needed[1],
        "a side without it makes no KV cache for the drafts of the other (sglang PR 17212)",
    )


def warn_of_chunks(limit: object, chunked: bool | None, longest: object) -> Iterator[str]:
    """Yield a warning if context servers refuse prompts that generation servers would take.

    `limit` is the number of tokens in a step of the context servers, `chunked` True if they split
    longer prompts, and `longest` the longest sequence of the generation servers.
    """
    if isinstance(limit, int) and isinstance(longest, int) and chunked is False and limit < longest:
        yield (
            f"context servers process at most {limit} tokens in a step and split no prompt, and"
            f" generation servers take up to {longest}: a longer prompt is refused"
        )


def _show(value: object) -> str:
    return "not set" if value is None else str(value)
