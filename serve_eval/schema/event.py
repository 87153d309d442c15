"""Define the events of a run, for programs that follow it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from serve_eval.frozen import freeze
from serve_eval.schema.exchange import FailureKind
from serve_eval.schema.verdict import VerdictOutcome

EVENTS_VERSION = 1
"""The version of the form of events: `v` of each."""


class RunStarted(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="started"):
    """A run begins. `base_url` is None if the launcher has not started the endpoint yet."""

    v: int = EVENTS_VERSION
    folder: str
    model: str | None
    launcher: str
    base_url: str | None
    tasks: tuple[str, ...]


class EndpointReady(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="ready"):
    """The endpoint was launched, or is there, and the run connects to it."""

    v: int = EVENTS_VERSION
    base_url: str
    model: str | None


class TaskProgressed(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="progress"):
    """The state of a task: at most one a second and task, and one when it begins and ends.

    `done` samples have an answer; `failed` counts those without one by kind. `value` is the value
    so far in points. `task` may also name another pass over a task, or its programs or judgements.
    """

    v: int = EVENTS_VERSION
    task: str
    planned: int
    done: int
    failed: Mapping[FailureKind, int] = {}
    value: float | None = None
    ended: bool = False


class AlarmRaised(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="alarm"):
    """Something is wrong, and the run goes on: answers get worse, requests are slow, ..."""

    v: int = EVENTS_VERSION
    text: str


class MessageSaid(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="message"):
    """A line about what the run waits for or does."""

    v: int = EVENTS_VERSION
    text: str


class TaskFinished(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="task"):
    """The result of a task. Values are in points."""

    v: int = EVENTS_VERSION
    task: str
    outcome: VerdictOutcome
    value: float | None
    reference: float | None
    threshold: float | None
    planned: int
    failed: int
    reasons: tuple[str, ...]


@freeze
class RunError:
    """The error that ended a run without a report.

    It has the error's name, message and hint, and the exit code that the run would have had alone.
    """

    kind: str
    message: str
    hint: str
    exit_code: int


class ResultMade(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="document"):
    """The result of the whole command, which only `--json-events` has.

    `document` is what `--json` prints but for the figures of the report, which the folder has.
    `serve-eval setup schema document` has its form.
    """

    v: int = EVENTS_VERSION
    document: Mapping[str, object]


class RunFinished(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag="finished"):
    """The last event. `error` is what stopped the run; it has no results then."""

    v: int = EVENTS_VERSION
    folder: str
    exit_code: int
    error: RunError | None = None


Event = (
    RunStarted
    | EndpointReady
    | TaskProgressed
    | AlarmRaised
    | MessageSaid
    | TaskFinished
    | ResultMade
    | RunFinished
)
"""An event of a run. RunStarted is the first one, RunFinished the last one."""


class Progress(Protocol):
    """A receiver of progress events of tasks; several tasks may run at once.

    `failed` counts the missing answers by kind. The library itself never prints.
    """

    def begin(self, task: str, planned: int, completed: int) -> None: ...

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None: ...

    def end(self, task: str) -> None: ...
