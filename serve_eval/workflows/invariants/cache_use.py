"""Decide from the server's own counts what was computed and what came from its cache.

Prompts that the server took from its cache in both passes, or in neither, show nothing about the
cache, however equal their answers are.

Equal answers show something only if the old prompts were computed again after an eviction, or came
back from where they were offloaded to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from serve_eval.evidence.answer_pairs import TaskAnswers, another_answer, texts
from serve_eval.schema import CacheUse, PressureUse, Usage
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file
from serve_eval.storage.story_results import PressureLog

SHARE = 0.5
"""Least share of a prompt's tokens that the cache must give in `base` and not in the cold pass, and
least share of the prompts for which that holds. A cache of whole blocks gives at least half of any
prompt that fills one block."""
SHOW_COUNTS = "vLLM reports them with --enable-prompt-tokens-details"


def use_of_cache(cold: TaskAnswers, base: TaskAnswers, unsalted: str | None) -> CacheUse | None:
    """Return the use of the cache in both passes, or None if no prompt was answered in both.

    `unsalted` is the reason why the prompts of the cold pass had no salt (None: they had one).
    Servers such as older vLLMs leave the count out if it is 0. So an answer without a count counts
    as 0 if another answer of the two passes has one.
    """
    first, second = read_usage(cold), read_usage(base)
    both = [prompt for prompt in first if prompt in second]
    if not both:
        return None
    counted = any(
        usage[prompt].cached_tokens is not None for usage in (first, second) for prompt in both
    )
    cached, reused = (
        {prompt: usage[prompt].cached_tokens or 0 for prompt in both} for usage in (first, second)
    )
    tokens = {prompt: second[prompt].prompt_tokens for prompt in both}
    tested = [p for p in both if 0 < tokens[p] * SHARE <= reused[p] - cached[p]]
    return CacheUse(
        unsalted=unsalted,
        prompts=len(both),
        tested=len(tested) if counted else 0,
        prompt_tokens=sum(tokens.values()),
        cached=sum(cached.values()) if counted else None,
        base_cached=sum(reused.values()) if counted else None,
    )


def read_usage(answers: TaskAnswers) -> Mapping[str, Usage]:
    """Return the token counts of the answers that have a score, by prompt."""
    return {
        record.id: record.response.usage
        for record in journal.read(samples_file(answers.folder, answers.task.result.task))
        if record.response is not None and record.id in answers.lines[0]
    }


def why_not_tested(use: CacheUse) -> str | None:
    """Return why equal answers say nothing about the cache; None if they do."""
    if use.cached is None or use.base_cached is None:
        return (
            "it is not known whether prompts were cached: the server reports no cached tokens"
            f" ({SHOW_COUNTS})"
        )
    if use.tested >= SHARE * use.prompts:
        return None
    of = f"of {use.prompt_tokens:,} prompt tokens"
    if not use.base_cached:
        return f"nothing was cached: 0 {of}"
    if use.base_cached < SHARE * use.prompt_tokens:
        return f"little was cached: {use.base_cached:,} {of} in base"
    why = f"not cold: {use.cached:,} {of} came from the cache"
    if use.unsalted is None:
        return f"{why}, although every request had a cache_salt of its own"
    return f"{why}; restart the server, or empty its cache"


def describe_use(use: CacheUse) -> str:
    """Return how the pass was kept out of the cache, and what both passes found there."""
    if use.unsalted is None:
        salt = "each prompt had a cache_salt of its own"
    else:
        salt = f"no cache_salt was sent: {use.unsalted}"
    if use.cached is None or use.base_cached is None:
        return f"{salt}; cached tokens are not known"
    return (
        f"{salt}; {use.cached:,} of {use.prompt_tokens:,} prompt tokens came from the cache, and"
        f" {use.base_cached:,} in base; {use.tested} of {use.prompts} prompts compare computed"
        " with cached data"
    )


LONG = 12
"""Characters of an answer from which on another prompt's answer is recognized."""


def count_fewer(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> int:
    """Count the prompts with fewer cached tokens than before; a missing count is 0.

    A beginning that all prompts share comes back with the first of them, and does not count.
    """
    return sum(
        (one.cached_tokens or 0) < (before[prompt].cached_tokens or 0)
        for prompt, one in after.items()
        if prompt in before
    )


def are_fewer(before: Mapping[str, Usage], after: Mapping[str, Usage]) -> bool:
    """Return True if most prompts have fewer cached tokens than before."""
    both = sum(prompt in before for prompt in after)
    return 0 < SHARE * both <= count_fewer(before, after)


def use_under_pressure(
    answers: Sequence[TaskAnswers], log: PressureLog, filled: int
) -> PressureUse | None:
    """Return the fate of the prompts of one task; None if none was answered both times.

    `answers` are those of `base`, of `again` and of the pass under pressure.
    """
    base, again, pressed = answers
    before, after = read_usage(again), read_usage(pressed)
    both = [prompt for prompt in after if prompt in before]
    if not both:
        return None
    counted = any(
        one[prompt].cached_tokens is not None for one in (before, after) for prompt in both
    )
    first, last = base.lines[0], pressed.lines[0]
    changed = [
        prompt for prompt in both if prompt in first and another_answer(first[prompt], last[prompt])
    ]
    return PressureUse(
        filled=filled,
        capacity=log.capacity,
        prompts=len(both),
        prompt_tokens=sum(after[prompt].prompt_tokens for prompt in both),
        before=_count_cached(before, both) if counted else None,
        after=_count_cached(after, both) if counted else None,
        fewer=count_fewer(before, after),
        fate=_find_fate(before, after, log, filled) if counted else "unknown",
        from_cache=sum(bool(after[prompt].cached_tokens) for prompt in changed),
        foreign=_count_foreign(base, pressed, changed),
    )


def _count_cached(usage: Mapping[str, Usage], prompts: list[str]) -> int:
    return sum(usage[prompt].cached_tokens or 0 for prompt in prompts)


def _find_fate(
    before: Mapping[str, Usage], after: Mapping[str, Usage], log: PressureLog, filled: int
) -> Literal["evicted", "reloaded", "kept"]:
    if are_fewer(before, after):
        return "evicted"
    if log.capacity is not None and filled >= log.capacity:
        return "reloaded"
    return "kept"


def _count_foreign(base: TaskAnswers, pressed: TaskAnswers, changed: list[str]) -> int:
    """Count the changed answers that are word for word the answer to another prompt."""
    if not changed:
        return 0
    known = Counter(text for text in texts(base, base.lines[0]).values() if len(text) >= LONG)
    own, now = texts(base, changed), texts(pressed, changed)
    return sum(known[text] > (own.get(prompt) == text) for prompt, text in now.items())


def why_not_pressed(use: PressureUse) -> str | None:
    """Return why equal answers say nothing about eviction or reload; None if they do."""
    if use.before is None or use.after is None:
        return (
            "it is not known whether old prompts left the cache: the server reports no cached"
            f" tokens ({SHOW_COUNTS})"
        )
    if use.before < SHARE * use.prompt_tokens and use.fate != "evicted":
        return f"little was cached: {use.before:,} of {use.prompt_tokens:,} prompt tokens before"
    if use.fate != "kept":
        return None
    why = f"the cache was not filled with {use.filled:,} tokens"
    if use.capacity is not None:
        return f"{why}: it has room for {use.capacity:,}"
    return (
        f"{why}: {use.prompts - use.fewer} of {use.prompts} prompts are still cached, or came back"
        " from host memory, which the server does not tell"
    )


def describe_pressure(use: PressureUse, *, broken: bool) -> str:
    """Return what became of the old prompts and, if answers changed, which ones."""
    if use.before is None or use.after is None:
        line = f"{use.filled:,} tokens of other prompts came between; cached tokens are not known"
    else:
        line = (
            f"{use.after:,} of {use.prompt_tokens:,} prompt tokens came from the cache,"
            f" {use.before:,} before the other prompts: {_FATES[use.fate]}"
        )
        if use.fate == "reloaded":
            line += f" (room for {use.capacity:,} tokens, {use.filled:,} of other prompts)"
    if not broken:
        return line
    if use.after is not None:
        line += f"; {use.from_cache} changed answers had cached tokens"
    if use.foreign:
        line += f"; word for word the answer to another prompt: {use.foreign}"
    return line


_FATES = {
    "evicted": "evicted, and computed again",
    "reloaded": "reloaded, since the device cannot hold both",
    "kept": "still cached, or reloaded",
    "unknown": "not known",
}
