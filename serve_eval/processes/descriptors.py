"""Ensure enough file descriptors for the requests in flight, before the first of them."""

from __future__ import annotations

import resource

from serve_eval.errors import PlanError

SPARE = 100
"""Descriptors for everything except connections: journals, logs, libraries, the event loop."""


def ensure_descriptors(in_flight: int) -> None:
    """Raise the soft limit of the process if needed. Raises PlanError if that is not possible."""
    needed = in_flight + SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise PlanError(
            f"concurrency: {in_flight} requests in flight need {needed} open files, but this"
            f" process may only have {hard}",
            hint=(
                f"Raise the limit (ulimit -Hn {needed}), or use --concurrency"
                f" {max(1, hard - SPARE)}."
            ),
        )
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError) as error:
        raise PlanError(
            f"concurrency: {in_flight} requests in flight need {needed} open files, but this"
            f" process may only have {soft}",
            hint=(
                f"Raise the limit (ulimit -n {needed}), or use --concurrency"
                f" {max(1, soft - SPARE)}."
            ),
        ) from error
