"""Print the events of a run as lines of JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from serve_eval.report.document import Document
    from serve_eval.schema import Event, Report, RunFinished


def check_events(wanted: bool, others: Mapping[str, bool]) -> None:
    """Raise PlanError for options that print something else on standard output."""
    from serve_eval.errors import PlanError

    if wanted and (clashing := [flag for flag, given in others.items() if given]):
        raise PlanError(f"--json-events and {clashing[0]} exclude each other: give one of them")


class EventPrinter:
    """Write each event on a line of its own at once, the last one at the end of the block.

    The result of the command comes before that. A reader that is gone ends nothing.
    """

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._last: RunFinished | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if self._last is None:
            return
        if error is not None and self._last.error is None:  # after the run itself
            import msgspec

            from serve_eval.schema import RunError
            from serve_eval.verdicts.exit_code import INFRASTRUCTURE

            told = RunError(
                kind=type(error).__name__, message=str(error), hint="", exit_code=INFRASTRUCTURE
            )
            self._last = msgspec.structs.replace(self._last, exit_code=INFRASTRUCTURE, error=told)
        _print(self._last)

    @property
    def evaluate(self) -> Callable[..., Coroutine[Any, Any, Report]]:
        """The function that runs a plan, and reports its events if they are wanted."""
        if not self._wanted:
            from serve_eval.evaluation.evaluate import evaluate

            return evaluate
        from functools import partial

        from serve_eval.workflows.events import evaluate_with_events

        return partial(evaluate_with_events, on_event=self._take)

    def _take(self, event: Event) -> None:
        from serve_eval.schema import RunFinished

        if isinstance(event, RunFinished):
            self._last = event
        else:
            _print(event)

    def end(self, document: Document, exit_code: int) -> None:
        """Write the result of the command, and keep its exit code for the last event."""
        if self._last is None:
            return
        import msgspec

        from serve_eval.report.document import describe_document
        from serve_eval.schema import ResultMade

        _print(ResultMade(document=msgspec.to_builtins(describe_document(document))))
        self._last = msgspec.structs.replace(self._last, exit_code=exit_code)


def _print(event: Event) -> None:
    import msgspec

    from serve_eval.cli._streams import emit

    emit(f"{msgspec.json.encode(event).decode()}\n")
