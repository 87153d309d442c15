"""Tell a rehearsal, in which the stand-in for trtllm-serve answers, from a measurement."""

from __future__ import annotations

from collections.abc import Iterable

from serve_eval.schema.endpoint import Endpoint
from serve_eval.schema.plan import REHEARSAL, Plan

REHEARSED = "REHEARSAL: the stand-in answered; this shows nothing about a model"
"""The first line of everything that a rehearsal prints or writes."""
STAND_IN = "+stand-in"
"""End of the version that the stand-in reports in a rehearsal, so that no client is deceived."""


def is_rehearsal(plan: Plan, endpoints: Iterable[Endpoint] = ()) -> bool:
    """Return True if the plan is a rehearsal's, or one of the endpoints was the stand-in."""
    return plan.launcher.name == REHEARSAL or any(
        is_stand_in(one.info.version) for one in endpoints
    )


def is_stand_in(version: object) -> bool:
    """Return True if the version that a server reports is that of the stand-in in a rehearsal."""
    return isinstance(version, str) and version.endswith(STAND_IN)
