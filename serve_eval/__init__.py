"""Evaluate running LLM endpoints and report whether they still answer as well as they should.

The names below are the public API; docs/extending.md has examples. Each name is imported on first
use, so that `import serve_eval` stays cheap. This file itself imports nothing: under `python -m`
the current folder would supply it.
"""

TYPE_CHECKING = False
"""Type checkers take it for true."""

if TYPE_CHECKING:
    from serve_eval.api import compare as compare
    from serve_eval.api import evaluate as evaluate
    from serve_eval.api import smoke as smoke
    from serve_eval.api import verify as verify
    from serve_eval.errors import ServeEvalError as ServeEvalError
    from serve_eval.schema import AccuracySpec as AccuracySpec
    from serve_eval.schema import AlarmRaised as AlarmRaised
    from serve_eval.schema import Comparison as Comparison
    from serve_eval.schema import Connection as Connection
    from serve_eval.schema import EndpointReady as EndpointReady
    from serve_eval.schema import Event as Event
    from serve_eval.schema import Failure as Failure
    from serve_eval.schema import Limits as Limits
    from serve_eval.schema import MessageSaid as MessageSaid
    from serve_eval.schema import Plan as Plan
    from serve_eval.schema import Progress as Progress
    from serve_eval.schema import Reference as Reference
    from serve_eval.schema import Report as Report
    from serve_eval.schema import Request as Request
    from serve_eval.schema import Response as Response
    from serve_eval.schema import RunFinished as RunFinished
    from serve_eval.schema import RunStarted as RunStarted
    from serve_eval.schema import Sample as Sample
    from serve_eval.schema import Score as Score
    from serve_eval.schema import Scorer as Scorer
    from serve_eval.schema import Spec as Spec
    from serve_eval.schema import Task as Task
    from serve_eval.schema import TaskFinished as TaskFinished
    from serve_eval.schema import TaskProgressed as TaskProgressed
    from serve_eval.schema import Verdict as Verdict
    from serve_eval.schema import VerdictOutcome as VerdictOutcome
    from serve_eval.schema import Verification as Verification
    from serve_eval.schema import VerificationOutcome as VerificationOutcome
    from serve_eval.workflows.smoke import Smoke

__version__ = "0.1.0"

__all__ = [
    "AccuracySpec",
    "AlarmRaised",
    "Comparison",
    "Connection",
    "EndpointReady",
    "Event",
    "Failure",
    "Limits",
    "MessageSaid",
    "Plan",
    "Progress",
    "Reference",
    "Report",
    "Request",
    "Response",
    "RunFinished",
    "RunStarted",
    "Sample",
    "Score",
    "Scorer",
    "ServeEvalError",
    "Smoke",
    "Spec",
    "Task",
    "TaskFinished",
    "TaskProgressed",
    "Verdict",
    "VerdictOutcome",
    "Verification",
    "VerificationOutcome",
    "__version__",
    "compare",
    "evaluate",
    "smoke",
    "verify",
]

_PLACES = {
    "serve_eval.api": ("compare", "evaluate", "smoke", "verify"),
    "serve_eval.errors": ("ServeEvalError",),
    "serve_eval.workflows.smoke": ("Smoke",),
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in __all__:
        raise AttributeError(f"module 'serve_eval' has no attribute {name!r}")
    from importlib import import_module

    place = next((place for place, names in _PLACES.items() if name in names), "serve_eval.schema")
    return globals().setdefault(name, getattr(import_module(place), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
