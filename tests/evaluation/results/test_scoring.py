"""Test scorers that raise, never end or return an invalid score.

Each becomes an outcome of the answer and never fails the run.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.results.scoring import Recipe, ScoringProcesses, grade
from serve_eval.evaluation.task_run import replay, take
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.scope import open_scope
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.protocol.shared import TASKS, bare_task
from serve_eval.schema import (
    HOLDOUT,
    Aggregation,
    DataRoots,
    Failure,
    FailureKind,
    Hypothesis,
    Judge,
    Message,
    Metric,
    Outcome,
    Question,
    Response,
    Sample,
    SamplingParams,
    Score,
    Spec,
    Task,
)
from serve_eval.storage.assessments import Executions, Judgements
from serve_eval.storage.journal import Journal, Record
from serve_eval.storage.scores import encode
from tests.cli.command import environment, serve_eval
from tests.processes.test_bounded_call import _gone

pytestmark = pytest.mark.usefixtures("simulated_here")

KINDS = ["fine", "raises", "exits", "hangs", "none", "nan", "beyond", "fine"]
FILE = """
import re
import sys

from serve_eval.schema import Dataset, Hypothesis, Metric, Outcome
from serve_eval.schema import Sample, SamplingParams, Score, Task


def task() -> Task:
    def load(roots, wanted):
        samples = [
            Sample(id=f"{kind}-{i}", prompt=f"{kind} {i}:", target=kind)
            for i, kind in enumerate(KINDS)
        ]
        return Dataset(samples=samples, files=(), total=len(samples))

    def score(sample, response):
        SCORE
        return Score(value=1.0, outcome=Outcome.CORRECT)

    return Task(
        name="odd", version=1, reference_file="odd", metric=Metric(),
        hypothesis=Hypothesis(num_samples=len(KINDS)), sampling=SamplingParams(max_tokens=8),
        protocol={}, load=load, score=score, answers=lambda sample: (" y", " n"),
    )
""".replace("def task()", f"KINDS = {KINDS}\n\n\ndef task()")
BROKEN = FILE.replace(
    "SCORE",
    """
        match sample.target:
            case "raises":
                raise OverflowError("1e400")
            case "exits":
                sys.exit(3)
            case "hangs":
                re.match("^(a+)+$", "a" * 60 + "!")
            case "none":
                return None
            case "nan":
                return Score(value=float("nan"), outcome=Outcome.PARTIAL)
            case "beyond":
                return Score(value=1.5, outcome=Outcome.PARTIAL)""",
)
MENDED = FILE.replace("SCORE", "pass")


def _forget():
    """Forget plugin code, as in a new process."""
    open_scope().folders.clear()
    open_scope().loaded.clear()
    open_scope().kept.clear()
    for name in [name for name in sys.modules if name.startswith(extensions._PREFIX)]:
        del sys.modules[name]


@pytest.fixture
def own(tmp_path):
    """Write a folder with a task whose scorer misbehaves in every way."""
    (tmp_path / "own/tasks").mkdir(parents=True)
    (tmp_path / "own/tasks/odd.py").write_text(BROKEN)
    _forget()
    yield tmp_path / "own"
    _forget()


def _flags(own):
    flags = [
        "--include-path",
        str(own),
        "--tasks",
        "odd",
        "--launcher",
        "simulated",
        "--model",
        "m",
    ]
    return [
        *flags,
        "--set",
        "launcher.accuracy=1.0",
        "--no-reference",
        "-o",
        str(own.parent / "out"),
    ]


def _result(out):
    return json.loads((out / "report.json").read_text())["tasks"][0]["result"]


def test_a_scorer_that_raises_costs_its_answers_their_scores_until_it_is_mended(own):
    out = own.parent / "out"
    run = serve_eval("run", *_flags(own), "--set", "limits.scorer_timeout_s=0.5")
    assert run.returncode == 3, run.stderr
    result = _result(out)
    assert (result["scored"], result["failed"], result["failures"]) == (2, 6, {"scorer_error": 6})
    assert (result["value"], result["bounds"]) == (100.0, [25.0, 100.0])
    told = {error["sample"].partition("-")[0]: error["told"] for error in result["scorer_errors"]}
    line = next(n for n, text in enumerate(BROKEN.splitlines(), 1) if "raise OverflowError" in text)
    assert told["raises"] == f"OverflowError: 1e400 ({own / 'tasks/odd.py'}:{line})"
    assert told["exits"].startswith("SystemExit: 3 (")
    assert told["hangs"] == "took longer than 0.5 s"
    first = next(n for n, text in enumerate(BROKEN.splitlines(), 1) if "def score(" in text)
    place = f"{own / 'tasks/odd.py'}:{first}: score() must return a Score"
    assert told["none"] == f"{place} of serve_eval.schema, not None"
    assert told["nan"] == f"{place} whose value is from 0 to 1, not the float nan"
    assert told["beyond"] == f"{place} whose value is from 0 to 1, not the float 1.5"
    assert "6 failed (6 scorer error)" in run.stdout, "a scorer's error is not a failed request"
    assert "1 answer has no score, for example sample " in run.stdout
    assert "scorer_error" in (out / "report.html").read_text()
    answers = (out / "samples/odd.jsonl").read_bytes()
    assert answers.count(b"\n") == len(KINDS)

    diagnosed = serve_eval("diagnose", str(out), "-v").stdout
    assert " asked    0 of 8 samples are wrong, 6 missing" in diagnosed
    assert diagnosed.count("1 answer has no score, for example sample ") == 3, "and no more of them"

    _forget()
    again = serve_eval(
        "run",
        "--include-path",
        str(own),
        "--resume",
        str(out),
        "--set",
        "limits.scorer_timeout_s=0.5",
    )
    assert (again.returncode, _result(out)) == (3, result), again.stderr

    (own / "tasks/odd.py").write_text(MENDED)
    _forget()
    rescored = serve_eval("judge", "--rescore", str(out), "--include-path", str(own))
    assert " samples  6 of 8 changed outcome: 6 not scored -> correct\n" in rescored.stdout, (
        rescored.stdout
    )
    _forget()
    judged = serve_eval("judge", str(out), "--include-path", str(own), "--json")
    assert json.loads(judged.stdout)["result"]["tasks"][0]["result"]["value"] == 100.0
    assert _result(out) == result, "a verdict replaces nothing"
    _forget()
    done = serve_eval("run", "--include-path", str(own), "--resume", str(out))
    assert done.returncode == 3
    assert (_result(out)["scored"], _result(out)["failures"], _result(out)["scorer_errors"]) == (
        8,
        {},
        [],
    )
    assert (out / "samples/odd.jsonl").read_bytes() == answers, "nothing was asked again"


def test_a_file_that_changes_during_a_run_scores_nothing_by_halves(own):
    extensions.include([str(own)])
    bare_task(Spec(name="odd"))
    recipe = _recipe(Spec(name="odd"), include_path=(str(own),), code={"tasks.odd": "another"})
    with ScoringProcesses({"odd": recipe}, limit_s=20.0) as scoring:
        found = _graded(scoring, "odd", Sample(id="fine-0", prompt="", target="fine"), " y")
    assert isinstance(found, Unfinished)
    assert found.told == "tasks.odd: the file has changed since the command started"


def test_data_that_are_others_each_time_are_not_scored(own):
    recipe = _recipe(Spec(name="odd"), include_path=(str(own),))
    with ScoringProcesses({"odd": recipe}, limit_s=20.0) as scoring:
        fine, other = (
            Sample(id="fine-0#2", prompt="", target=target) for target in ("fine", "else")
        )
        assert _graded(scoring, "odd", fine, " y") == (
            Score(value=1.0, outcome=Outcome.CORRECT),
            None,
        )
        found = _graded(scoring, "odd", other, " y")
    assert isinstance(found, Unfinished)
    assert "another target" in found.told


@pytest.mark.parametrize("again", [False, True], ids=["while asking", "while resuming"])
def test_an_interruption_waits_for_no_scorer(own, again):
    out = own.parent / "out"
    limit = ("--set", "limits.scorer_timeout_s=60")
    if again:
        assert (
            serve_eval("run", *_flags(own), "--set", "limits.scorer_timeout_s=0.2").returncode == 3
        )
    command = (
        ["run", "--resume", str(out), "--include-path", str(own)]
        if again
        else ["run", *_flags(own)]
    )
    command = [sys.executable, "-m", "serve_eval", *command, *limit]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            busy = _busy(process.pid)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130, said
    assert f"--resume {out}" in said
    assert _gone(*busy)
    assert (out / "samples/odd.jsonl").read_bytes().count(b"\n") == len(KINDS)


def _busy(pid):
    """Return the child processes of a process once one of them has computed for long."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        below = _below(pid)
        if any(_seconds(one) > 1.5 for one in below[1:]):
            return below
        time.sleep(0.05)
    raise AssertionError("no scorer runs")


def _below(pid):
    children = []
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, thread.read_text().split())
    return [*children, *(below for child in children for below in _below(child))]


def _seconds(pid):
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ------------------------------------------------------------------------- here and elsewhere alike


def _recipe(spec, **more):
    fields = {
        "include_path": (),
        "roots": DataRoots(),
        "wanted": 10,
        "code": {},
    }
    return Recipe(
        spec=spec, places=registry.places((TASKS, registry.SCORERS)), **{**fields, **more}
    )


def _graded(scoring, task, sample, text):
    apart = scoring.of(task)
    return apart(sample, Response(text=text, finish_reason="stop")).result()


SCHEMA = '{"type": "array", "uniqueItems": true, "items": {"multipleOf": 0.5}}'
TEXTS = [
    "[1, 2]",
    "[1, 1]",
    "[0.3]",
    "no JSON",
    "[1e400]",
    "[1, true]",
    "",
    "\ud83d\ude00",
    "[2, 1]",
]


def test_a_score_is_the_same_in_another_process():
    spec = Spec(name="json_mode_eval")
    task = bare_task(spec)
    sample = Sample(id="train-0", prompt="", target="[1, 2]", metadata={"schema": SCHEMA})
    with ScoringProcesses({spec.name: _recipe(spec)}, limit_s=20.0) as scoring:
        for text in TEXTS:
            here = grade(task, sample, Response(text=text, finish_reason="stop"))
            assert _graded(scoring, spec.name, sample, text) == here
        assert scoring.of("gsm8k") is None


def test_every_task_of_ours_says_where_it_is_scored():
    built = {
        name: bare_task(Spec(name=name))
        for name in registry.names(TASKS)
        if name not in ("cases", "lm_eval")
    }
    apart = {name for name, task in built.items() if task.scoring != "inline"}
    assert apart == {
        *("bfcl", "cnn_dailymail", "covost2", "ifbench", "ifeval"),
        *("json_mode_eval", "longbench_v1", "math_500"),
        *("voxpopuli", "zero_scrolls"),
    }


# -----------------------------------------------------------------------------------------------------  # noqa: E501
# an accumulator


def _load(roots, wanted):
    raise NotImplementedError


def _task(**more):
    fields = {
        "name": "numbers",
        "version": 1,
        "reference_file": "numbers",
        "metric": Metric(),
        "hypothesis": Hypothesis(num_samples=3),
        "sampling": SamplingParams(max_tokens=5),
        "protocol": {},
        "load": _load,
        "score": lambda sample, response: Score(
            value=float(response.text), outcome=Outcome.PARTIAL
        ),
        "answers": lambda sample: ("1", "0"),
    }
    return Task(**{**fields, **more})


def _samples(count, **more):
    return [Sample(id=f"s{i}", prompt="?", target="1", **more) for i in range(count)]


def _said(text):
    return Response(text=text, finish_reason="stop")


FAILED = Failure(kind=FailureKind.TIMEOUT, message="no byte")


def test_an_answer_that_cannot_be_scored_is_missing_and_not_asked_again(tmp_path):
    with Journal(tmp_path / "numbers.jsonl") as journal:
        for i, text in enumerate(["1", "x", "y"]):
            journal.append(Record(id=f"s{i}", response=_said(text)))
    with Journal(tmp_path / "numbers.jsonl") as journal:
        accumulator = ScoreAccumulator(_task(), _samples(4))
        assert replay(journal, accumulator) == 3
    accumulator.add(1, FAILED)
    accumulator.add(3, FAILED)
    result = accumulator.result()
    assert (result.scored, result.failed, result.failures) == (
        1,
        3,
        {"timeout": 1, "scorer_error": 2},
    )
    assert result.bounds == (25.0, 100.0)
    assert list(accumulator.worth_another_pass()) == [3]
    assert [(error.count, error.sample) for error in result.scorer_errors] == [(1, "s1"), (1, "s2")]


def test_equal_errors_are_told_once_with_how_many_there_are():
    accumulator = ScoreAccumulator(_task(), _samples(60))
    for i in reversed(range(60)):
        accumulator.add(i, _said("x" if i % 2 else f"x{i}"))
    errors = accumulator.result().scorer_errors
    assert (errors[0].count, errors[0].sample) == (30, "s1")
    assert sum(error.count for error in errors) == 60
    assert len(errors) == 21
    assert "other errors" in {error.told for error in errors}


def test_of_a_hold_out_sample_no_message_is_told():
    accumulator = ScoreAccumulator(_task(), _samples(1, metadata={HOLDOUT: "yes"}))
    accumulator.add(0, _said("secret"))
    assert [error.told for error in accumulator.result().scorer_errors] == ["ValueError"]


def test_half_a_character_in_an_answer_is_written_escaped():
    def score(sample, response):
        return Score(value=1.0, outcome=Outcome.CORRECT, answer=json.loads(response.text))

    lines = []

    accumulator = ScoreAccumulator(_task(score=score), _samples(1), _Lines(lines))
    accumulator.add(0, _said('"\\ud800"'))
    assert msgspec.json.decode(lines[0])["answer"] == "\\ud800"


class _Lines:
    """Keeps scores as the lines of their file."""

    def __init__(self, lines):
        self._lines = lines

    def write(self, record):
        self._lines.append(encode(record))


class _Odd:
    def __float__(self):
        return 0.5


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (Score(value=_Odd(), outcome="partial", parts={"a": _Odd()}), None),
        (Score(value=0.5, outcome="good"), "not the str 'good'"),
        (
            Score(value=0.5, outcome=Outcome.PARTIAL, parts={"a": None}),
            "part 'a' is a finite number, not None",
        ),
        (Score(value=float("inf"), outcome=Outcome.PARTIAL), "from 0 to 1, not the float inf"),
        (Score(value=-0.1, outcome=Outcome.PARTIAL), "from 0 to 1, not the float -0.1"),
        (
            Score(value=0.5, outcome=Outcome.PARTIAL, parts={"a": float("nan")}),
            "part 'a' is a finite number, not the float nan",
        ),
        (
            Score(value=0.5, outcome=Outcome.PARTIAL, parts={"a": float("-inf")}),
            "part 'a' is a finite number, not the float -inf",
        ),
        (Score(value=0.5, outcome=Outcome.PARTIAL, parts={(1, 2): 0.5}), None),
        (Score(value=0.5, outcome=Outcome.PARTIAL, parts={"\ud800": 0.5}), None),
        (0.5, "must return a Score of serve_eval.schema, not the float 0.5"),
    ],
)
def test_what_is_no_score_is_an_error_of_the_scorer(score, told):
    lines = []
    accumulator = ScoreAccumulator(
        _task(score=lambda sample, response: score), _samples(1), _Lines(lines)
    )
    accumulator.add(0, _said("1"))
    result = accumulator.result()
    msgspec.json.encode(result)
    assert bool(lines) == (told is None)
    assert result.value == (50.0 if told is None else None)
    assert told is None or told in result.scorer_errors[0].told


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_no_score_is_infinite_where_the_metric_has_no_ends(value):
    task = _task(
        metric=Metric(lo=None, hi=None),
        score=lambda *_: Score(value=value, outcome=Outcome.PARTIAL),
    )
    accumulator = ScoreAccumulator(task, _samples(1))
    accumulator.add(0, _said("1"))
    assert accumulator.result().failures == {"scorer_error": 1}


def _raise(*_):
    raise KeyError("no such field")


@pytest.mark.parametrize(
    ("hook", "lost"),
    [
        ({"breakdown": _raise}, {"breakdown": {}}),
        ({"secondary": _raise}, {"secondary": {}}),
        (
            {"aggregation": Aggregation(name="odd", of=_raise, monotone=True)},
            {"value": None, "bounds": None},
        ),
        (
            {"aggregation": Aggregation(name="odd", of=lambda scored: float("nan"))},
            {"value": None, "bounds": None},
        ),
    ],
)
def test_a_figure_that_cannot_be_made_is_left_out_and_told(hook, lost):
    accumulator = ScoreAccumulator(_task(**hook), _samples(2))
    accumulator.add(0, _said("1"))
    result = accumulator.result()
    assert {name: getattr(result, name) for name in lost} == lost
    assert result.value == (None if "aggregation" in hook else 100.0)
    assert [line.partition(":")[0] for line in result.hook_errors] == list(hook)


def test_a_failure_mode_that_cannot_be_told_costs_no_score():
    accumulator = ScoreAccumulator(_task(failure_mode=_raise), _samples(1))
    accumulator.add(0, _said("0.5"))
    assert accumulator.result().modes == {"unknown: failure_mode raised KeyError": 1}
    assert accumulator.result().value == 50.0


async def test_a_score_that_comes_late_is_waited_for_unless_the_answer_was_withdrawn():
    futures = []

    def apart(sample, response):
        futures.append(Future())
        return futures[-1]

    accumulator = ScoreAccumulator(_task(), _samples(2), apart=apart)
    waiting = [asyncio.create_task(accumulator.take_result(i, _said("1"))) for i in range(2)]
    await asyncio.sleep(0)
    assert (accumulator.scored, accumulator.score(0)) == (0, None)
    del accumulator._being_scored[1]
    for future in futures:
        future.set_result((Score(value=0.25, outcome=Outcome.PARTIAL), None))
    await asyncio.gather(*waiting)
    assert (accumulator.scored, accumulator.score(0), accumulator.score(1)) == (1, 0.25, None)


def _ask(*_):
    raise KeyError("no such question")


def test_a_hook_that_gets_an_answer_and_raises_leaves_it_without_a_score(tmp_path):
    judged, run = _task(questions=_ask), _task(program=_ask)
    judgements = Judgements(tmp_path / "judgements.jsonl")
    executions = Executions(tmp_path / "executions.jsonl", keep=False)
    records = [Record(id="s0", response=_said("1"))]
    assert judgements.list_pending(judged, _samples(1), records) == {}
    assert judgements.figures(judged, _samples(1), records) == ()
    assert executions.list_pending(run, _samples(1), records) == {}
    for accumulator in (
        ScoreAccumulator(judged, _samples(1), judgements=judgements),
        ScoreAccumulator(run, _samples(1), executions=executions),
    ):
        assert take(records, accumulator) == 1
        result = accumulator.result()
        assert (result.scored, result.failures) == (0, {"scorer_error": 1})
        assert result.scorer_errors[0].told.startswith("KeyError: 'no such question' (")


def test_what_a_judge_said_is_unreadable_where_reading_it_raises(tmp_path):
    judge = Judge(name="j", sampling=SamplingParams(max_tokens=5), base_url="http://judge/v1")
    question = Question(
        judge=judge, metric="good", round=1, prompt=(Message(role="user", content="?"),), read=float
    )
    task = _task(questions=lambda sample, response: (question,))
    file = tmp_path / "judgements.jsonl"
    records = [Record(id="s0", response=_said("1"))]
    [name] = Judgements(file).list_pending(task, _samples(1), records)
    with Journal(file) as journal:
        journal.append(Record(id=name, response=_said("good")))
    judgements = Judgements(file)
    assert judgements.figures(task, _samples(1), records)[0].unreadable == 1
    assert list(judgements.list_pending(task, _samples(1), records)) == [name], "it is asked again"
