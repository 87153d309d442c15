"""Test the contract of every task; a new file in serve_eval/tasks is covered automatically.

test_gold.py tests what its answers score.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from serve_eval.plugins import registry
from serve_eval.protocol.fingerprint import canonical
from serve_eval.protocol.shared import build_task
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Spec,
    Task,
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
