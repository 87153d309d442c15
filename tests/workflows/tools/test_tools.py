"""Test `check tools` on stand-ins of trtllm-serve, and its comparison of passes."""

import asyncio
import io
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.report.ci import write_junit
from serve_eval.report.document import make_ci_result, print_document
from serve_eval.schema import Failure, FailureKind, Report, Usage
from serve_eval.scorers._served_call import CallFault
from serve_eval.tasks.tool_calls import KINDS
from serve_eval.verdicts.exit_code import FAIL, PASS, UNDECIDED
from serve_eval.workflows.tools import check_limits, make_document
from serve_eval.workflows.tools.answers import (
    CheckedAnswer,
    ToolPass,
    count_unequal,
    find_unthinking,
    is_shorter,
    write_in_one_form,
)
from serve_eval.workflows.tools.judging import _say_failures, find_exit_code, judge_passes
from tests.cli.command import serve_eval
from tests.scripted_server import serve_in_thread
from tests.workflows.tools.on_standin import (
    ToolModel,
    check_standin,
    create_standin,
    write_tool_answers,
)

SOME = ("auto", "no_tool", "parallel", "json_schema")
"""Kinds that show every fault."""
LIMIT = 40


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return write_tool_answers(
        tmp_path_factory.mktemp("tools") / "answers.jsonl", list(KINDS), errors=0.0, seed=0
    )


def _check(out, answers, faults=None, **more):
    asked = {"kinds": SOME, "loads": (1,), "limit": LIMIT, **more}
    return asyncio.run(check_standin(out, answers, faults, **asked))


def _name(found):
    """Return where each error is."""
    return {one.fault: one.where for one in found.findings}


@pytest.mark.parametrize("faults", [{}, {"drops_last_piece": True}])
def test_both_routes_of_chats_are_judged_alike(answers, tmp_path, faults):
    found = [
        _check(tmp_path / route, answers, faults, kinds=SOME[:2], route=route)
        for route in ("chat", "responses")
    ]
    assert [one.exit_code for one in found] == [FAIL if faults else PASS] * 2
    assert _name(found[0]).get("lost part") == _name(found[1]).get("lost part")


def test_a_sound_server_is_not_accused_and_serves_as_a_reference(tmp_path, answers):
    found = _check(tmp_path / "a", answers)
    assert (found.findings, found.exit_code) == ((), PASS)
    assert [(one.name, one.sound, one.scored) for one in found.cells] == [
        ("whole at 1", LIMIT, LIMIT),
        ("stream at 1", LIMIT, LIMIT),
    ]
    assert all(one.f1 == 1.0 and one.prompt_tokens > 0 for one in found.cells)
    worse = _check(tmp_path / "b", answers, {"forgets_arguments": True}, reference=tmp_path / "a")
    assert worse.exit_code == FAIL
    [schema] = [one for one in worse.findings if one.fault == "schema mismatch"]
    assert (schema.where, schema.examples != ()) == ("everywhere", True)
    assert any("against the reference: precision 1.000" in line for line in worse.remarks)
    with pytest.raises(RunFolderError, match="holds other requests"):
        _check(tmp_path / "c", answers, limit=LIMIT - 1, reference=tmp_path / "a")


def test_the_command_prints_writes_and_resumes(tmp_path, answers):
    model = ToolModel(answers, seed=0, thinks=False)
    chosen = f"--set tools.kinds=auto,no_tool --set tools.kinds=regex --limit 30 -o {tmp_path}/out"
    with serve_in_thread(create_standin(model, {"one_id": True})) as url:
        command = f"check tools {url} --model M --concurrency 1 {chosen}"
        sound = serve_eval(f"{command} --junit {tmp_path}/a.xml")
        assert (sound.returncode, sound.stdout.startswith(" PASS   tool calls  ")) == (0, True)
        suite = ElementTree.fromstring((tmp_path / "a.xml").read_text())
        assert (suite.get("tests"), suite.get("failures")) == ("12", "0")
        before = model.answered
        # The same answers, judged more strictly: of the fields, four are not refused.
        strict = serve_eval(f"{command} --json --require refusals")
        assert (strict.returncode, model.answered) == (FAIL, before)
        assert json.loads(strict.stdout)["result"]["exit_code"] == FAIL
        serve_eval(f"{command} --concurrency 1,2", exits=2)
    for wrong in ("--set tools.max=x=1", "--set 'tools.max=invalid JSON'", "--set tools.kinds=x"):
        serve_eval(f"check tools {url} {wrong}", exits=2)


@pytest.mark.parametrize(
    ("faults", "thinks", "named"),
    [
        ({"drops_last_piece": True}, False, {"lost part": "in streams"}),
        ({"cuts_characters": True}, False, {"broken characters": "in streams"}),
        ({"interval": 10}, False, {"markup left": "in streams"}),
        ({"leaves_markup": True}, False, {"markup left": "everywhere"}),
        (
            {"loses_reasoning": True, "one_index": True, "wrong_usage": True},
            True,
            {
                "lost reasoning": "everywhere",
                "bad id or index": "in streams",
                "prompt tokens differ": "in streams",
            },
        ),
        (
            {"one_id": True, "wrong_finish": True},
            False,
            {"bad id or index": "everywhere", "wrong finish_reason": "everywhere"},
        ),
    ],
)
def test_a_fault_of_a_parser_or_a_stream_is_named(tmp_path, answers, faults, thinks, named):
    kinds = ("auto", "no_tool", "parallel") if thinks else SOME
    found = _check(tmp_path / "out", answers, faults, thinks=thinks, kinds=kinds)
    assert found.exit_code == FAIL
    assert named.items() <= _name(found).items()


def test_a_fault_under_load_is_named_with_its_load_and_printed(tmp_path, answers):
    faults = {"breaks_json_above": 8}
    found = _check(tmp_path / "out", answers, faults, kinds=("auto", "json_schema"), loads=(1, 16))
    assert _name(found)["invalid JSON"] == "from 16 on"
    assert _name(found)["json_schema not enforced"] == "from 16 on"
    document = make_document(found, Path("OUT"))
    suite = ElementTree.fromstring(write_junit(make_ci_result(document)))
    assert suite.get("failures") == "2"
    console = Console(width=80, record=True, file=io.StringIO())
    print_document(document, console)
    shown = console.export_text()
    assert shown.startswith(" FAIL   tool calls  ")
    assert " likely   invalid JSON from 16 on, and 1 more, which points to: a piece of" in shown
    assert " next     serve-eval show OUT/whole_16 " in shown


def test_limits_name_known_errors():
    check_limits({"invalid JSON": 0.5})
    for limits in ({"no such": 0.5}, {"invalid JSON": 1.5}):
        with pytest.raises(PlanError, match=r"tools\.max"):
            check_limits(limits)


def _answer(*parts, faults=(), kind="auto", tokens=9):
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


def _pass(form, load, answers):
    report = SimpleNamespace(tasks=[SimpleNamespace(result=SimpleNamespace(planned=len(answers)))])
    numbered = {f"s{i}": answer for i, answer in enumerate(answers)}
    return ToolPass(form=form, load=load, report=cast(Any, report), answers=numbered)


def test_an_answer_is_shorter_only_if_each_part_is_the_beginning_of_the_other():
    whole = _answer("so", "", "f", '{"a": 1}')
    assert is_shorter(_answer("so", "", "f", '{"a": '), whole)
    assert is_shorter(_answer("", "", "f", '{"a": 1}'), whole)
    assert is_shorter(_answer("so", ""), whole)
    assert not is_shorter(whole, whole)
    assert not is_shorter(_answer("so", "", "f", '{"b"'), whole)
    assert not is_shorter(whole, _answer("so", ""))


def test_arguments_are_compared_as_json():
    """A stream of trtllm-serve escapes characters, and its whole answers do not."""
    whole = {"a": _answer("", "", "f", '{"city": "Z\u00fcrich", "n": [1, 2]}')}
    for same in (r'{"city":"Z\u00fcrich","n":[1,2]}', '{"n": [1, 2], "city": "Z\u00fcrich"}'):
        assert count_unequal(whole, {"a": _answer("", "", "f", same)}) == (0, 1)
    for other in ('{"city": "Zurich", "n": [1, 2]}', '{"city": "Z\u00fcrich", "n": [1.0, 2]}', ""):
        assert count_unequal(whole, {"a": _answer("", "", "f", other)}) == (1, 1)
    assert write_in_one_form("[" * 100_000) == "[" * 100_000


def test_one_call_with_an_empty_text_for_its_arguments_accuses_the_server():
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


def test_changes_in_both_directions_accuse_nobody_and_in_one_they_do():
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


def test_one_error_that_no_model_makes_accuses():
    good = [_answer()] * 99
    [found] = judge_passes([_pass("whole", 1, [*good, _answer(faults=(CallFault.FRAME,))])], [], {})
    assert (found.fault, found.count, found.p) == ("bad id or index", 1, None)
    missed = _pass("whole", 1, [*good, _answer(faults=(CallFault.MISSED,))])
    assert judge_passes([missed], [], {}) == ()


def test_a_field_that_is_not_enforced_is_named_among_many_other_requests():
    broken = [_answer(kind="ebnf", faults=(CallFault.SCHEMA,))] * 8
    [found] = judge_passes([_pass("whole", 1, [*broken, *[_answer()] * 400])], [], {})
    assert (found.fault, found.points_to[:15]) == ("ebnf not enforced", "guided decoding")


def test_equal_answers_with_other_counts_accuse_the_usage():
    passes = [_pass("whole", 1, [_answer()] * 50), _pass("stream", 1, [_answer(tokens=20)] * 50)]
    [found] = judge_passes(passes, [], {})
    assert (found.fault, found.where) == ("answer tokens differ", "in streams")
    passes[1] = _pass("stream", 1, [_answer(tokens=11)] * 50)
    assert judge_passes(passes, [], {}) == ()


def test_thoughts_before_texts_and_never_before_calls_accuse():
    texts, calls = [_answer("hm", "x")] * 12, [_answer("", "", "f", "{}")] * 12
    found = find_unthinking(_pass("whole", 1, [*texts, *calls]))
    assert (found.worse, found.paired) == (12, 12)
    one_thinks = [*calls[:-1], _answer("hm", "", "f", "{}")]
    assert find_unthinking(_pass("whole", 1, [*texts, *one_thinks])) is None
    assert find_unthinking(_pass("whole", 1, [*texts[:9], *calls])) is None


def test_the_most_frequent_failure_is_told_in_the_words_of_the_server():
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


def test_a_check_of_which_most_answers_were_cut_decides_nothing():
    def code(cut):
        answers = [_answer(faults=(CallFault.CUT,) if i < cut else ()) for i in range(40)]
        return find_exit_code([_pass("whole", 1, answers)], failed=False)

    assert (code(20), code(21)) == (PASS, UNDECIDED)
