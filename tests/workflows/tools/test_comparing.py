"""Test the comparison of passes, and what a sound server's noise may do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from serve_eval.schema import Failure, FailureKind, Report, ToolForm, Usage
from serve_eval.scorers._served_call import CallFault
from serve_eval.verdicts.exit_code import PASS, UNDECIDED
from serve_eval.workflows.tools.answers import (
    CheckedAnswer,
    ToolPass,
    count_unequal,
    find_unthinking,
    is_shorter,
    write_in_one_form,
)
from serve_eval.workflows.tools.judging import _say_failures, find_exit_code, judge_passes


def _answer(
    *parts: str, faults: tuple[CallFault, ...] = (), kind: str = "auto", tokens: int = 9
) -> CheckedAnswer:
    return CheckedAnswer(
        kind=kind,
        faults=faults,
        parts=parts or ("", "right"),
        meant=tuple(write_in_one_form(part) for part in parts) or ("", "right"),
        called=len(parts) > 2,
        reasoned=bool(parts and parts[0]),
        chose=True,
        wanted=True,
        usage=Usage(prompt_tokens=50, completion_tokens=tokens),
    )


def _pass(form: ToolForm, load: int, answers: list[CheckedAnswer]) -> ToolPass:
    report = SimpleNamespace(tasks=[SimpleNamespace(result=SimpleNamespace(planned=len(answers)))])
    numbered = {f"s{i}": answer for i, answer in enumerate(answers)}
    return ToolPass(form=form, load=load, report=cast(Any, report), answers=numbered)


def test_an_answer_is_shorter_only_if_each_part_is_the_beginning_of_the_other() -> None:
    whole = _answer("so", "", "f", '{"a": 1}')
    assert is_shorter(_answer("so", "", "f", '{"a": '), whole)
    assert is_shorter(_answer("", "", "f", '{"a": 1}'), whole)
    assert is_shorter(_answer("so", ""), whole)
    assert not is_shorter(whole, whole)
    assert not is_shorter(_answer("so", "", "f", '{"b"'), whole)
    assert not is_shorter(whole, _answer("so", ""))


def test_arguments_are_compared_as_json() -> None:
    """A stream of trtllm-serve escapes characters, and its whole answers do not."""
    whole = {"a": _answer("", "", "f", '{"city": "Z\u00fcrich", "n": [1, 2]}')}
    for same in (r'{"city":"Z\u00fcrich","n":[1,2]}', '{"n": [1, 2], "city": "Z\u00fcrich"}'):
        assert count_unequal(whole, {"a": _answer("", "", "f", same)}) == (0, 1)
    for other in ('{"city": "Zurich", "n": [1, 2]}', '{"city": "Z\u00fcrich", "n": [1.0, 2]}', ""):
        assert count_unequal(whole, {"a": _answer("", "", "f", other)}) == (1, 1)
    assert write_in_one_form("[" * 100_000) == "[" * 100_000


def test_one_call_with_an_empty_text_for_its_arguments_accuses_the_server() -> None:
    sound = [_answer("", "", "f", "{}")] * 40
    empty = _answer("", "", "f", "", faults=(CallFault.EMPTY_ARGUMENTS,))
    passes = [_pass("whole", 1, sound), _pass("stream", 1, [empty, *sound[1:]])]
    [found] = judge_passes(passes, [], {})
    assert (found.fault, found.where, found.count, found.p) == (
        "empty arguments",
        "in streams",
        1,
        None,
    )
    assert "clients that parse arguments break" in found.points_to


def test_changes_in_both_directions_accuse_nobody_and_in_one_they_do() -> None:
    bad = _answer(faults=(CallFault.INVALID_JSON,))
    base = _pass("whole", 1, [bad] * 8 + [_answer()] * 992)
    mixed = _pass("whole", 8, [_answer()] * 8 + [bad] * 8 + [_answer()] * 984)
    assert judge_passes([base, mixed], [], {}) == ()
    # A share below the threshold, but never seen at the lowest load.
    base = _pass("whole", 1, [_answer()] * 1000)
    worse = _pass("whole", 8, [bad] * 15 + [_answer()] * 985)
    [found] = judge_passes([base, worse], [], {})
    assert (found.fault, found.against, found.count) == ("invalid JSON", "lowest load", 15)
    assert found.where == "in whole answers from 8 on"


def test_one_error_that_no_model_makes_accuses() -> None:
    good = [_answer()] * 99
    [found] = judge_passes([_pass("whole", 1, [*good, _answer(faults=(CallFault.FRAME,))])], [], {})
    assert (found.fault, found.count, found.p) == ("bad id or index", 1, None)
    missed = _pass("whole", 1, [*good, _answer(faults=(CallFault.MISSED,))])
    assert judge_passes([missed], [], {}) == ()


def test_a_field_that_is_not_enforced_is_named_among_many_other_requests() -> None:
    broken = [_answer(kind="ebnf", faults=(CallFault.SCHEMA,))] * 8
    [found] = judge_passes([_pass("whole", 1, [*broken, *[_answer()] * 400])], [], {})
    assert (found.fault, found.points_to[:15]) == ("ebnf not enforced", "guided decoding")


def test_equal_answers_with_other_counts_accuse_the_usage() -> None:
    passes = [_pass("whole", 1, [_answer()] * 50), _pass("stream", 1, [_answer(tokens=20)] * 50)]
    [found] = judge_passes(passes, [], {})
    assert (found.fault, found.where) == ("answer tokens differ", "in streams")
    passes[1] = _pass("stream", 1, [_answer(tokens=11)] * 50)
    assert judge_passes(passes, [], {}) == ()


def test_thoughts_before_texts_and_never_before_calls_accuse() -> None:
    texts, calls = [_answer("hm", "x")] * 12, [_answer("", "", "f", "{}")] * 12
    found = find_unthinking(_pass("whole", 1, [*texts, *calls]))
    assert found is not None
    assert (found.worse, found.paired) == (12, 12)
    one_thinks = [*calls[:-1], _answer("hm", "", "f", "{}")]
    assert find_unthinking(_pass("whole", 1, [*texts, *one_thinks])) is None
    assert find_unthinking(_pass("whole", 1, [*texts[:9], *calls])) is None


def test_the_most_frequent_failure_is_told_in_the_words_of_the_server() -> None:
    told = Failure(kind=FailureKind.HTTP_ERROR, message="HTTP 400:\n too long")
    other = Failure(kind=FailureKind.TIMEOUT, message="no answer")
    one = ToolPass(
        form="whole",
        load=1,
        report=cast(Report, None),
        answers={},
        failures={"1": told, "2": other, "3": told},
    )
    assert list(_say_failures(one)) == ["2 of them: HTTP 400: too long"]


def test_a_check_of_which_most_answers_were_cut_decides_nothing() -> None:
    def code(cut: int) -> int:
        answers = [_answer(faults=(CallFault.CUT,) if i < cut else ()) for i in range(40)]
        return find_exit_code([_pass("whole", 1, answers)], failed=False)

    assert (code(20), code(21)) == (PASS, UNDECIDED)
