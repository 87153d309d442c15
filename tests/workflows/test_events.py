"""Test the events of a run: of the library, and as JSON lines of the command line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from serve_eval import evaluate
from serve_eval.cli._events import EventPrinter
from serve_eval.report.document import describe_document_form
from serve_eval.schema import (
    AlarmRaised,
    EndpointReady,
    Event,
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
from tests.scripted_server import ScriptedServer, fail

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = Draft202012Validator(json.loads((ROOT / "docs/schemas/events.json").read_text()))
RUN = (
    "run", "--launcher", "simulated", "--set", "launcher.accuracy=0.1", "--model", "embedded",
    "--tasks", "word_problems", "--limit", "60", "--json-events",
)  # fmt: skip


def _read(stdout: str) -> list[dict[str, Any]]:
    """Return the events, each of which fits the schema."""
    events = [json.loads(line) for line in stdout.splitlines()]
    assert [error.message for one in events for error in SCHEMA.iter_errors(one)] == []
    return events


@pytest.mark.usefixtures("simulated_here")
def test_standard_output_has_events_alone_from_the_first_to_the_last(tmp_path: Path) -> None:
    done = serve_eval(*RUN, "-o", tmp_path / "out")
    events = _read(done.stdout)
    kinds = [one["event"] for one in events]
    assert kinds[:2] + kinds[-3:] == ["started", "ready", "task", "document", "finished"]
    assert {"progress"} <= set(kinds) <= {*kinds[:2], *kinds[-3:], "progress", "message", "alarm"}
    assert {one["v"] for one in events} == {1}
    assert (done.returncode, events[-1]["exit_code"], events[-1]["error"]) == (1, 1, None)
    progress = [one for one in events if one["event"] == "progress"]
    assert (progress[0]["done"], progress[-1]["done"], progress[-1]["ended"]) == (0, 60, True)
    report = json.loads((tmp_path / "out/report.json").read_text())
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


def test_an_error_is_the_last_event_and_holds_no_key(tmp_path: Path) -> None:
    key = "sk-0123456789abcdef-secret"
    server = ScriptedServer(fail(401, f"Incorrect API key provided: {key}"))
    with server.serve_in_thread() as url:
        done = serve_eval(
            "run", "--base-url", url, "--model", "embedded", "--tasks", "word_problems", "--limit",
            "9", "--json-events", "-o", tmp_path / "out", OPENAI_API_KEY=key,
        )  # fmt: skip
    last = _read(done.stdout)[-1]
    assert (last["event"], last["exit_code"], done.returncode) == ("finished", 4, 4)
    assert last["error"]["kind"] == "EndpointError"
    assert "401" in last["error"]["message"]
    assert key not in done.stdout


def test_the_last_event_has_the_exit_code_of_the_command_not_of_the_run(tmp_path: Path) -> None:
    few = ("--launcher", "embedded", "--tasks", "word_problems", "--limit", "12")
    done = serve_eval(
        "run",
        *few,
        "--strict",
        "--set",
        "run.max_detects=1",
        "--json-events",
        "-o",
        tmp_path / "out",
    )
    assert done.returncode == _read(done.stdout)[-1]["exit_code"] == 1
    assert json.loads((tmp_path / "out/report.json").read_text())["exit_code"] == 0


def test_an_error_after_the_run_is_in_the_last_event(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    printer = EventPrinter(wanted=True)
    printer._take(RunFinished(folder="out", exit_code=0))
    printer.__exit__(None, ValueError("no room"), None)
    [last] = _read(capfd.readouterr().out)
    assert (last["exit_code"], last["error"]["kind"]) == (4, "ValueError")


@pytest.mark.parametrize("flag", ["--json", "--dry-run"])
def test_nothing_else_is_printed_there(flag: str) -> None:
    done = serve_eval(*RUN, flag)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--json-events and {flag} exclude each other" in done.stderr


def test_progress_is_reported_once_a_second_and_at_both_ends() -> None:
    events: list[Event] = []
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


def test_a_warning_is_an_alarm_and_any_other_line_a_message() -> None:
    events: list[Event] = []
    lines: list[str] = []
    reporter = _Reporter(events.append, None, lines.append)
    for line in ("warning: answers get worse", "waiting for the server"):
        reporter.notify(line)
    assert lines == ["warning: answers get worse", "waiting for the server"]
    assert events == [
        AlarmRaised(text="answers get worse"),
        MessageSaid(text="waiting for the server"),
    ]


@pytest.mark.usefixtures("simulated_here")
def test_a_cancelled_run_ends_with_an_event_too(tmp_path: Path) -> None:
    events: list[Event] = []
    plan = Plan(
        model="embedded",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="word_problems"),),
        no_reference=True,
    )

    async def main() -> None:
        def note(event: Event) -> None:
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
def test_a_wrong_option_of_a_launcher_leaves_no_folder(tmp_path: Path) -> None:
    done = serve_eval(*RUN, "--set", "launcher.accuracy=7", "-o", tmp_path / "out")
    assert [one["event"] for one in _read(done.stdout)] == ["started", "finished"]
    assert done.returncode == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_reader_that_is_gone_does_not_end_the_run(tmp_path: Path) -> None:
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
