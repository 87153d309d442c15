from __future__ import annotations

from serve_eval.evaluation.results.example import WrongExample, order_ids, pick_example
from serve_eval.evaluation.storage.records.scores import ScoreRecord
from serve_eval.schema import Outcome


def _line(
    name: str, outcome: Outcome, answer: str | None = "9", target: str = "8", *, cut: bool = False
) -> ScoreRecord:
    return ScoreRecord(
        id=name, outcome=outcome, value=0.0, answer=answer, target=target, truncated=cut
    )


def test_a_short_whole_wrong_answer_with_the_first_id_is_picked() -> None:
    lines = [
        _line("x-10", Outcome.WRONG, target="4+4=8\n#### 8"),
        _line("x-1", Outcome.UNPARSED, None),
        _line("x-2", Outcome.WRONG, cut=True),
        _line("x-3", Outcome.WRONG, "9" * 60),
        _line("x-4", Outcome.CORRECT),
        _line("x-11", Outcome.WRONG),
    ]
    found = pick_example(lines)
    assert found == WrongExample(id="x-10", outcome=Outcome.WRONG, answered="9", expected="8")
    left = [line for line in lines if line.outcome != Outcome.WRONG]
    assert pick_example(left) == WrongExample(
        id="x-1", outcome=Outcome.UNPARSED, answered=None, expected="8"
    )
    assert pick_example(line for line in lines if line.outcome == Outcome.CORRECT) is None


def test_numbers_in_ids_are_ordered_by_value() -> None:
    names = ["b-2", "b-10", "b-9", "a", "10", "9"]
    assert sorted(names, key=order_ids) == ["9", "10", "a", "b-2", "b-9", "b-10"]
