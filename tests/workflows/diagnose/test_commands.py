"""Test that the commands that findings suggest run as they stand, without secrets."""

import random
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from serve_eval.errors import RunFolderError
from serve_eval.schema import Attempt, Failure, FailureKind, Outcome, Plan, Response, Spec, Usage
from serve_eval.storage.scores import ScoreRecord
from serve_eval.workflows.diagnose.breakdown import describe_verify, name_good
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import AskedSample
from serve_eval.workflows.diagnose.run_rules import findings
from serve_eval.workflows.diagnose.story import diagnose, is_command
from tests.workflows.diagnose.test_levels import healthy

ID, FOLDER = "a b;'$(id)", Path("my runs/it's")


def _evidence(*asked, **prints):
    task = TaskEvidence(name="t", fingerprint={"task": "t", **prints}, asked=asked, report=None)
    plan = Plan(model="m", launcher=Spec(name="external"), tasks=(Spec(name="t"),))
    return Evidence(folder=FOLDER, plan=plan, sessions=[], report=None, tasks=(task,), logs=())


def _attempt(failure=None, start_s=1e9):
    status = 200 if failure is None else None
    return Attempt(
        start_s=start_s, end_s=start_s + 1.0, failure=failure, status=status, request_id="r"
    )


def _missing(name, message, *attempts, status=None):
    failure = Failure(
        kind=FailureKind.HTTP_ERROR, message=message, status=status, attempts=attempts
    )
    return AskedSample(id=name, response=None, failure=failure, attempts=attempts)


def _answered(name, text, outcome, *attempts, stop=None):
    usage = Usage(prompt_tokens=9, completion_tokens=9)
    response = Response(
        text=text, finish_reason="stop", stop_reason=stop, usage=usage, attempts=attempts
    )
    line = ScoreRecord(id=name, outcome=outcome, value=float(outcome == "correct"), target="17")
    return AskedSample(
        id=name,
        response=response,
        failure=None,
        attempts=attempts,
        line=line,
        bad=outcome != "correct",
    )


def _of(evidence, rule):
    return next(finding for finding in findings(evidence) if finding.rule == rule)


def test_a_command_is_one_for_a_shell_whatever_folder_and_sample_are_called():
    wrong = [_answered(f"{ID}{n}", "so it is 17", Outcome.WRONG, _attempt()) for n in range(4)]
    rescore, look = _of(_evidence(*wrong), "extraction").change
    assert shlex.split(rescore) == ["serve-eval", "judge", "--rescore", str(FOLDER)]
    assert shlex.split(look) == [
        "serve-eval",
        "show",
        str(FOLDER),
        "--task",
        "t",
        "--capsule",
        f"{ID}0",
    ]
    refused = [
        _missing(ID, "The server had an error: 400, message='Bad Request'", _attempt(), status=500)
    ]
    assert shlex.quote(f"{ID}") in " ".join(_of(_evidence(*refused), "wrapped_400").change)
    [resume] = _of(_evidence(), "unfinished").change
    assert shlex.split(resume)[-1] == str(FOLDER)


def test_stop_strings_of_a_command_are_those_of_the_task_without_the_one():
    cut = [_answered(f"c{n}", "so it", Outcome.WRONG, _attempt(), stop="Q:") for n in range(30)]
    whole = [_answered(f"w{n}", "so it is 17", Outcome.CORRECT, _attempt()) for n in range(30)]
    stops = '["Q:","\\n\\n","```","it\'s"]'
    [change] = _of(_evidence(*cut, *whole, stop=stops, max_tokens="64"), "stop_string").change
    flag, value = shlex.split(change)
    assert flag == "--set"
    name, _, stated = value.partition("=")
    assert (name, yaml.safe_load(stated)) == ("t.stop", ["\n\n", "```", "it's"])


def test_what_a_server_says_of_a_hold_out_sample_is_not_told():
    """Servers quote what they refuse, as in {"detail": [{"input": the question}]}."""
    hidden = [
        replace(_missing(f"h{n}", "no: Secret question?", _attempt(), status=422), shown=False)
        for n in range(3)
    ]
    told = _of(_evidence(*hidden), "refused")
    assert "Secret" not in " ".join([told.told, *told.change])
    assert "3 of 3 missing answers failed with http_error 422" in told.told
    told = _of(
        _evidence(*hidden, _missing("open", "no: Open question?", _attempt(), status=422)),
        "refused",
    )
    assert "Secret" not in told.told


def test_the_choices_of_a_sample_are_not_so_many_attempts():
    fine = [_answered(f"f{n}", "17", Outcome.CORRECT, _attempt(start_s=2e9)) for n in range(12)]
    attempts = (_attempt(), _attempt(), _attempt(FailureKind.HTTP_ERROR))
    once = [_missing(f"x{n}", "boom", *attempts, status=500) for n in range(3)]
    assert "these_prompts" not in {finding.rule for finding in findings(_evidence(*once, *fine))}
    attempts = (_attempt(FailureKind.HTTP_ERROR), _attempt(FailureKind.HTTP_ERROR))
    twice = [_missing(f"x{n}", "boom", *attempts, status=500) for n in range(3)]
    assert "2 times or more" in _of(_evidence(*twice, *fine), "these_prompts").told


def test_a_failure_before_any_attempt_has_no_time():
    assert _of(_evidence(_missing("x", "no room")), "failed").count == 1


def test_a_suite_without_any_run_is_refused(tmp_path):
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunFolderError, match="holds no run"):
        diagnose(tmp_path)


@pytest.mark.parametrize(
    ("advice", "whole"),
    [
        ("serve-eval show 'my runs/a' test-1", True),
        ("serve-eval judge --rescore a --set t.filter=flexible-extract", True),
        ("serve-eval verify http://a:8000/v1 http://b:8000/v1", True),
        ("serve-eval verify GOOD http://b:8000/v1", False),
        ("serve-eval smoke URL", False),
        ("serve-eval check invariants http://b:8000/v1, rows cold and warm", False),
        ("serve-eval serve simulated --detach; then: serve-eval verify GOOD URL", False),
        ("serve-eval show a --task t --capsule ID", False),
        ("the same serve-eval compare command with -o c", False),
        ("--set t.max_tokens=64", False),
        ("read the server's log", False),
        ("", False),
    ],
)
def test_a_command_has_no_words_of_advice_and_nothing_to_replace(advice, whole):
    assert is_command(advice) is whole


def _make_run(launcher):
    run = healthy(random.Random(1), 20)
    plan = replace(run.plan, launcher=Spec(name=launcher))
    return replace(run, plan=plan, folder=Path("out"))


def test_a_server_that_ended_with_its_run_is_not_asked():
    """Fails if a launched run counts as one of an endpoint that the user keeps."""
    gone, there = _make_run("simulated"), _make_run("external")
    assert (gone.address, name_good(gone), is_command(gone.attribute)) == ("URL", "GOOD", False)
    assert is_command(there.attribute)
    assert not is_command(describe_verify(gone, "http://a:8000/v1"))
    assert describe_verify(gone, "http://a:8000/v1").startswith("serve-eval serve simulated ")
