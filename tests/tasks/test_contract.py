"""Test the contract of every task; a new file in serve_eval/tasks is covered automatically."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from serve_eval.plugins import registry
from serve_eval.protocol.fingerprint import canonical
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    DataRoots,
    Dataset,
    ExecutionResult,
    ExitReason,
    Outcome,
    PromptLogprobs,
    Response,
    Sample,
    Score,
    Spec,
    Task,
    ToolCall,
)
from tests.tasks.made_data import NAMES, spec_of

LIKELIHOOD = [
    Spec(name=name, options={"scoring": "loglikelihood"}) for name in ("mmlu", "word_problems")
]


@pytest.fixture(
    scope="module",
    params=[*NAMES, *LIKELIHOOD],
    ids=lambda param: getattr(param, "name", param),
)
def loaded(request: pytest.FixtureRequest, data_root: Path) -> tuple[Task, Dataset]:
    task = build_task(
        request.param if isinstance(request.param, Spec) else spec_of(request.param, data_root)
    )
    assert task.hypothesis.num_samples is not None, f"{task.name}: num_samples is not set"
    return task, task.load(DataRoots(roots=(data_root,)), task.hypothesis.num_samples)


def _read_calls(sample: Sample, text: str) -> Response | None:
    """Return a text with calls as a server does whose request offers tools."""
    fields = {} if sample.override is None else sample.override.extra
    if "tools" not in fields or fields.get("tool_choice") == "none" or text[:1] != "{":
        return None
    calls = tuple(
        ToolCall(call["name"], json.dumps(call["arguments"]))
        for call in json.loads(text)["tool_calls"]
    )
    return Response(text="", finish_reason="tool_calls", tool_calls=calls)


def _response(task: Task, sample: Sample, text: str, ended: ExitReason) -> Response:
    """Return the response for an answer of `task.answers`.

    If the task finds a program in it, the response has a result. The tests of the task check what
    running it really gives.
    """
    response = _read_calls(sample, text) or Response(text=text, finish_reason="stop")
    if task.program is not None:
        assert task.program(sample, response) is not None
        return msgspec.structs.replace(response, ran=ExecutionResult(ended=ended, exit=None))
    if sample.choices:
        return Response(
            text="",
            finish_reason=None,
            choice_logprobs=tuple((-1.0 - (c != text),) for c in sample.choices),
        )
    if not task.prompt_logprobs:
        return response
    starts = [token.start() for token in re.finditer(r"\s*\S+", str(sample.prompt))]
    told = PromptLogprobs(values=(float(text),) * len(starts), skipped=0, offsets=tuple(starts))
    return Response(text="", finish_reason="length", prompt_logprobs=told)


def _scored(task: Task, dataset: Dataset, place: int) -> list[tuple[Sample, Score]]:
    """Return every sample with the score of its gold answer (0) or of its wrong one (1)."""
    ended = (ExitReason.PASSED, ExitReason.RAISED)[place]
    return [
        (s, task.score(s, _response(task, s, task.answers(s)[place], ended)))
        for s in dataset.samples
    ]


def test_a_gold_answer_scores_full_marks_and_a_wrong_one_nothing(
    loaded: tuple[Task, Dataset],
) -> None:
    """If a score has no range, the two differ, and gold answers give the better value."""
    task, dataset = loaded
    metric = task.metric
    right, wrong = _scored(task, dataset, 0), _scored(task, dataset, 1)
    for (sample, gold), (_, other) in zip(right, wrong, strict=True):
        if metric.lo is None or metric.hi is None:
            assert gold.value != other.value, f"{sample.id}: both answers() score {gold.value}"
        else:
            right_answer, wrong_answer = task.answers(sample)
            told = f"{sample.id}: score of answers()[0] {right_answer[:80]!r}"
            assert gold.outcome is Outcome.CORRECT, f"{told} is {gold}, not CORRECT"
            assert gold.value == metric.hi, f"{told} is {gold}, not {metric.hi}"
            told = f"{sample.id}: score of answers()[1] {wrong_answer[:80]!r}"
            assert other.value == metric.lo, f"{told} is {other}, not {metric.lo}"
    best, worst = task.aggregation.of(right), task.aggregation.of(wrong)
    better = best > worst if metric.higher_is_better else best < worst
    assert better, f"the aggregation gives {best} for right answers and {worst} for wrong ones"
    values = (best, worst, *task.secondary(right).values())
    assert all(math.isfinite(value) for value in values), f"not all are finite: {values}"


def test_ids_are_unique_and_loading_twice_gives_the_same(
    loaded: tuple[Task, Dataset], data_root: Path
) -> None:
    task, dataset = loaded
    twice = [name for name, n in Counter(s.id for s in dataset.samples).items() if n > 1]
    assert not twice, f"{task.name}: ids of several samples: {twice[:5]}"
    assert task.hypothesis.num_samples is not None
    again = task.load(DataRoots(roots=(data_root,)), task.hypothesis.num_samples)
    assert again == dataset, f"{task.name}: load() gives another data set the second time"


def test_messages_are_of_tasks_with_chat(loaded: tuple[Task, Dataset]) -> None:
    task, dataset = loaded
    for sample in dataset.samples:
        if isinstance(sample.prompt, str):
            assert not task.chat, f"{task.name}: {sample.id} is a text: leave out chat=True"
        else:
            assert task.chat, f"{task.name}: {sample.id} is messages: set chat=True"


def test_the_name_is_the_file_and_the_protocol_is_plain_data(loaded: tuple[Task, Dataset]) -> None:
    task, _ = loaded
    assert task.name.partition(":")[0] in NAMES, f"the name {task.name!r} is not that of the file"
    assert task.protocol["max_tokens"] == task.sampling.max_tokens, (
        "protocol must not replace max_tokens of the sampling"
    )
    assert canonical(task.protocol), "the protocol is empty"


def test_the_breakdown_takes_any_scores(loaded: tuple[Task, Dataset]) -> None:
    task, dataset = loaded
    found = canonical(task.breakdown((sample, 1.0) for sample in dataset.samples))
    assert found, f"{task.name}: breakdown() gives nothing that can be written as JSON"


def test_every_task_has_a_one_line_summary() -> None:
    for name in registry.names("serve_eval.tasks"):
        summary = registry.summary("serve_eval.tasks", name)
        assert 20 < len(summary) <= 140, (
            f"{name}: the first line of its docstring has {len(summary)} characters, not 21 to 140"
        )
