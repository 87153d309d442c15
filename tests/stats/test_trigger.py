"""Test precision, recall and F1 of a choice, by counts and at their edges."""

from __future__ import annotations

import pytest

from serve_eval.scorers._served_call import TriggerCounts, count_trigger


@pytest.mark.parametrize(
    ("counts", "precision", "recall", "f1"),
    [
        (TriggerCounts(6, 2, 4), 6 / 8, 6 / 10, 12 / 18),
        (TriggerCounts(6, 0, 4), 1.0, 6 / 10, 12 / 16),
        (TriggerCounts(6, 2, 0), 6 / 8, 1.0, 12 / 14),
        (TriggerCounts(0, 2, 0), 0.0, 1.0, 0.0),
        (TriggerCounts(0, 0, 2), 1.0, 0.0, 0.0),
        (TriggerCounts(0, 0, 0), 1.0, 1.0, 1.0),
    ],
)
def test_shares_are_those_of_the_counts(
    counts: TriggerCounts, precision: float, recall: float, f1: float
) -> None:
    assert (counts.precision, counts.recall, counts.f1) == pytest.approx((precision, recall, f1))


def test_each_choice_is_right_unwanted_missed_or_rightly_left_out() -> None:
    choices = [(True, True)] * 5 + [(False, True)] * 3 + [(True, False)] * 2 + [(False, False)] * 7
    assert count_trigger(choices) == TriggerCounts(right=5, unwanted=3, missed=2)
