"""Read the numbers of requests in flight of a command that asks at several."""

from __future__ import annotations


def parse_loads(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,4,16, in ascending order. Raises PlanError."""
    from serve_eval.errors import PlanError
    from serve_eval.workflows.load.story import HIGHEST

    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1 or found[-1] > HIGHEST:
        raise PlanError(
            f"--concurrency {text}: expected numbers from 1 to {HIGHEST}",
            hint="Such as --concurrency 64, or --concurrency 1,4,16.",
        )
    return found
