"""The half of a run: it comes once, not with the first answers, and not after a task ended."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from serve_eval.cli._ending import HalfWay
from serve_eval.schema import FailureKind


class Shown:
    """A receiver that keeps the events passed on to it."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def begin(self, *given: object) -> None:
        self.seen.append(("begin", *given))

    def update(self, *given: object) -> None:
        self.seen.append(("update", *given))

    def end(self, *given: object) -> None:
        self.seen.append(("end", *given))


def _play(*events: tuple[object, ...]) -> tuple[int | None, int]:
    """Return the number of the event at which the half came, and how often it came."""
    at: list[int] = []
    shown = Shown()
    half = HalfWay(shown, lambda: at.append(len(shown.seen)))
    for name, *given in events:
        if name == "update":
            task, done, failed = given
            half.update(str(task), int(str(done)), _failed(int(str(failed))), None)
        else:
            getattr(half, str(name))(*given)
    assert [one[:2] for one in shown.seen] == [one[:2] for one in events]
    return (at[0] if at else None), len(at)


def _failed(count: int) -> Mapping[FailureKind, int]:
    return {next(iter(FailureKind)): count} if count else {}


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([("begin", "a", 10, 0), ("update", "a", 0, 0), ("update", "a", 4, 0)], (None, 0)),
        ([("begin", "a", 10, 0), ("update", "a", 5, 0), ("update", "a", 6, 0)], (2, 1)),
        ([("begin", "a", 10, 0), ("update", "a", 3, 1), ("update", "a", 3, 2)], (3, 1)),
        ([("begin", "a", 10, 8), ("update", "a", 8, 0), ("update", "a", 9, 0)], (3, 1)),
        ([("begin", "a", 10, 10), ("update", "a", 10, 0)], (None, 0)),
        (
            [
                ("begin", "a", 10, 0),
                ("begin", "b", 10, 0),
                ("update", "a", 9, 0),
                ("update", "b", 1, 0),
            ],
            (4, 1),
        ),
        ([("begin", "a", 3, 0), ("end", "a"), ("begin", "b", 9, 0), ("update", "b", 9, 0)], (2, 1)),
    ],
)
def test_the_half_comes_once(
    events: list[tuple[object, ...]], expected: tuple[int | None, int]
) -> None:
    assert _play(*events) == expected
