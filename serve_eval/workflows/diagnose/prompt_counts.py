"""Compare the prompt tokens that servers counted: with the model's files, or between two runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.errors import PlanError
from serve_eval.evidence.prompt_audit.audit import find_gap
from serve_eval.evidence.prompt_audit.local_tokens import LocalTokenizer
from serve_eval.plan.prepared_task import request_of
from serve_eval.schema import Comparison, Dataset, Prompt, Task
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import MIXED, Finding
from serve_eval.workflows.diagnose.slice_data import read_data

RULE = "prompt_counts"
MOST = 50
"""Most prompts of a task that are counted."""


def audit_counts(run: Evidence, local: LocalTokenizer) -> list[Finding]:
    """Return a finding for each task whose answers count prompt tokens.

    Raises PlanError if the prompts cannot be built again, because their data or code are missing.
    """
    data = read_data(run)
    if missing := [task.name for task in run.tasks if task.name not in data]:
        raise PlanError(
            f"--tokenizer: the prompts of {', '.join(missing)} cannot be built again",
            hint="Name the data as for the run: its folder may have moved.",
        )
    found = []
    for task in run.tasks:
        gaps, dated = _count(task, *data[task.name], local)
        found += list(_judge(task, gaps, local.side, dated=dated))
    return found


def _count(
    task: TaskEvidence, asked: Task, dataset: Dataset, local: LocalTokenizer
) -> tuple[list[int], bool]:
    """Return by how many tokens the server counts more than the files, for a part of the prompts.

    The flag is True if the chat template writes a date.
    """
    samples = {sample.id: sample for sample in dataset.samples}
    gaps, dated = list[int](), False
    for one in task.texts:
        told = 0 if one.response is None else one.response.usage.prompt_tokens
        sample = samples.get(base_of(one.id))
        if not told or sample is None:
            continue
        request = request_of(asked, sample)
        if not _is_plain(request.prompt, request.extra):
            continue
        reading = local.read_now(request.prompt)
        if reading.ids is not None:
            gaps.append(told - len(reading.ids))
            dated |= bool(reading.dated)
        if len(gaps) == MOST:
            break
    return gaps, dated


def _is_plain(prompt: Prompt, extra: Mapping[str, object]) -> bool:
    """Return True if only the text and the template decide the tokens."""
    if extra.get("tools") or extra.get("add_special_tokens") is False:
        return False
    return isinstance(prompt, str) or not any(message.media for message in prompt)


def _judge(task: TaskEvidence, gaps: Sequence[int], side: str, *, dated: bool) -> Iterator[Finding]:
    if dated:
        yield _find(
            task,
            f"the chat template of {side} writes a date: prompts change from day to day",
            (f"--set {task.word}.template_date=DATE, and a fixed date on the server",),
            len(gaps),
            len(gaps),
        )
    gap = find_gap(gaps)
    if gap is None:
        return
    where = f"in {gap.prompts} of {gap.of} prompts"
    if gap.tokens == 0:
        told = f"the server counts as many tokens as {side} {where}"
        yield _find(task, told, (), gap.prompts, gap.of)
        return
    yield _find(
        task,
        f"the server counts {gap.amount} than {side} {where}: {gap.cause}",
        ("serve-eval smoke URL --set smoke.tokenizer=DIR", "the tokenizer files of the model"),
        gap.prompts,
        gap.of,
    )


def _find(task: TaskEvidence, told: str, change: tuple[str, ...], count: int, of: int) -> Finding:
    return Finding(
        rule=RULE, told=told, change=change, count=count, of=of, lost=len(task.lost), task=task.name
    )


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
