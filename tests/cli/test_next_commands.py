"""Test that each command named next runs as printed, also after a night that died."""

import fcntl
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest

from serve_eval.plan.command_line import TRUSTED
from serve_eval.report.document import name_state
from serve_eval.report.page.content import TextLines
from serve_eval.schema import Spec
from serve_eval.workflows.diagnose.evidence import read
from serve_eval.workflows.view.document import make_document
from serve_eval.workflows.view.overview import read_folder
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json
from tests.standin.deployments import free_port
from tests.workflows.diagnose.server import Said, Server, answers_to, sound

pytestmark = pytest.mark.usefixtures("simulated_here")

SAMPLES = 60
ASKED = "--model simulated --tasks word_problems"
RUNS = {
    "PASS": ("accuracy=1.0",),
    "FAIL": ("accuracy=0.3",),
    "FAIL, cut": ("accuracy=1.0", "truncate_rate=0.6"),
    "ERROR": ("crash_after=20",),
    "INCONCLUSIVE": ("accuracy=0.8", "failure_rate=0.3"),
    "INCONCLUSIVE, repaired": ("accuracy=0.8", "failure_rate=0.1", "failures_per_prompt=1"),
    "NO REFERENCE": ("accuracy=0.9",),
}
USAGE = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory, simulated_here):
    """Return the folder of a run for each outcome."""
    top = tmp_path_factory.mktemp("runs")
    (top / "refs").mkdir()
    text = "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
    (top / "refs/word_problems.yaml").write_text(text)
    for number, (name, options) in enumerate(RUNS.items()):
        judged = ("--no-reference",) if name == "NO REFERENCE" else ("--references-dir", "refs")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(top)
            done = serve_eval(
                f"run --launcher simulated --limit {SAMPLES} --set limits.max_error_rate=1"
                f" --json -o r{number} {ASKED}",
                *(f"--set=launcher.{one}" for one in options),
                *judged,
            )
        ended = '{"outcome": "ERROR", "commands": []}'  # its server died, so it has no result
        told = json.loads(done.stdout or ended)
        assert told["outcome"] == name.partition(",")[0], done.stderr
        (top / f"r{number}/printed.json").write_text(done.stdout or ended)
    return {name: top / f"r{number}" for number, name in enumerate(RUNS)}


def _list_next(*command):
    """Return the commands that a command names next, and check that -v prints them alike."""
    told = serve_eval(*map(str, command), "--json")
    commands = json.loads(told.stdout)["commands"]
    shown = serve_eval(*map(str, command)).stdout.splitlines()
    assert all(any(line.endswith(f" {one}") for line in shown) for one in commands[:3])
    return [str(one) for one in commands]


def _run_each(commands):
    """Yield each command as it was printed, with its exit code; it is no wrong command."""
    for one in commands:
        words = [word.replace(TRUSTED, f"127.0.0.1:{free_port()}") for word in shlex.split(one)]
        assert words[0] == "serve-eval"
        done = serve_eval(*words[1:])
        assert done.returncode != USAGE, f"{one}: {done.stderr}"
        yield one, done.returncode


@pytest.mark.parametrize("name", RUNS)
def test_what_a_run_its_verdict_and_its_diagnosis_name_next_runs(folders, name, monkeypatch):
    run = folders[name]
    monkeypatch.chdir(run.parent)
    place = Path(run.name)
    printed = read_json(place / "printed.json")["commands"]
    references = () if name == "NO REFERENCE" else ("--references-dir", "refs")
    found = {
        "run": printed,
        "judge": [] if name == "ERROR" else _list_next("judge", place, *references),
        "diagnose": _list_next("diagnose", place),
    }
    assert bool(found["diagnose"]) is (name != "PASS")
    assert all(len(found[one]) <= 3 for one in ("diagnose",))
    commands = list(dict.fromkeys(one for each in found.values() for one in each))
    _check_looks(commands)


@pytest.mark.parametrize("name", ["PASS", "FAIL, cut", "INCONCLUSIVE"])
def test_what_a_comparison_of_runs_and_its_diagnosis_name_next_runs(folders, name, monkeypatch):
    top = folders[name].parent
    monkeypatch.chdir(top)
    b, out = folders[name].name, f"c{folders[name].name}"
    done = serve_eval("compare", folders["PASS"].name, b, "--json", "-o", out)
    told = json.loads(done.stdout)
    commands = [*told["commands"], *_list_next("diagnose", out)]
    assert bool(commands) is (name != "PASS"), told["outcome"]
    _check_looks(commands)


def _check_looks(commands):
    """Run each command; those that only read a folder find what they name."""
    for one, code in _run_each(commands):
        assert code == 0 or one.split()[1] not in ("diagnose", "show"), one


def _cut(asked):
    loops = asked.chance("cut") < 0.7
    return Said(text="so", finish="length", tokens=64) if loops else sound(asked)


def test_servers_that_are_there_can_be_verified_and_asked(tmp_path, monkeypatch):
    """Of a comparison of two endpoints, and of one with its launcher's servers: those are gone."""
    monkeypatch.chdir(tmp_path)
    answers = answers_to(Spec(name="word_problems", options={"num_samples": 500}))
    a, b = Server(act=sound, answers=answers), Server(act=_cut, answers=answers)
    limits = f"--model m --tasks word_problems --limit {SAMPLES} --self 0"
    with ExitStack() as stack:
        one, other = (stack.enter_context(x.scripted.serve_in_thread()) for x in (a, b))
        serve_eval(f"compare {one} {other} -o c {limits}", exits=1)
        commands = _list_next("diagnose", "c")
        assert commands[0].startswith(f"serve-eval verify {one} {other}"), commands
        assert commands[1].startswith("serve-eval show c/b test-")
        _check_looks(commands)
    serve_eval(
        f"run --launcher simulated --limit {SAMPLES} --no-reference"
        f" --set=launcher.accuracy=0.1 -o gone {ASKED}",
        exits=3,
    )
    shown = serve_eval("diagnose gone -v").stdout
    assert "127.0.0.1" not in shown, "the server of the run ended with it"


def test_a_side_of_a_comparison_goes_on_with_it_alone(tmp_path, monkeypatch):
    """A side that is resumed by itself leaves a comparison of other answers behind."""
    monkeypatch.chdir(tmp_path)
    answers = answers_to(Spec(name="word_problems", options={"num_samples": 500}))
    a, b = Server(act=sound, answers=answers), Server(act=_refuse, answers=answers)
    asked = f"--model m --tasks word_problems --limit {SAMPLES} --self 0"
    with ExitStack() as stack:
        sides = [stack.enter_context(x.scripted.serve_in_thread()) for x in (a, b)]
        done = serve_eval(f"compare -o c {asked}", *sides)
    assert (tmp_path / "c/comparison.json").exists(), done.stderr
    commands = _list_next("diagnose", "c")
    assert commands
    assert not any("--resume" in one for one in commands)
    again = f"the same serve-eval compare command with -o {tmp_path / 'c'}"
    assert read(tmp_path / "c/b").resume == again
    _check_looks(commands)


def _refuse(asked):
    refused = asked.chance("refused") < 0.06
    return Said(text="no", status=400) if refused else sound(asked, 0.4)


def test_what_ended_early_goes_on_as_its_diagnosis_says(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    gone = f"http://127.0.0.1:{free_port()}/v1"
    asked = "--model m --tasks word_problems --no-reference"
    serve_eval(f"run --base-url {gone} -o run {asked}", exits=4)
    plans = [{"name": "gone", "launcher": {"external": {"base_url": gone}}}]
    suite = {
        "defaults": {"model": "m", "tasks": ["word_problems"], "no_reference": True},
        "plans": plans,
    }
    Path("suite.yaml").write_text(json.dumps(suite))
    serve_eval("run suite.yaml -o suite", exits=4)
    expected = {"run": ["serve-eval run --resume run"], "suite": ["serve-eval run --resume suite"]}
    for folder, commands in expected.items():
        assert _list_next("diagnose", folder) == commands
        assert [code for _, code in _run_each(commands)] == [4], "nothing listens there"


def test_what_a_suite_and_its_diagnosis_name_next_runs(folders, monkeypatch):
    monkeypatch.chdir(folders["PASS"].parent)
    plans = [
        {"name": name, "launcher": {"simulated": {"accuracy": accuracy}}}
        for name, accuracy in (("good", 1.0), ("bad", 0.3))
    ]
    task = {"word_problems": {"num_samples": SAMPLES}}
    defaults = {"model": "simulated", "references_dir": "refs", "tasks": [task]}
    Path("s.yaml").write_text(json.dumps({"defaults": defaults, "plans": plans}))
    told = json.loads(serve_eval("run s.yaml -o s --json").stdout)
    assert told["outcome"] == "FAIL"
    assert told["commands"]
    _check_looks([*told["commands"], *_list_next("diagnose", "s")])


NIGHT = ("-m", "org/m", "--tasks", "word_problems", "--limit", "5")


@pytest.fixture
def nobody():
    """Return an address where nothing listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{closed.getsockname()[1]}"


def _begun(folder, plan, summary=""):
    folder.mkdir(parents=True)
    (folder / plan).write_text("{}")
    if summary:
        (folder / "summary.md").write_text(f"{summary}\n\n### more\n")
    return folder


def _view(folder):
    return make_document(read_folder(folder))


@pytest.mark.parametrize("command", ["compare", "verify", "check load", "run"])
def test_a_command_that_died_is_told_with_its_own_remedy(command, nobody, tmp_path):
    out = tmp_path / "nights" / command.split()[-1]
    asked = {
        "compare": (nobody, "127.0.0.1:1", *NIGHT),
        "verify": (nobody, "127.0.0.1:1", "-m", "org/m"),
        "check load": (nobody, *NIGHT),
        "run": ("--base-url", nobody, "--no-reference", *NIGHT),
    }
    serve_eval(*command.split(), *asked[command], "-o", out, exits=4)
    said = serve_eval(f"runs view {tmp_path}/nights -o {tmp_path}/v.html")
    lines = said.stdout.splitlines()
    assert "1 ended without a result; no drift alarm" in lines[0]
    assert " ".join(lines[2].split()).startswith(f"ERROR {command} ")
    [row] = [line for line in lines if line.startswith(" why")]
    assert "nothing listens on that port" in row
    way = f"run --resume {out}" if command == "run" else f"{command} with -o {out}"
    assert row.endswith(f"serve-eval {way}")
    # Only what can be run as it stands is a command.
    nexts = [line.split() for line in lines if line.startswith(" next")]
    assert nexts == ([["next", "serve-eval", "run", "--resume", str(out)]] * (command == "run"))


@pytest.mark.parametrize(
    ("plan", "command"),
    [
        ("plan.json", "run"),
        ("compare.json", "compare"),
        ("suite.json", "suite"),
        ("load_plan.json", "load"),
        ("tools_plan.json", "tools"),
        ("invariants_plan.json", "invariants"),
        ("verify_plan.json", "verify"),
    ],
)
def test_a_killed_command_and_an_interrupted_one_are_told_apart(plan, command, tmp_path):
    _begun(tmp_path / "1", plan)
    _begun(tmp_path / "2", plan, f"INTERRUPTED {command} h:1 a\\_b: no result; by a signal; /x")
    _begun(tmp_path / "3", plan, f"PASS {command}: 80; /x")  # the line of an earlier session
    document = _view(tmp_path)
    assert document.verdict == "KILLED"
    assert name_state(document.verdict) == "fail"
    assert "3 ended without a result; no drift alarm" in document.counted
    assert [(one.outcome, one.name) for one in document.conclusions] == [
        ("KILLED", command),
        ("KILLED", command),
        ("INTERRUPTED", f"{command} h:1 a_b"),
    ]


def test_sides_belong_to_their_comparison_and_old_nights_are_no_failure(tmp_path):
    old = _begun(tmp_path / "old", "compare.json")
    _begun(old / "a", "plan.json")
    _begun(old / "b", "plan.json")
    long_ago = datetime(2020, 1, 1, tzinfo=UTC).timestamp()
    os.utime(old / "compare.json", (long_ago, long_ago))
    _begun(tmp_path / "new", "tools_plan.json", "INTERRUPTED tools h:1: no result")
    document = _view(tmp_path)
    assert [one.outcome for one in document.conclusions] == ["INTERRUPTED"]
    [old] = document.statements
    assert old.text.startswith("compare: KILLED: ended without a result, 2020-01-01")


def test_a_command_that_still_runs_has_not_ended(tmp_path):
    _begun(tmp_path / "dead", "plan.json")
    running = _begun(tmp_path / "running", "plan.json")
    with (running / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        document = _view(tmp_path)
    assert "1 ended without a result" in document.counted


def test_a_verify_that_still_runs_has_not_ended(tmp_path):
    out = tmp_path / "nights" / "verify"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts and never answers.
        at = f"127.0.0.1:{silent.getsockname()[1]}"
        words = ("verify", at, "127.0.0.1:1", "-m", "org/m", "-o", str(out))
        command = [sys.executable, "-m", "serve_eval", *words]
        with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE) as running:
            deadline = time.monotonic() + 60
            while not list(out.glob("*.json")) and running.poll() is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            said = serve_eval(f"runs view {tmp_path}/nights -o {tmp_path}/v.html").stdout
            assert running.poll() is None
            running.kill()
    assert "KILLED" not in said, said
    after = serve_eval(f"runs view {tmp_path}/nights -o {tmp_path}/v.html").stdout
    assert "KILLED" in after


def test_the_note_names_the_command_of_unfinished_parts(tmp_path):
    serve_eval(f"run --launcher simulated -o {tmp_path}/ok --no-reference", *NIGHT)
    _begun(_begun(tmp_path / "cmp", "compare.json") / "a", "plan.json")
    sections = [block.section for block in _view(tmp_path).blocks]
    [notes] = [one for one in sections if isinstance(one, TextLines)]
    [note] = [line for line in notes.lines if "unfinished" in line]
    assert note == (
        "left out, because they are unfinished: 1; to finish them: 1 of serve-eval compare, with"
        " the same command and -o FOLDER"
    )
