"""Test the evaluation of the embedded language model.

The model is intact or damaged and runs behind one server.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import embedded
from serve_eval.schema import Endpoint, LaunchContext, Limits, Plan, Spec, TaskResult

SOUND, DAMAGED = "embedded", "damaged"
LIMIT = 24
WAYS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", {}, {"concurrency": 16}),
    ("one at a time", {}, {"concurrency": 1}),
    ("streamed", {}, {"concurrency": 16, "stream": True}),
    ("chat", {"apply_chat_template": True}, {}),
    ("rendered here", {"apply_chat_template": True, "tokenizer": str(embedded.WEIGHTS)}, {}),
    ("shots", {"num_fewshot": 2}, {}),
    ("likelihood", {"scoring": "loglikelihood"}, {}),
]
"""Names of the ways of asking, with options of the task and limits."""


def _plan(endpoint: Endpoint, model: str, tasks: tuple[Spec, ...], **limits: Any) -> Plan:
    return Plan(
        model=model,
        launcher=Spec(name="external", options={"base_url": endpoint.base_url}),
        tasks=tasks,
        limit=LIMIT,
        no_reference=True,
        limits=Limits(**limits),
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TaskResult]:
    """Return the result of each way of asking, by name."""
    folder = tmp_path_factory.mktemp("embedded")
    found: dict[str, TaskResult] = {}

    async def story() -> None:
        context = LaunchContext(model=None, log_dir=folder / "logs")
        async with embedded.launch(
            context, embedded.EmbeddedOptions(also={DAMAGED: "int3"})
        ) as endpoint:
            for name, options, limits in WAYS:
                task = Spec(name="word_problems", options=options)
                report = await evaluate(
                    _plan(endpoint, SOUND, (task,), **limits), folder / name, environ={}
                )
                found[name] = report.tasks[0].result
            for model, tasks in (
                (SOUND, ("word_problems_perplexity", "passkey_short")),
                (DAMAGED, ("word_problems_perplexity", "word_problems")),
            ):
                plan = _plan(endpoint, model, tuple(Spec(name=name) for name in tasks))
                for task_report in (await evaluate(plan, folder / model, environ={})).tasks:
                    found[f"{model} {task_report.result.task}"] = task_report.result

    asyncio.run(story())
    return found


def test_every_way_of_asking_is_answered_in_full(results: dict[str, TaskResult]) -> None:
    assert len(results) == len(WAYS) + 4
    for name, result in results.items():
        assert (result.scored, result.failed) == (LIMIT, 0), name


def test_how_it_is_sent_changes_no_answer(results: dict[str, TaskResult]) -> None:
    assert results["one at a time"].parts == results["streamed"].parts == results["text"].parts
    assert results["rendered here"].parts == results["chat"].parts


def test_damage_shows_where_it_was_done(results: dict[str, TaskResult]) -> None:
    sound, damaged = (
        results[f"{model} word_problems_perplexity"].value for model in (SOUND, DAMAGED)
    )
    assert sound is not None
    assert damaged is not None
    assert 1 < sound < damaged
    right, wrong = results["text"].value, results[f"{DAMAGED} word_problems"].value
    assert right is not None
    assert wrong is not None
    assert right > wrong


def test_a_passkey_is_found(results: dict[str, TaskResult]) -> None:
    value = results[f"{SOUND} passkey_short"].value
    assert value is not None
    assert value >= 50  # none is by chance; docs/embedded-model.md has 78.6 of 500
