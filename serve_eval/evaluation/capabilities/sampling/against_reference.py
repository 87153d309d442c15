"""Compare the sampling fields that a server adds to a run with those of its reference. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from serve_eval.evaluation.capabilities.sampling.sending import list_kept, list_replaced
from serve_eval.protocol.fingerprint import SERVER_ADDS
from serve_eval.schema import Reference, SamplingDefaults, Task

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
