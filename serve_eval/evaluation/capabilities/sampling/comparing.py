"""Compare the sampling fields of a run with those of its reference or another run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from serve_eval.evaluation.capabilities.sampling.sending import list_kept, list_replaced, read_kept
from serve_eval.protocol.fingerprint import SERVER_ADDS
from serve_eval.schema import Reference, Report, SamplingDefaults, Task


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


OLDER = "the reference is older than the probe for it"
"""The remark about a reference that does not say what its servers added."""


class OtherSampling(NamedTuple):
    """A difference between the sampling of a run and of its reference, or a doubt about one.

    `differs`: it is a difference of the protocol, which refuses the reference. Otherwise it is a
    doubt, and a warning. `hint` says how to ask as the reference's runs asked.
    """

    told: str
    differs: bool
    hint: str = ""


def compare_with_reference(
    found: SamplingDefaults | None, reference: Reference, task: Task
) -> OtherSampling | None:
    """Return how the fields that decide a run's answers differ from those of its reference.

    Fields count that the server adds and that nothing replaces. A published value is taken to be
    one of the task's own protocol, to which nothing is added. An own reference of an older version
    does not say: its runs sent no fields, so that it stays comparable where nothing is added, and
    where nothing is replaced. None: equal, or nothing is known of this run.
    """
    if found is None or task.prompt_logprobs:
        return None
    here, replaced = list_kept(found, task), list_replaced(found, task)
    runs = reference.runs
    if runs is not None and runs.server_adds is None:
        return _compare_with_unknown(here, [one for one in replaced if one not in here])
    then = () if runs is None else runs.server_adds or ()
    lacking = [name for name in then if name not in here]
    unknown = [name for name in lacking if _is_unknown(found, name)]
    if {*here} <= {*then} and unknown == lacking:
        return _doubt(unknown) if unknown else None
    told = (
        f"{SERVER_ADDS} is {[*here]} here and {[*then]} with the reference: servers added"
        f" {_join(then)} to its requests, and {_join(here)} to these"
    )
    instead = [name for name in lacking if name in replaced]
    if instead:
        told += f", which send a neutral {_join(instead)}"
    return OtherSampling(told, differs=True, hint=_advise(found, here, then, instead))


def _compare_with_unknown(here: Sequence[str], replaced: Sequence[str]) -> OtherSampling | None:
    """Compare with a reference whose runs sent no fields to servers that were not probed."""
    if replaced:
        told = (
            f"{SERVER_ADDS} is not known with the reference: this run replaces {_join(replaced)},"
            f" which the server adds, and {OLDER}, so that its server may have added the same"
        )
        return OtherSampling(told, differs=True, hint=_KEEP)
    if here:
        told = (
            f"the server adds {_join(here)} to these requests, and {OLDER}: they compare only if"
            " its server added the same"
        )
        return OtherSampling(told, differs=False)
    return None


def _doubt(unknown: Sequence[str]) -> OtherSampling:
    told = (
        f"servers added {_join(unknown)} to the requests of the reference, and it is not known if"
        " this server does"
    )
    return OtherSampling(told, differs=False)


def _is_unknown(found: SamplingDefaults, name: str) -> bool:
    """Return True if a server may add a field, and nothing replaces it."""
    one = found.find(name)
    return one is None or (one.adds is None and one.sent_as not in found.sent)


_KEEP = "--set server_defaults=keep leaves these fields to the server, as the reference's runs did."


def _advise(
    found: SamplingDefaults, here: Sequence[str], then: Sequence[str], instead: Sequence[str]
) -> str:
    """Return what makes the sampling equal, "" if only another reference does."""
    if not here and {*then} <= {*instead}:
        return _KEEP
    if found.policy == "keep" and not then:
        return "--set server_defaults=neutral replaces what the server adds."
    return ""


def _join(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
