"""The facts from which the path of a run's answers is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from serve_eval.evidence.deployed_servers import ROLES
from serve_eval.schema import (
    Acceptance,
    EngineCounts,
    EngineReport,
    RepeatedAnswers,
    ServerCounts,
    TaskReport,
)
from serve_eval.storage.records.traces import Served

CONTEXT, GENERATION = ROLES["context_servers"], ROLES["generation_servers"]


class NamedLegs(NamedTuple):
    """The answers whose servers are known.

    `context` of the `generation` answers with a known generation server have a known context server
    too; for `moved` of them the time or the size of a transfer was reported.
    """

    generation: int = 0
    context: int = 0
    moved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFacts:
    """Hold the facts of a run about the path of its answers.

    `servers` are the counts of the engines while `answered` answers came. `tokens` are the
    generated tokens, `acceptances` the reports of steps in answers, and `cached` the tokens that
    answers report from a prefix cache (None: no answer reports them). `find_shared` returns the
    longest beginning, in characters, that two prompts share.
    """

    servers: Sequence[ServerCounts] = ()
    answered: int = 0
    tokens: int = 0
    acceptances: Sequence[Acceptance] = ()
    cached: int | None = None
    legs: NamedLegs = NamedLegs()  # noqa: RUF009 - immutable
    repeated: RepeatedAnswers | None = None
    find_shared: Callable[[], int] = field(default=lambda: 0)

    def of_role(self, *roles: str | None) -> list[EngineCounts]:
        """Return the known counts of the servers with one of these roles; of all without any."""
        return [
            one.counts
            for one in self.servers
            if one.counts is not None and (not roles or one.role in roles)
        ]

    @property
    def disaggregated(self) -> bool:
        """True if servers of both roles count, or both took part in answers."""
        roles = {one.role for one in self.servers}
        return {CONTEXT, GENERATION} <= roles or bool(self.legs.generation)


def gather_facts(
    tasks: Sequence[TaskReport],
    engine: EngineReport | None,
    served: Mapping[str, Mapping[str, Sequence[Served]]] | None,
    repeated: RepeatedAnswers | None,
    find_shared: Callable[[], int],
) -> PathFacts:
    """Return the facts of a run from its tasks, its engines' counts and its traces."""
    cached = [task.traffic.cached_tokens for task in tasks]
    told = [count for count in cached if count is not None]
    scored = sum(task.result.scored for task in tasks)
    return PathFacts(
        servers=() if engine is None else engine.servers,
        answered=scored if engine is None or not engine.answered else engine.answered,
        tokens=sum(task.traffic.completion_tokens for task in tasks),
        acceptances=[
            task.traffic.acceptance for task in tasks if task.traffic.acceptance is not None
        ],
        cached=sum(told) if told else None,
        legs=count_legs(served or {}),
        repeated=repeated,
        find_shared=find_shared,
    )


def count_legs(served: Mapping[str, Mapping[str, Sequence[Served]]]) -> NamedLegs:
    """Return the counts of the answers whose servers are known."""
    last = [lines[-1] for samples in served.values() for lines in samples.values() if lines]
    both = [one for one in last if one.generation is not None]
    return NamedLegs(
        generation=len(both),
        context=sum(one.context is not None for one in both),
        moved=sum(bool(one.kv_transfer_s) or bool(one.kv_bytes) for one in both),
    )


def find_longest_shared(texts: Iterable[str]) -> int:
    """Return the longest beginning, in characters, that two of the texts share."""
    ordered, longest, before = sorted(texts), 0, None
    for text in ordered:
        if before is not None:
            longest = max(longest, _count_shared(before, text))
        before = text
    return longest


def _count_shared(one: str, other: str) -> int:
    least, most = 0, min(len(one), len(other))
    while least < most:  # the largest length at which both begin alike
        middle = (least + most + 1) // 2
        if one[:middle] == other[:middle]:
            least = middle
        else:
            most = middle - 1
    return least
