"""Print the events of a run as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from serve_eval.schema import Event, Report


def check_events(wanted: bool, others: Mapping[str, bool]) -> None:
    """Raise PlanError for options that print something else on standard output."""
    from serve_eval.errors import PlanError

    if wanted and (clashing := [flag for flag, given in others.items() if given]):
        raise PlanError(f"--json-events and {clashing[0]} exclude each other: give one of them")


def choose_evaluate(json_events: bool) -> Callable[..., Coroutine[Any, Any, Report]]:
    """Return the function that runs a plan, and prints its events if they are wanted."""
    if not json_events:
        from serve_eval.evaluation.evaluate import evaluate

        return evaluate
    from functools import partial

    from serve_eval.workflows.events import evaluate_with_events

    return partial(evaluate_with_events, on_event=_print)


def _print(event: Event) -> None:
    """Write an event on a line of its own at once. A reader that is gone ends nothing."""
    import msgspec

    from serve_eval.cli._streams import emit

    emit(f"{msgspec.json.encode(event).decode()}\n")
