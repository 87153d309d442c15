"""Say what limits the conclusions of a verification. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import VerificationReference, VerifiedSide
from serve_eval.workflows.verify.defaults import warn_of_unseen
from serve_eval.workflows.verify.floors import warn_of_effects, warn_of_floor
from serve_eval.workflows.verify.groups import list_names
from serve_eval.workflows.verify.path import warn_of_path
from serve_eval.workflows.verify.reference import PROBED, THOUGHTS


def warn(known: VerificationReference, sides: Sequence[VerifiedSide]) -> list[str]:
    """Return a line for whatever limits the conclusions about some of the servers."""
    found = warn_of_effects(known, sides)
    if known.floor is None:
        found.append(
            "no floor is known, so nothing can be called another model: name a healthy sibling"
            " with --sibling HOST, or the floor with --floor NATS"
        )
    found += warn_of_floor(known)
    if differing := [one.name for one in sides if one.salted != known.salted]:
        found.append(
            f"{list_names(differing)}: asked {_state(not known.salted)}, and the reference"
            f" {_state(known.salted)}: the prefix cache may change the last digits"
        )
    if silent := [one for one in sides if one.unanswered]:
        found.append(
            f"{list_names([one.name for one in silent])}: {sum(one.unanswered for one in silent)}"
            " probes got no answer: they count as different where a share is excluded, and as no"
            " evidence that it is another model"
        )
    if sampling := [one.name for one in sides if one.samples]:
        found.append(
            f"{list_names(sampling)}: the temperature of 0 is ignored. Log-probabilities are still"
            " compared, second tokens only where the first are equal"
        )
    if known.protocol.get(PROBED) == THOUGHTS:
        found.append(
            "the tokens that were compared are the first of the model's thoughts, which hardly"
            " depend on a prompt: a fault in reading prompts or a small one may not show. Compare"
            " completions, with --set protocol.apply_chat_template=false, if the servers take them"
        )
    found += warn_of_unseen(known, sides)
    for one in sides:
        found += warn_of_path(one.name, one.engines)
    return found


def _state(salted: bool) -> str:
    return "without its prefix cache" if salted else "with it"
