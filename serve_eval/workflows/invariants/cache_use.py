"""Decide from the server's own counts whether the cold pass compared computed with cached data.

Prompts that the server took from its cache in both passes, or in neither, show nothing about the
cache, however equal their answers are.
"""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.schema import CacheUse, Usage
from serve_eval.storage import journal
from serve_eval.storage.file_names import samples_file

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
