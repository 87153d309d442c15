"""The rules that compare the two runs of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from serve_eval.evidence.prompt_audit.audit import find_gap
from serve_eval.schema import Comparison
from serve_eval.workflows.diagnose.evidence import Evidence
from serve_eval.workflows.diagnose.finding import MIXED, Finding


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


def find_mixed(a: Evidence, b: Evidence, comparison: Comparison | None) -> Iterator[Finding]:
    """Yield a finding for each task if a side that disagrees with itself was asked in parts.

    Another server may have answered in a later session. The value then mixes both.
    """
    said = () if comparison is None else comparison.warnings
    for name, side in (("A", a), ("B", b)):
        sessions = len(side.sessions)
        if sessions < 2 or not any(one.startswith(f"unsteady: {name} ") for one in said):
            continue
        for task in side.tasks:
            yield Finding(
                rule=MIXED,
                told=(
                    f"answers of two servers may be mixed: {name} was asked in {sessions} sessions"
                    " and disagrees with itself"
                ),
                change=("the same serve-eval compare command with another folder for -o",),
                count=sessions,
                of=sessions,
                task=task.name,
            )
