"""Compare the generated tokens that the server counted with the texts of its answers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding

RULE = "answer_counts"
MOST, LEAST = 50, 10
"""Most and fewest answers of a task that are counted."""
TOLERATED, LEAST_TOKENS = 0.1, 3
"""Share, and number of tokens, by which a count may differ: MLPerf's TEST06 compares both, and an
end token, tags of thoughts or another cut of the text are no error."""


def audit_answer_counts(run: Evidence, local: LocalTokenizer) -> Iterator[Finding]:
    """Yield a finding for each task in most of whose answers the counts and the texts differ."""
    for task in run.tasks:
        counts = list(_count(task, local))
        odd = sum(abs(told - made) > max(LEAST_TOKENS, TOLERATED * told) for told, made in counts)
        if len(counts) < LEAST or 2 * odd <= len(counts):
            continue
        told, made = (statistics.fmean(side) for side in zip(*counts, strict=True))
        yield Finding(
            rule=RULE,
            told=(
                f"the server counts {told:.1f} tokens per answer, and {local.side} make {made:.1f}"
                f" of the texts; they differ in {odd} of {len(counts)} answers: tokens were removed"
                " from the texts, or the counts are wrong"
            ),
            change=(
                "trtllm-serve without --reasoning_parser and --tool_parser",
                "do not compare tokens per second by these counts",
            ),
            count=odd,
            of=len(counts),
            lost=len(task.lost),
            task=task.name,
        )


def _count(task: TaskEvidence, local: LocalTokenizer) -> Iterator[tuple[int, int]]:
    """Yield the counted tokens of an answer and those of its text and thoughts."""
    counted = 0
    for one in task.texts:
        response = one.response
        if response is None or response.tool_calls or not response.usage.completion_tokens:
            continue
        made = local.count_tokens(response.text)
        if not response.usage.reasoning_tokens:  # else thoughts are shown in part, or not at all
            made += local.count_tokens(response.reasoning or "")
        yield response.usage.shown_tokens, made
        counted += 1
        if counted == MOST:
            return
