"""Show the answers to repeated prompts on a page, a row for each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.pictures.outcomes import UNREADABLE, WRONG, group_outcome
from serve_eval.report.samples.by_question import RepeatedQuestion

MOST_ROWS = 500
"""Questions that the table has at most: the least often right ones, which say most."""


def tabulate_questions(
    task: str, questions: Sequence[RepeatedQuestion], *, several: bool = False
) -> Iterator[DataTable]:
    """Yield the table of sorted questions, if there are any. Each leads to its samples.

    `several`: other tasks are on the page, so that the title names this one.
    """
    if not questions:
        return
    shown, repeats = questions[-MOST_ROWS:], questions[0].asked
    columns = [
        DataColumn(name="question"),
        DataColumn(name=f"right of {repeats}", number=True),
        DataColumn(name="%", number=True),
        DataColumn(name="wrong", number=True),
        DataColumn(name="unreadable", number=True),
        DataColumn(name="failed", number=True),
        DataColumn(name="cut", number=True),
        DataColumn(name="results", number=True, note="different results that were found"),
    ]
    caption = f"Each question was asked {repeats} times; the most often right first."
    if len(shown) < len(questions):
        caption += f" The last {len(shown):,} of {len(questions):,} questions are shown."
    yield DataTable(
        title=f"{f'{task}: by' if several else 'By'} question: {_count_mixed(questions)}",
        columns=columns,
        rows=[_show(one, task) for one in shown],
        caption=caption,
        closed=True,
    )


def _count_mixed(questions: Sequence[RepeatedQuestion]) -> str:
    """Return how many questions were right each time, sometimes, and never."""
    always = sum(one.share == 1.0 for one in questions)
    never = sum(one.right == 0 for one in questions)
    mixed = len(questions) - always - never
    return f"{always} always right, {mixed} sometimes, {never} never"


def _show(one: RepeatedQuestion, task: str) -> list[DataCell]:
    groups = {
        name: sum(n for outcome, n in one.outcomes.items() if group_outcome(outcome) == name)
        for name in (WRONG, UNREADABLE)
    }
    counts = (groups[WRONG], groups[UNREADABLE], one.asked - one.answered, one.cut)
    return [
        DataCell(text=one.id, href=f"#{urlencode({'sample': f'{task}/{one.id}'})}"),
        DataCell(text=f"{one.right}", order=one.right),
        DataCell(text=f"{100.0 * one.share:.1f}", order=one.share),
        *(DataCell(text=f"{n}" if n else "-", order=n) for n in counts),
        DataCell(text=f"{len(one.different)}", order=len(one.different)),
    ]
