"""The rule that compares the two runs of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from serve_eval.evaluation.prompt_audit.counts import find_gap
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import Finding


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
        gap = find_gap(counted)
        if gap is None or not gap.tokens:
            continue
        # The side that counts more is named.
        more, gap = ("B" if gap.tokens > 0 else "A"), replace(gap, tokens=abs(gap.tokens))
        yield Finding(
            rule="prompt_tokens",
            told=(
                f"{more} counts {gap.amount} than the other in {gap.prompts} of {gap.of} prompts"
                f" with the same text: {gap.cause}"
            ),
            change=(
                "serve-eval smoke URL, row special_tokens",
                f"--set {task.word}.add_special_tokens=false",
            ),
            count=gap.prompts,
            of=gap.of,
            task=task.name,
        )
