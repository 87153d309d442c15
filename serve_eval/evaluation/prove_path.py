"""Prove the path of a run from what its folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from serve_eval.evaluation.ask_again import compare_repeats, join_repeated
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence.path_proof.facts import find_longest_shared, gather_facts
from serve_eval.evidence.path_proof.findings import find_path, list_expected, warn_of_path
from serve_eval.schema import EngineReport, PathClaim, PathFinding, Plan, TaskReport
from serve_eval.storage.records.traces import Served
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
