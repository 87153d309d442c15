"""Compare the prompt tokens that the server counted with the files of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.engine.request import request_of
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.prompt_audit.local import LocalTokenizer
from serve_eval.evaluation.trust import adopt_code
from serve_eval.schema import Prompt
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import Finding

RULE = "prompt_counts"
MOST, LEAST, SAME_SHARE = 50, 10, 0.95
"""Most and fewest prompts of a task that are counted, and the share of them that has to differ by
the same number of tokens to be one cause."""


def audit_counts(
    run: Evidence, local: LocalTokenizer, include_path: Sequence[str]
) -> list[Finding]:
    """Return a finding for each task whose answers count prompt tokens.

    Raises PlanError if the prompts cannot be built again, because their data or code are missing.
    """
    plan = replace(run.plan, no_reference=True)
    try:
        prepared = {one.task.name: one for one in prepare(adopt_code(plan, include_path))}
    except ServeEvalError as error:
        raise PlanError(
            f"--tokenizer: the prompts of the run cannot be built again: {error}",
            hint="Name the data with --dataset-root or its variable, as for the run.",
        ) from error
    found = []
    for task in run.tasks:
        if task.name in prepared:
            gaps, dated = _count(task, prepared[task.name], local)
            found += list(_judge(task, gaps, local.side, dated=dated))
    return found


def _count(
    task: TaskEvidence, prepared: PreparedTask, local: LocalTokenizer
) -> tuple[list[int], bool]:
    """Return by how many tokens the server counts more than the files, for a part of the prompts.

    The flag is True if the chat template writes a date.
    """
    samples = {sample.id: sample for sample in prepared.dataset.samples}
    gaps, dated = list[int](), False
    for one in task.texts:
        told = 0 if one.response is None else one.response.usage.prompt_tokens
        sample = samples.get(base_of(one.id))
        if not told or sample is None:
            continue
        request = request_of(prepared.task, sample)
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
    return isinstance(prompt, str) or not any(message.images for message in prompt)


def _judge(task: TaskEvidence, gaps: Sequence[int], side: str, *, dated: bool) -> Iterator[Finding]:
    if dated:
        yield _find(
            task,
            f"the chat template of {side} writes a date: prompts change from day to day",
            (f"--set {task.name}.template_date=DATE, and a fixed date on the server",),
            len(gaps),
            len(gaps),
        )
    if len(gaps) < LEAST:
        return
    gap, same = Counter(gaps).most_common(1)[0]
    if not any(gaps):
        told = f"the server counts as many tokens as {side} in {same} of {len(gaps)} prompts"
        yield _find(task, told, (), same, len(gaps))
    elif gap and same >= SAME_SHARE * len(gaps):
        yield _find(
            task,
            f"the server counts {_amount(gap)} than {side} in {same} of {len(gaps)} prompts:"
            f" {_explain(gap)}",
            ("serve-eval smoke URL --tokenizer DIR", "the tokenizer files of the model"),
            same,
            len(gaps),
        )
    else:
        other = sum(one != 0 for one in gaps)
        yield _find(
            task,
            f"the server counts other numbers of tokens than {side} in {other} of {len(gaps)}"
            " prompts: another tokenizer, or white space is stripped",
            ("serve-eval smoke URL --tokenizer DIR", "the tokenizer files of the model"),
            other,
            len(gaps),
        )


def _amount(gap: int) -> str:
    return f"{abs(gap)} {'more' if gap > 0 else 'fewer'}"


def _explain(gap: int) -> str:
    if gap == 1:
        return "it adds the first token twice, or one that the files do not add"
    if gap == -1:
        return "the first token is missing"
    return "another chat template, such as one that " + (
        "adds a system message or a date" if gap > 0 else "drops a system message"
    )


def _find(task: TaskEvidence, told: str, change: tuple[str, ...], count: int, of: int) -> Finding:
    return Finding(
        rule=RULE, told=told, change=change, count=count, of=of, lost=len(task.lost), task=task.name
    )
