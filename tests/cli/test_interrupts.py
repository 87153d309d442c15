"""Test commands that signals end, also those killed while they ask or judge.

The signals arrive at a chosen place in the code, not after a chosen time: a process sends them to
itself when it imports a module. `eval` stands for the code that Python evaluates inside dataclasses
and enums; a signal during it is known to kill the process.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time

import msgspec
import pytest

from serve_eval.cli._async import explain_kept
from serve_eval.schema import DataRoots
from serve_eval.schema.media import prompt_sha256, uniform
from serve_eval.storage.journal import read
from serve_eval.storage.scores import read_scores
from serve_eval.tasks.gsm8k import task
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json

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


def _ran(script, *, cwd=None):
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
def test_a_signal_while_modules_are_imported_is_one_line(tmp_path, name, arguments, number):
    (here := tmp_path / "here").mkdir()
    (tmp_path / "nightly.yaml").write_text("name: n\nplans: [{model: m, tasks: [gsm8k]}]\n")
    script = _AT_AN_IMPORT.format(name=name, number=number, arguments=arguments)
    assert _ran(script, cwd=here) == (130, "", "Interrupted\n")
    assert not list(here.iterdir())


@pytest.mark.parametrize("number", [2, 15])
def test_a_second_signal_ends_at_once_with_the_same_code(number):
    assert _ran(_TWICE.format(number=number)) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(
    "error",
    [
        "ImportError('numpy')",
        "SystemExit(1)",
        "__import__('serve_eval.errors').errors.PlanError('x')",
    ],
)
def test_what_an_interruption_turned_into_is_an_interruption(error):
    assert _ran(_TURNED.format(number=2, error=error)) == (130, "", "Interrupted\n")


@pytest.mark.parametrize(("late", "number", "code"), [(False, 2, 130), (True, 2, 0), (True, 15, 0)])
def test_a_signal_when_all_is_done_prints_no_traceback(late, number, code):
    """A signal before Python shuts down is an interruption; later, the exit code stands."""
    ended, out, err = _ran(_AT_THE_END.format(late=late, number=number))
    assert (ended, err) == (code, "Interrupted\n" if code else "")
    assert out


def test_an_interruption_in_a_finalizer_is_not_lost():
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


def test_a_signal_that_is_to_be_ignored_stays_so(tmp_path):
    """As under nohup."""
    script = "signal.signal(2, signal.SIG_IGN)" + _AT_AN_IMPORT.format(
        name="serve_eval.stats.classic",
        number=2,
        arguments=["references", "power", "--total", "99"],
    )
    code, out, err = _ran(script)
    assert (code, err) == (0, "")
    assert "99" in out


def test_commands_in_this_process_leave_its_signals_alone():
    import signal

    from tests.cli.command import serve_eval

    before = [signal.getsignal(number) for number in (2, 15)]
    serve_eval("references power --total 99", exits=0)
    assert [signal.getsignal(number) for number in (2, 15)] == before


def test_an_interruption_within_an_eval_does_not_end_a_module_by_the_signal(tmp_path):
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
def test_a_folder_holds_answers_when_one_was_had(record, below, tmp_path):
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
    [("trtllm", "launcher.command='false'", False), ("simulated", "launcher.crash_after=40", True)],
)
def test_a_server_that_ends_leaves_answers_or_none(launcher, setting, answers, data_root, tmp_path):
    done = serve_eval(
        f"run --launcher {launcher} --model m --tasks gsm8k --dataset-root {data_root}"
        f" --no-reference --concurrency 1 -o {tmp_path}/out --set",
        setting,
        exits=4,
    )
    assert (
        "Finished answers are kept. Resume with: serve-eval run --resume" in done.stderr
    ) is answers, done.stderr
    assert (
        "No answer was received yet. Try again with: serve-eval run --resume" in done.stderr
    ) is not answers
    assert done.stderr.count("kept") == answers


KILLS = 35
QUESTIONS = 1319


@pytest.fixture
def endpoint(tmp_path, data_root):
    """Yield the URL of a simulator that survives the kills and always answers alike.

    Three of four answers are right.
    """
    made = task()
    with (tmp_path / "answers.jsonl").open("wb") as file:
        for sample in made.load(DataRoots(roots=(data_root,)), QUESTIONS).samples:
            right, wrong = made.answers(sample)
            entry = {"sha256": prompt_sha256(sample.prompt), "right": right, "wrong": wrong}
            file.write(
                msgspec.json.encode({**entry, "probability": float(uniform(sample.id) < 0.75)})
                + b"\n"
            )
    ready = tmp_path / "ready"
    command = [
        sys.executable,
        "-m",
        "serve_eval.launchers._simulated",
        "--answers",
        str(tmp_path / "answers.jsonl"),
    ]
    command += ["--ready-file", str(ready), "--latency-s", "0.12", "--latency-jitter-s", "0.2"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            deadline = time.monotonic() + 30
            while not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield ready.read_text().strip()
        finally:
            process.terminate()


def _command(data_root, url, out):
    flags = [
        "--base-url",
        url,
        "--model",
        "simulated",
        "--tasks",
        "gsm8k",
        "--dataset-root",
        str(data_root),
    ]
    flags += [
        "--no-reference",
        "--concurrency",
        "8",
        "--set",
        "limits.order=random",
        "--set",
        "limits.stream=true",
    ]
    return [sys.executable, "-m", "serve_eval", "run", *flags, "-o", str(out)]


def _result(out):
    return read_json(out / "report.json")["tasks"][0]["result"]


def _lines(journal):
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.slow
def test_a_run_killed_at_thirty_random_points_ends_as_one_that_was_not(
    tmp_path, data_root, endpoint
):
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM"))
    }
    rng, out, had = random.Random(0), tmp_path / "killed", 0
    command = _command(data_root, endpoint, out)
    for _ in range(KILLS):
        with subprocess.Popen(
            command, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            time.sleep(rng.uniform(0.05, 1.0))
            # Counted in answers, so that a slow machine also has new ones before some of the kills.
            more = rng.choice((0, rng.randint(1, 20)))
            while process.poll() is None and _lines(out / "samples/gsm8k.jsonl") < had + more:
                time.sleep(0.005)
            assert process.poll() is None, "the run ended before it was killed: ask more questions"
            process.kill()
        now = _lines(out / "samples/gsm8k.jsonl")
        assert now >= had
        had = now
    assert 100 < had < QUESTIONS
    done = subprocess.run(
        command, env=kept, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 3, done.stderr
    whole = subprocess.run(
        _command(data_root, endpoint, tmp_path / "whole"),
        env=kept,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert whole.returncode == 3
    assert _result(out) == _result(tmp_path / "whole")
    # What a kill left without a proof was withdrawn and asked again: one answer of each stands.
    ids = [record.id for record in read(out / "samples/gsm8k.jsonl")]
    assert len(ids) == len(set(ids)) == QUESTIONS


SAMPLES = 4000
TASK = "word_problems"


@pytest.fixture
def run(tmp_path, simulated_here):
    """Return a finished run whose scores take a while to compute again."""
    done = serve_eval(
        f"run --launcher simulated --set launcher.accuracy=0.7 --no-reference -t {TASK}"
        f" --set {TASK}.num_samples={SAMPLES} --concurrency 64 -o {tmp_path}/out"
    )
    assert done.returncode == 3, done.stderr  # it has no reference
    return tmp_path / "out"


def _kill_while_scoring(command, run, share):
    """Kill a command once it has written this share of the scores. Return True if it was in time.

    It is killed whether it writes the file itself or another one beside it.
    """
    file = run / "scores" / f"{TASK}.jsonl"
    whole = file.stat()
    wanted = int(share * whole.st_size)
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", *command],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            time.sleep(0.0002)
            for place in file.parent.iterdir():
                found = place.stat() if place.exists() else whole
                new = found.st_ino != whole.st_ino or found.st_size < whole.st_size
                if new and found.st_size >= wanted:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
                    return True
    return False


def _read(run):
    """Return the report's value, the scores on file, and what the readers of the folder print."""
    [task] = read_json(run / "report.json")["tasks"]
    commands = (("show", run, "--wrong", "--all", "--brief"), ("diagnose", run))
    said = [serve_eval(*command).stdout for command in commands]
    return task["result"]["value"], dict(read_scores(run, TASK)), said


def _kill_again_and_again(run, kills):
    before, killed = _read(run), 0
    value, scores, _ = before
    assert len(scores) == SAMPLES
    for i in range(kills):
        command = (["judge", str(run)], ["run", "--resume", str(run)])[i % 2]
        killed += _kill_while_scoring(command, run, i / kills)
        assert dict(read_scores(run, TASK)) == scores
    assert killed > 0
    assert _read(run) == before
    again = serve_eval(f"judge {run} --json")
    assert json.loads(again.stdout)["result"]["tasks"][0]["result"]["value"] == value
    assert _read(run) == before
    assert not list((run / "scores").glob("*.partial"))


def test_a_few_kills_while_a_run_is_judged_again_change_nothing(run):
    _kill_again_and_again(run, 2)


@pytest.mark.slow
def test_many_kills_while_a_run_is_judged_again_change_nothing(run):
    _kill_again_and_again(run, 20)


def test_answers_that_are_asked_again_never_stand_beside_their_old_report(tmp_path, simulated_here):
    """A kill right after the old answers were put aside leaves a run without a report."""
    from serve_eval.storage.archive import archive
    from serve_eval.storage.file_names import samples_file

    out = tmp_path / "out"
    flags = f"--launcher simulated --no-reference -t {TASK}"
    serve_eval(f"run --set {TASK}.num_samples=5 -o {out} {flags}")
    assert (out / "report.json").exists()
    archive(out, "then", samples_file(out, TASK), lambda sample: True)
    assert not (out / "report.json").exists()
