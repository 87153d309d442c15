"""The rule that compares the two runs of a comparison."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import Finding

LEAST_PROMPTS, SAME_SHARE = 10, 0.95
"""Prompts that both sides have to count, and the share of them that has to differ by the same
number of tokens."""


def prompt_tokens(a: Evidence, b: Evidence) -> Iterator[Finding]:
    """Yield a finding if one server counts more tokens than the other in the same texts.

    Special tokens are added twice or not at all, or the chat templates differ.
    """
    others = {task.name: task for task in b.tasks}
    for task in a.tasks:
        if task.name not in others:
            continue
        told = {
            one.id: one.response.usage.prompt_tokens
            for one in others[task.name].texts
            if one.response
        }
        counted = [
            told[one.id] - one.response.usage.prompt_tokens
            for one in task.texts
            if one.response and one.response.usage.prompt_tokens and told.get(one.id)
        ]
        if len(counted) < LEAST_PROMPTS:
            continue
        gap, same = Counter(counted).most_common(1)[0]
        if not gap or same < SAME_SHARE * len(counted):
            continue
        more, tokens = ("B" if gap > 0 else "A"), abs(gap)
        why = (
            "one server adds the first token twice, or the other does not add it"
            if tokens == 1
            else "the chat templates differ"
        )
        yield Finding(
            rule="prompt_tokens",
            told=(
                f"{more} counts {tokens} token{'s' if tokens > 1 else ''} more than the other in"
                f" {same} of {len(counted)} prompts with the same text: {why}"
            ),
            change=(
                "serve-eval smoke URL, row special_tokens",
                f"--set {task.name}.add_special_tokens=false",
            ),
            count=same,
            of=len(counted),
            task=task.name,
        )
