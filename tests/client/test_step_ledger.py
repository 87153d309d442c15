"""Test after how many findings each request gets a connection of its own."""

from __future__ import annotations

import pytest

from serve_eval.client.http1.connection import Http1Connection
from serve_eval.client.step_ledger import NO_NOTICE, OUT_OF_STEP, StepLedger
from tests.client.kept import Heard


def _connection(turns: int, proven: int = 0) -> Http1Connection:
    connection = Http1Connection(set(), {})
    connection.sent = connection.turns = turns
    connection.proven = proven
    return connection


@pytest.mark.parametrize(
    ("out", "silent", "announced", "why"),
    [
        (1, 2, 9, ""),
        (2, 0, 0, OUT_OF_STEP),
        (0, 3, 0, NO_NOTICE),
    ],
)
def test_a_second_connection_out_of_step_or_a_third_silent_end_is_enough(
    out: int, silent: int, announced: int, why: str
) -> None:
    ledger = StepLedger()
    ledger.listen(Heard())
    for _ in range(out):
        ledger.stray(_connection(5), "an unasked answer")
    for number in range(silent + announced):
        ledger.lose(_connection(5), "it ended", silent=number < silent)
    assert (ledger.alone, ledger.keeps, ledger.why_alone) == (bool(why), not why, why)


@pytest.mark.parametrize(
    ("turns", "proven", "due"),
    [(7, 0, False), (8, 0, True), (519, 8, False), (520, 8, True), (1031, 520, False)],
)
def test_a_connection_is_checked_after_8_answers_and_then_after_each_512(
    turns: int, proven: int, due: bool
) -> None:
    assert _connection(turns, proven).due is due


def test_without_a_listener_no_connection_is_kept_or_counted() -> None:
    """Nobody could take its answers back, and each has only one."""
    ledger = StepLedger()
    for _ in range(3):
        ledger.stray(_connection(1), "an unasked answer")
        ledger.lose(_connection(1), "it ended", silent=True)
        ledger.trust(_connection(1))
        ledger.prove(_connection(1), 2)
    assert (ledger.keeps, ledger.alone, ledger.out, ledger.ends) == (False, False, 0, 0)
