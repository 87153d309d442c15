"""Test the progress and the events of a run on consoles, in logs and as JSON lines."""

import asyncio
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from serve_eval import evaluate
from serve_eval.cli._ending import HalfWay
from serve_eval.cli._progress import (
    WORDS,
    DrawnProgress,
    EventPrinter,
    LoggedProgress,
    TaskState,
    format_drawn,
    format_failures,
    format_logged,
    progress,
)
from serve_eval.report.document import describe_document_form
from serve_eval.schema import (
    AlarmRaised,
    EndpointReady,
    FailureKind,
    MessageSaid,
    Plan,
    RunFinished,
    RunStarted,
    Spec,
    TaskProgressed,
)
from serve_eval.workflows.events import _Reporter
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail

FAILED = {FailureKind.TIMEOUT: 2, FailureKind.HTTP_ERROR: 1}


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self):
        return self.now


def _state(**given):
    usual = {"name": "gsm8k", "planned": 500, "completed": 0, "began_s": 100.0}
    return TaskState(**{**usual, **given})


def _course(name):
    """Yield the states of a task of 14,042 questions from its first answer to its end."""
    for done in (0, 1, 9, 10, 99, 100, 1000, 14039):
        failed = FAILED if done > 10 else {}
        value = None if not done else 100.0 if done < 10 else 4.5
        yield _state(name=name, planned=14042, done=done, failed=failed, value=value)


@pytest.mark.parametrize("width", [40, 70, 80, 200])
@pytest.mark.parametrize("name", ["aime", "candidate: lm_eval:mmlu_abstract_algebra"])
def test_no_column_moves_while_a_task_runs(name, width):
    lines = [
        format_drawn(state, 100.0 + seconds, width).plain
        for state in _course(name)
        for seconds in (0.0, 7.0, 600.0, 90000.0)
    ]
    assert {line.index("/14042") for line in lines} == {lines[0].index("/14042")}
    assert len({line.index(" left") for line in lines if " left" in line}) == 1
    assert max(map(len, lines)) <= width
    assert all(("━" in line) == (width >= 70) for line in lines)


def test_the_lines_are_these():
    name = "baseline: lm_eval:hellaswag"
    states = {
        "running": _state(done=312, value=49.2),
        "failed": _state(name=name, done=312, failed=FAILED, value=49.2),
        "ended": _state(done=497, failed=FAILED, ended_s=103.0),
    }
    shown = {
        (what, width): format_drawn(state, 102.0, width).plain
        for what, state in states.items()
        for width in (80, 40)
    }
    assert shown == {
        ("running", 80): "gsm8k            ━━━━━━ 312/500    1 s left   49.20    156/s",
        ("running", 40): "gsm8k      312/500    1 s left   49.20",
        ("failed", 80): (
            "baseline: lm_ev… ━━━━━━ 315/500    1 s left  3 failed: 2 timed out, 1 HTTP error"
        ),
        ("failed", 40): "baseline:… 315/500    1 s left  3 failed",
        ("ended", 80): (
            "gsm8k            ━━━━━━ 500/500      in 3 s  3 failed: 2 timed out, 1 HTTP error"
        ),
        ("ended", 40): "gsm8k      500/500      in 3 s  3 failed",
    }
    many = dict.fromkeys(FailureKind, 100)
    cut = format_drawn(_state(failed=many), 102.0, 80).plain
    assert cut == "gsm8k            ━━━━━━ 600/500              600 failed: 100 HTTP errors, …"


def test_failures_are_told_in_words_with_the_most_frequent_first():
    assert format_failures(FAILED) == "3 failed: 2 timed out, 1 HTTP error"
    assert format_failures({FailureKind.HTTP_ERROR: 2}) == "2 failed: 2 HTTP errors"
    assert format_failures({FailureKind.TIMEOUT: 0}) == format_failures({}) == ""
    assert WORDS.keys() == set(FailureKind)


def test_nothing_is_red_before_its_task_has_ended():
    def colours(state):
        return {str(span.style) for span in format_drawn(state, 102.0, 200).spans}

    assert colours(_state(done=250, failed=FAILED)) == {"cyan", "dim"}
    assert "red" in colours(_state(done=497, failed=FAILED, ended_s=102.0))
    assert colours(_state(done=500, ended_s=102.0)) == {"green"}


def test_a_log_gets_a_line_every_half_minute_and_none_per_sample():
    clock, file = Clock(), io.StringIO()
    shown = progress(Console(file=file, width=80))
    assert isinstance(shown, LoggedProgress)
    shown = LoggedProgress(Console(file=file, width=80), clock)
    shown.begin("gsm8k", 700, 0)
    for done in range(1, 561):
        clock.now += 0.125
        shown.update("gsm8k", done, {}, 50.0)
    shown.update("gsm8k", 560, FAILED, 50.0)
    shown.end("gsm8k")
    assert file.getvalue().splitlines() == [
        "gsm8k: 240/700 done, 0 failed, value 50.00, 8/s, 58 s left",
        "gsm8k: 480/700 done, 0 failed, value 50.00, 8/s, 28 s left",
        "gsm8k: 560/700 done, 3 failed: 2 timed out, 1 HTTP error, value 50.00, 8/s",
    ]


def test_tasks_that_run_together_share_the_lines_of_a_log():
    clock, file = Clock(), io.StringIO()
    shown = LoggedProgress(Console(file=file, width=80), clock)
    for task in ("gsm8k", "mmlu"):
        shown.begin(task, 300, 0)
    for done in range(1, 251):
        clock.now += 0.125
        shown.update("gsm8k", done, {}, 50.0)
        shown.update("mmlu", done, FAILED, 50.0)
    shown.end("gsm8k")
    assert file.getvalue().splitlines() == [
        "gsm8k: 240/300, mmlu: 239/300 done, 3 failed: 2 timed out, 1 HTTP error, 16/s, 7 s left",
        "gsm8k: 250/300 done, 0 failed, value 50.00, 8/s",
    ]


def test_failures_of_a_run_reach_the_log_by_kind(tmp_path):
    def respond(request):
        asked_late = "Question:" in str(request.body) and request.number > 4
        return fail(400, "too long") if asked_late else answer("#### 1")

    with ScriptedServer(respond).serve_in_thread() as url:
        flags = f"--base-url {url} -m m --tasks word_problems --no-reference"
        more = "--limit 6 --concurrency 1 --set limits.max_error_rate=1"
        done = serve_eval(f"run -o {tmp_path}/out {flags} {more}")
    assert re.search(r"\d/6 done, (\d) failed: \1 HTTP errors?, value", done.stderr), done.stderr


def test_answers_of_earlier_sessions_count_for_no_speed():
    state = _state(completed=400, done=450)
    assert format_logged([state], 105.0) == ("gsm8k: 450/500 done, 0 failed, 10/s, 5 s left")


def test_a_terminal_gets_one_line_per_task_until_all_have_ended():
    clock, file = Clock(), io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None)
    assert isinstance(progress(console), DrawnProgress)
    shown = DrawnProgress(console, clock)
    shown.begin("gsm8k", 200, 100)
    shown.begin("mmlu", 300, 0)
    clock.now += 10.0
    shown.update("gsm8k", 200, {}, 50.0)
    shown.end("gsm8k")
    shown.update("mmlu", 150, {}, 25.0)
    drawn = Console(file=io.StringIO(), width=80)
    drawn.print(shown.render())
    assert drawn.file.getvalue().splitlines() == [
        "gsm8k            ━━━━━━ 200/200     in 10 s   50.00     10/s",
        "mmlu             ━━━━━━ 150/300   10 s left   25.00     15/s",
    ]
    shown.end("mmlu")
    assert "gsm8k: 100 of 200 answers are already there" in file.getvalue()
    assert file.getvalue().endswith("150/300     in 10 s   25.00     15/s\n\x1b[?25h")


class Shown:
    """A receiver that keeps the events passed on to it."""

    def __init__(self):
        self.seen = []

    def begin(self, *given):
        self.seen.append(("begin", *given))

    def update(self, *given):
        self.seen.append(("update", *given))

    def end(self, *given):
        self.seen.append(("end", *given))


def _play(*events):
    """Return the number of the event at which the half came, and how often it came."""
    at = []
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


def _failed(count):
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
def test_the_half_comes_once(events, expected):
    assert _play(*events) == expected


ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Draft202012Validator(read_json(ROOT / "docs/schemas/events.json"))
RUN = (
    "run", "--launcher", "simulated", "--set", "launcher.accuracy=0.1", "--model", "embedded",
    "--tasks", "word_problems", "--limit", "60", "--json-events",
)  # fmt: skip


def _read(stdout):
    """Return the events, each of which fits the schema."""
    events = [json.loads(line) for line in stdout.splitlines()]
    assert [error.message for one in events for error in SCHEMA.iter_errors(one)] == []
    return events


@pytest.mark.usefixtures("simulated_here")
def test_standard_output_has_events_alone_from_the_first_to_the_last(tmp_path):
    done = serve_eval(*RUN, "-o", tmp_path / "out")
    events = _read(done.stdout)
    kinds = [one["event"] for one in events]
    assert kinds[:2] + kinds[-3:] == ["started", "ready", "task", "document", "finished"]
    assert {"progress"} <= set(kinds) <= {*kinds[:2], *kinds[-3:], "progress", "message", "alarm"}
    assert {one["v"] for one in events} == {1}
    assert (done.returncode, events[-1]["exit_code"], events[-1]["error"]) == (1, 1, None)
    progress = [one for one in events if one["event"] == "progress"]
    assert (progress[0]["done"], progress[-1]["done"], progress[-1]["ended"]) == (0, 60, True)
    report = read_json(tmp_path / "out/report.json")
    verdict, task = report["tasks"][0]["verdict"], events[-3]
    document = events[-2]["document"]
    Draft202012Validator(describe_document_form()).validate(document)
    assert (document["outcome"], document["exit_code"], document["result"]) == ("FAIL", 1, None)
    [conclusion] = document["conclusions"]
    assert (conclusion["name"], conclusion["outcome"]) == ("word_problems", "FAIL")
    assert (task["outcome"], task["value"], task["threshold"]) == (
        "FAIL",
        verdict["evaluated"],
        verdict["threshold"],
    )


def test_an_error_is_the_last_event_and_holds_no_key(tmp_path):
    key = "sk-0123456789abcdef-secret"
    server = ScriptedServer(fail(401, f"Incorrect API key provided: {key}"))
    with server.serve_in_thread() as url:
        done = serve_eval(
            f"run --base-url {url} --model embedded --tasks word_problems --limit 9 --json-events"
            f" -o {tmp_path}/out",
            OPENAI_API_KEY=key,
        )
    last = _read(done.stdout)[-1]
    assert (last["event"], last["exit_code"], done.returncode) == ("finished", 4, 4)
    assert last["error"]["kind"] == "EndpointError"
    assert "401" in last["error"]["message"]
    assert key not in done.stdout


def test_the_last_event_has_the_exit_code_of_the_command_not_of_the_run(tmp_path):
    few = "--launcher embedded --tasks word_problems --limit 12"
    done = serve_eval(f"run --strict --set run.max_detects=1 --json-events -o {tmp_path}/out {few}")
    assert done.returncode == _read(done.stdout)[-1]["exit_code"] == 1
    assert read_json(tmp_path / "out/report.json")["exit_code"] == 0


def test_an_error_after_the_run_is_in_the_last_event(tmp_path, capfd):
    printer = EventPrinter(wanted=True)
    printer._take(RunFinished(folder="out", exit_code=0))
    printer.__exit__(None, ValueError("no room"), None)
    [last] = _read(capfd.readouterr().out)
    assert (last["exit_code"], last["error"]["kind"]) == (4, "ValueError")


@pytest.mark.parametrize("flag", ["--json", "--dry-run"])
def test_nothing_else_is_printed_there(flag):
    done = serve_eval(*RUN, flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--json-events and {flag} exclude each other" in done.stderr


def test_progress_is_reported_once_a_second_and_at_both_ends():
    events = []
    now_s = 0.0
    reporter = _Reporter(events.append, None, lambda line: None, lambda: now_s)
    reporter.begin("t", 100, 0)
    for done in range(1, 101):
        now_s += 0.1
        reporter.update("t", done, {FailureKind.TIMEOUT: done % 2}, 50.0)
    reporter.end("t")
    states = [one for one in events if isinstance(one, TaskProgressed)]
    assert len(states) == len(events) == pytest.approx(12, abs=1)
    assert states[0] == TaskProgressed(task="t", planned=100, done=0)
    assert states[-1] == TaskProgressed(task="t", planned=100, done=100, value=50.0, ended=True)


def test_a_warning_is_an_alarm_and_any_other_line_a_message():
    events = []
    lines = []
    reporter = _Reporter(events.append, None, lines.append)
    for line in ("warning: answers get worse", "waiting for the server"):
        reporter.notify(line)
    assert lines == ["warning: answers get worse", "waiting for the server"]
    assert events == [
        AlarmRaised(text="answers get worse"),
        MessageSaid(text="waiting for the server"),
    ]


@pytest.mark.usefixtures("simulated_here")
def test_a_cancelled_run_ends_with_an_event_too(tmp_path):
    events = []
    plan = Plan(
        model="embedded",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="word_problems"),),
        no_reference=True,
    )

    async def main():
        def note(event):
            events.append(event)
            if isinstance(event, EndpointReady):
                run.cancel()

        run = asyncio.ensure_future(evaluate(plan, tmp_path / "out", on_event=note))
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(main())
    assert isinstance(events[0], RunStarted)
    assert events[-1] == RunFinished(folder=str(tmp_path / "out"), exit_code=130)


@pytest.mark.usefixtures("simulated_here")
def test_a_wrong_option_of_a_launcher_leaves_no_folder(tmp_path):
    done = serve_eval(*RUN, "--set", "launcher.accuracy=7", "-o", tmp_path / "out")
    assert [one["event"] for one in _read(done.stdout)] == ["started", "finished"]
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_reader_that_is_gone_does_not_end_the_run(tmp_path):
    there, here = os.pipe()
    os.close(there)
    done = subprocess.run(
        [sys.executable, "-m", "serve_eval", *RUN, "-o", tmp_path / "out"],
        env=environment(),
        stdout=here,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    os.close(here)
    assert done.returncode == 1, done.stderr
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/report.json").exists()
