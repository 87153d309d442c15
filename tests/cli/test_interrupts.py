"""Test that signals end any command with one line, which tells of kept answers.

The signals arrive at a chosen place in the code, not after a chosen time: a process sends them to
itself when it imports a module. `eval` stands for the code that Python evaluates inside dataclasses
and enums; a signal during it is known to kill the process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serve_eval.cli._async import explain_kept
from tests.cli.command import environment, serve_eval

_AT_AN_IMPORT = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            sys.meta_path.remove(self)
            eval("(os.kill(os.getpid(), {number}), [str(i) for i in range(99)])")
sys.meta_path.insert(0, Finder())
sys.argv = ["serve-eval", *{arguments!r}]
from serve_eval.cli import main
main()
"""
_AT_THE_END = """
import atexit, os, sys
if {late}:
    atexit.register(lambda: os.kill(os.getpid(), {number}))  # runs behind what main() registers
sys.argv = ["serve-eval", "references", "power", "--total", "99"]
from serve_eval.cli import main
try:
    main()
finally:
    if not {late}:
        os.kill(os.getpid(), {number})
"""
_TWICE = """
import os, sys
sys.argv = ["serve-eval", "references", "power", "--total", "99"]
from serve_eval.cli import main
import serve_eval.cli.app as app
def interrupted_twice(**more):
    try:
        os.kill(os.getpid(), {number})
    finally:
        os.kill(os.getpid(), {number})
        print("this must not be reached")
app.main = interrupted_twice
main()
"""
_TURNED = """
import os, sys
sys.argv = ["serve-eval", "list"]
from serve_eval.cli import main
import serve_eval.cli.app as app
def half_imported(**more):
    try:
        os.kill(os.getpid(), {number})
    except KeyboardInterrupt:
        raise {error}
app.app = half_imported
main()
"""


_TAKEN = "import signal\nsignal.signal(2, signal.default_int_handler)\n"
"""SIGINT is ignored in processes that a shell starts in the background, such as these tests."""


def _ran(script: str, *, cwd: Path | None = None) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-c", _TAKEN + script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("name", "arguments", "number"),
    [
        ("typer", ["--help"], 2),
        (
            "serve_eval.cli.compare",
            ["compare", "a:1", "b:2", "--tasks", "gsm8k", "--model", "m"],
            15,
        ),
        ("serve_eval.plan.resolve", ["run", "--tasks", "gsm8k", "--model", "m"], 2),
        ("rich.console", ["run", "--tasks", "gsm8k", "--model", "m"], 15),
        ("serve_eval.workflows.suite.file", ["run", "../nightly.yaml"], 2),
        (
            "serve_eval.workflows.compare.compare",
            ["compare", "a:1", "b:2", "--tasks", "gsm8k", "--model", "m"],
            2,
        ),
    ],
)
def test_a_signal_while_modules_are_imported_is_one_line(
    tmp_path: Path, name: str, arguments: list[str], number: int
) -> None:
    (here := tmp_path / "here").mkdir()
    (tmp_path / "nightly.yaml").write_text("name: n\nplans: [{model: m, tasks: [gsm8k]}]\n")
    script = _AT_AN_IMPORT.format(name=name, number=number, arguments=arguments)
    assert _ran(script, cwd=here) == (130, "", "Interrupted\n")
    assert not list(here.iterdir())


@pytest.mark.parametrize("number", [2, 15])
def test_a_second_signal_ends_at_once_with_the_same_code(number: int) -> None:
    assert _ran(_TWICE.format(number=number)) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(
    "error",
    [
        "ImportError('numpy')",
        "SystemExit(1)",
        "__import__('serve_eval.errors').errors.PlanError('x')",
    ],
)
def test_what_an_interruption_turned_into_is_an_interruption(error: str) -> None:
    assert _ran(_TURNED.format(number=2, error=error)) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(("late", "number", "code"), [(False, 2, 130), (True, 2, 0), (True, 15, 0)])
def test_a_signal_when_all_is_done_prints_no_traceback(late: bool, number: int, code: int) -> None:
    """A signal before Python shuts down is an interruption; later, the exit code stands."""
    ended, out, err = _ran(_AT_THE_END.format(late=late, number=number))
    assert (ended, err) == (code, "Interrupted\n" if code else "")
    assert out


def test_an_interruption_in_a_finalizer_is_not_lost() -> None:
    script = (
        "import os, sys\n"
        "sys.argv = ['serve-eval', 'data', 'list']\n"
        "from serve_eval.cli import main\n"
        "import serve_eval.cli.app as app\n"
        "class Held:\n"
        "    def __del__(self): os.kill(os.getpid(), 2); os.getpid()\n"
        "def drops(**more):\n"
        "    held = Held(); del held\n"
        "    print('this must not be reached')\n"
        "app.main = drops\n"
        "main()\n"
    )
    assert _ran(script) == (130, "", "Interrupted\n")


def test_a_signal_that_is_to_be_ignored_stays_so(tmp_path: Path) -> None:
    """As under nohup."""
    script = "signal.signal(2, signal.SIG_IGN)" + _AT_AN_IMPORT.format(
        name="serve_eval.stats.classic",
        number=2,
        arguments=["references", "power", "--total", "99"],
    )
    code, out, err = _ran(script)
    assert (code, err) == (0, "")
    assert "99" in out


def test_commands_in_this_process_leave_its_signals_alone() -> None:
    import signal

    from tests.cli.command import serve_eval

    before = [signal.getsignal(number) for number in (2, 15)]
    assert serve_eval("references", "power", "--total", "99").returncode == 0
    assert [signal.getsignal(number) for number in (2, 15)] == before


def test_an_interruption_within_an_eval_does_not_end_a_module_by_the_signal(tmp_path: Path) -> None:
    """Started as `python -m serve_eval`; when Python runs a script, it keeps the exit code."""
    finder, _, _ = _AT_AN_IMPORT.partition("sys.argv")
    script = _TAKEN + finder.format(name="serve_eval.plan.resolve", number=2)
    (tmp_path / "sitecustomize.py").write_text(script)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "serve_eval", "run", "--tasks", "gsm8k", "--model", "m"]
    done = subprocess.run(
        command,
        env=environment(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "Interrupted\n")


RECORDS = {
    "none": "",
    "a failure": (
        '{"id":"1","failure":{"kind":"timeout","message":"\\"response\\":{","retryable":true}}\n'
    ),
    "withdrawn": '{"id":"1","withdrawn":"twice"}\n',
    "an answer": '{"id":"1","failure":{"kind":"timeout"}}\n{"id":"2","response":{"text":"5"}}\n',
}


@pytest.mark.parametrize("below", ["samples", "runs/a/samples", "a/samples"])
@pytest.mark.parametrize("record", RECORDS)
def test_a_folder_holds_answers_when_one_was_had(record: str, below: str, tmp_path: Path) -> None:
    (tmp_path / below).mkdir(parents=True)
    (tmp_path / below / "gsm8k.jsonl").write_text(RECORDS[record])
    told = explain_kept(tmp_path, "this again")
    assert told == (
        "Finished answers are kept. Resume with: this again"
        if record == "an answer"
        else "No answer was received yet. Try again with: this again"
    )


@pytest.mark.parametrize(
    ("launcher", "setting", "answers"),
    [
        ("trtllm", "launcher.command='false'", False),
        ("simulated", "launcher.crash_after=40", True),
    ],
)
def test_a_server_that_ends_leaves_answers_or_none(
    launcher: str, setting: str, answers: bool, data_root: Path, tmp_path: Path
) -> None:
    done = serve_eval(
        *(
            "run",
            "--launcher",
            launcher,
            "--model",
            "m",
            "--tasks",
            "gsm8k",
            "--dataset-root",
            data_root,
        ),
        *("--no-reference", "--concurrency", "1", "-o", tmp_path / "out", "--set", setting),
    )
    assert done.returncode == 4
    assert (
        "Finished answers are kept. Resume with: serve-eval run --resume" in done.stderr
    ) is answers, done.stderr
    assert (
        "No answer was received yet. Try again with: serve-eval run --resume" in done.stderr
    ) is not answers
    assert done.stderr.count("kept") == answers
