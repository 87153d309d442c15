"""Prove the path of a run from what its folder holds, such as repeated answers.

Only generated answers count that should repeat: at temperature 0, or with a sampling seed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.send import send
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence.path_facts import find_longest_shared, gather_facts
from serve_eval.evidence.path_proof import find_path, list_expected, warn_of_path
from serve_eval.evidence.whole_answer import hash_answer
from serve_eval.schema import (
    EngineReport,
    Failure,
    PathClaim,
    PathFinding,
    Plan,
    RepeatedAnswers,
    Sample,
    Task,
    TaskReport,
)
from serve_eval.storage.answer_origins import Served
from serve_eval.storage.sessions import SessionRecord


class ProvenPath(NamedTuple):
    """The findings about what is expected, and warnings."""

    findings: tuple[PathFinding, ...]
    warnings: tuple[str, ...]


def prove_path(
    plan: Plan,
    noted: Sequence[SessionRecord],
    tasks: Sequence[TaskRun],
    reports: Sequence[TaskReport],
    engine: EngineReport | None,
    served: Mapping[str, Mapping[str, Sequence[Served]]] | None,
) -> ProvenPath:
    """Return the findings about the path of a run, and what looks wrong.

    `noted` are its sessions, `engine` has the counts of all of them, and `served` the servers of
    its answers.
    """
    launched = [name for one in noted for name in one.endpoint.info.expects or ()]
    expected = list_expected(plan.expect, launched)
    repeated = None
    if PathClaim.DETERMINISTIC in expected:
        again = [one.repeated for one in noted if one.repeated is not None]
        repeated = join_repeated([*filter(None, [compare_repeats(tasks)]), *again])
    shared = partial(_find_longest_shared, tasks)
    facts = gather_facts(reports, engine, served, repeated, shared)
    found = find_path(facts, expected)
    unwanted = [name for name, wanted in plan.expect.items() if not wanted]
    return ProvenPath(found, tuple(warn_of_path(facts, found, unwanted)))


def _find_longest_shared(tasks: Sequence[TaskRun]) -> int:
    """Return the longest beginning, in characters, that two prompts of the run share."""
    return find_longest_shared(text for one in tasks for text in _list_prompts(one))


def _list_prompts(task_run: TaskRun) -> Iterator[str]:
    times = 1 if task_run.accumulator.repeats == 1 else 2
    for sample in task_run.prepared.dataset.samples:
        prompt = sample.prompt
        text = prompt if isinstance(prompt, str) else msgspec.json.encode(prompt).decode()
        for _ in range(times):
            yield text


MOST_AGAIN = 64
"""Prompts that are asked again. If 7 % of all answers do not repeat, one is found with a
probability of 99 %: 1 - .93^64."""
MOST_IN_FLIGHT = 64
_REPEAT = re.compile(r"(.*)#\d+", re.DOTALL)


def may_compare(task: Task) -> bool:
    """Return True if answers of the task should repeat."""
    sampling = task.sampling
    steady = sampling.temperature == 0 or sampling.seed is not None
    return steady and not task.prompt_logprobs


def compare_repeats(tasks: Iterable[TaskRun]) -> RepeatedAnswers | None:
    """Return the comparison of the repeats of a run; None if no prompt has two answers."""
    found = [_compare_task(one) for one in tasks if one.accumulator.repeats > 1]
    return join_repeated(one for one in found if one.prompts)


def join_repeated(parts: Iterable[RepeatedAnswers]) -> RepeatedAnswers | None:
    """Return the sum of several comparisons; None without any."""
    known = list(parts)
    if not known:
        return None
    return RepeatedAnswers(
        prompts=sum(one.prompts for one in known),
        differ=sum(one.differ for one in known),
        failed=sum(one.failed for one in known),
        example=next((one.example for one in known if one.example), ""),
    )


def _compare_task(task_run: TaskRun) -> RepeatedAnswers:
    task = task_run.prepared.task
    answers: dict[str, list[bytes]] = {}
    for name, answer in _last_answers(task_run).items():
        again = _REPEAT.fullmatch(name)
        answers.setdefault(name if again is None else again[1], []).append(answer)
    several = {prompt: found for prompt, found in answers.items() if len(found) > 1}
    other = [prompt for prompt, found in several.items() if len(set(found)) > 1]
    return RepeatedAnswers(
        prompts=len(several),
        differ=len(other),
        example=f"{task.name} {other[0]}" if other else "",
    )


async def compare_again(
    tasks: Sequence[TaskRun], client: Client, *, seed: int, in_flight: int | None
) -> RepeatedAnswers | None:
    """Ask up to MOST_AGAIN answered prompts again, and compare the answers.

    They are drawn by `seed`, and asked with as many in flight as the run had (None: not fixed).
    Returns None if no answer of these tasks should repeat.
    """
    known = [(one.prepared.task, *pair) for one in tasks for pair in _list_answered(one)]
    if not known:
        return None
    chosen = random.Random(seed).sample(known, min(MOST_AGAIN, len(known)))
    turns = asyncio.Semaphore(min(in_flight or MOST_IN_FLIGHT, MOST_IN_FLIGHT))

    async def ask(task: Task, sample: Sample, before: bytes) -> bool | None:
        async with turns:
            result = await send(client, task, sample)
        return None if isinstance(result, Failure) else hash_answer(result) == before

    same = await asyncio.gather(*(ask(*one) for one in chosen))
    other = [
        f"{task.name} {sample.id}"
        for (task, sample, _), equal in zip(chosen, same, strict=True)
        if equal is False
    ]
    return RepeatedAnswers(
        prompts=sum(one is not None for one in same),
        differ=len(other),
        failed=same.count(None),
        example=other[0] if other else "",
    )


def _list_answered(task_run: TaskRun) -> list[tuple[Sample, bytes]]:
    """Return the samples of a task with an answer that should repeat, each with its hash."""
    samples = {one.id: one for one in task_run.prepared.dataset.samples}
    answers = _last_answers(task_run)
    return [(samples[name], answers[name]) for name in answers if name in samples]


def _last_answers(task_run: TaskRun) -> dict[str, bytes]:
    """Return the hash of each answer that should repeat, by the id of its sample."""
    if not may_compare(task_run.prepared.task):
        return {}
    return {
        record.id: hash_answer(record.response)
        for record in task_run.journal.records()
        if record.response is not None and record.response.choice_logprobs is None
    }
