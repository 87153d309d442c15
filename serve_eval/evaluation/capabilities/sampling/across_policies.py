"""Find the sampling fields that one run kept of its server and another run replaced. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from serve_eval.evaluation.capabilities.sampling.sending import list_kept, read_kept
from serve_eval.protocol.fingerprint import SERVER_ADDS
from serve_eval.schema import Report, SamplingDefaults, Task


@dataclass(frozen=True, slots=True)
class SideSampling:
    """The sampling of a run beyond the options of its tasks.

    `kept` are the fields that its server added and that decided answers, by task.
    """

    found: SamplingDefaults | None
    kept: Mapping[str, Sequence[str]]

    @classmethod
    def of_tasks(cls, found: SamplingDefaults | None, tasks: Sequence[Task]) -> SideSampling:
        """Return the sampling of a run that is about to ask these tasks."""
        return cls(found, {task.name: list_kept(found, task) for task in tasks})

    @classmethod
    def of_report(cls, report: Report) -> SideSampling:
        """Return the sampling of a finished run."""
        kept = {task.result.task: read_kept(task) for task in report.tasks}
        return cls(report.sampling_defaults, kept)


@dataclass(frozen=True, slots=True)
class UnlikePolicies:
    """A difference that two policies make, not two servers.

    `keeps` is the side that left fields to its server, for which the other sent neutral values.
    `told` has a line for each task.
    """

    keeps: str
    told: tuple[str, ...]


def find_unlike_policies(a: SideSampling, b: SideSampling) -> UnlikePolicies | None:
    """Return how the policies of A and B make their sampling differ.

    None: both have one policy, under which unlike servers are compared, or the policies ask alike,
    as where nothing is added. Nothing is refused for what a probe could not find out.
    """
    for name, other, one, against in (("A", "B", a, b), ("B", "A", b, a)):
        if told := tuple(_list_replaced(name, other, one, against)):
            return UnlikePolicies(name, told)
    return None


def _list_replaced(
    name: str, other: str, one: SideSampling, against: SideSampling
) -> Iterator[str]:
    sent = against.found
    if one.found is None or sent is None or one.found.policy == sent.policy:
        return
    for task, kept in one.kept.items():
        replaced = [
            field
            for field in kept
            if (at := sent.find(field)) is not None and at.sent_as in sent.sent
        ]
        if replaced and task in against.kept:
            yield (
                f"{task}: {SERVER_ADDS} is {[*kept]} for {name} and {[*against.kept[task]]} for"
                f" {other}, which sent a neutral {', '.join(replaced)}"
            )
