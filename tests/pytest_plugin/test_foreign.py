"""An exception from outside that ends the wait for a server is an ERROR, never a regression."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml

from serve_eval.errors import ServerEndedError
from serve_eval.pytest_plugin.results import describe_error
from tests.cli.command import serve_eval
from tests.pytest_plugin.run_pytest import run_pytest
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, models, stall

LIMITED = """
import os, pathlib, signal
import pytest

@pytest.fixture(autouse=True)
def _limit():
    def end(number, frame): {raises}
    signal.signal(signal.SIGALRM, end)
    signal.signal(signal.SIGUSR1, lambda *_: signal.setitimer(signal.ITIMER_REAL, 0.65))
    pathlib.Path("limited").write_text(str(os.getpid()))
    yield
    pathlib.Path("limited").unlink(missing_ok=True)
    signal.setitimer(signal.ITIMER_REAL, 0)

@pytest.mark.serve_eval("word_problems", limit=40, concurrency=4, no_reference=True, model="m")
@pytest.mark.parametrize("n", [1, 2])
def test_it(serve_eval, n): serve_eval.evaluate()
"""
RAISES = {
    "Failed": 'pytest.fail("Timeout (>4.0s) from pytest-timeout.")',
    "TimeoutError": 'raise TimeoutError("too slow")',
}


def hang(folder: Path) -> Reply:
    """Answer nothing; the time limit of the test that runs in a folder is then soon reached.

    The upkeep of the run wakes each quarter of a second from about now: the limit is between two.
    """
    limited = folder / "limited"
    with suppress(FileNotFoundError):
        process = int(limited.read_text())
        limited.unlink()
        os.kill(process, signal.SIGUSR1)
    return stall()


@pytest.mark.parametrize("name", RAISES)
def test_a_server_that_hangs_is_an_error(tmp_path: Path, name: str) -> None:
    """It answers some samples and then none, until the time limit of the test."""
    answered = 0

    def act(request: HttpRequest) -> Reply:
        nonlocal answered
        answered += 1
        return answer("4") if answered <= 10 else hang(tmp_path)

    server = ScriptedServer(act, routes={"/v1/models": models("m")})
    (tmp_path / "test_it.py").write_text(LIMITED.format(raises=RAISES[name]))
    with server.serve_in_thread() as url:
        done = run_pytest(
            tmp_path, "--junitxml", "j.xml", "--serve-eval-output", "runs", "-ra",
            "--serve-eval-notify", "line", SERVE_EVAL_BASE_URL=url,
        )  # fmt: skip
    assert "2 errors" in done.stdout.splitlines()[-1], done.stdout
    cases = [case for suite in JUnitXml.fromfile(str(tmp_path / "j.xml")) for case in suite]
    results = [one for case in cases for one in case.result]
    assert [type(one) for one in results] == [Error, Error]
    assert not any(isinstance(one, Failure) for one in results)
    for number, case in enumerate(cases, 1):
        known = {one.get("name"): one.get("value") for one in case._elem.iter("property")}
        assert f"/runs/test_it.py/test_it-{number}-" in known["run_folder"]
    told = str(results[0].text)
    assert told.startswith(f"{name}: ")
    assert " of 40 of word_problems" in told
    assert "run folder: runs/test_it.py/test_it-1-" in told
    assert "sample_timeout_s=" in told
    assert (tmp_path / "line").read_text().startswith("ERROR")


def test_ctrl_c_still_ends_the_session(tmp_path: Path) -> None:
    server = ScriptedServer(lambda _: hang(tmp_path), routes={"/v1/models": models("m")})
    (tmp_path / "test_it.py").write_text(LIMITED.format(raises="raise KeyboardInterrupt"))
    with server.serve_in_thread() as url:
        done = run_pytest(tmp_path, SERVE_EVAL_BASE_URL=url)
    assert done.returncode == pytest.ExitCode.INTERRUPTED, done.stdout


def test_a_server_that_ended_is_told_with_the_answers_so_far(tmp_path: Path) -> None:
    asked = ("--launcher", "simulated", "-t", "word_problems", "--limit", "5", "--no-reference")
    serve_eval("run", *asked, "-o", tmp_path / "run")
    told = describe_error(ServerEndedError("no server listens any more"), tmp_path / "run")
    assert "\nanswered so far: 5 of 5 of word_problems\nrun folder: " in told, told
