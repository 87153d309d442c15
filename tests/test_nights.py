"""Run docs/night.sh, which docs/ci.md recommends: two images, alert, page; sound, damaged, dying.

The images are the stand-in for trtllm-serve. tests/peers has a night of a real llama-server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from serve_eval.schema import Plan, Spec
from tests.cli.command import environment
from tests.root import ROOT
from tests.standin.deployments import write_answers

PROGRAMS = Path(sys.executable).parent
"""The folder with the command serve-eval of these tests."""


@dataclass(frozen=True)
class Night:
    """The result of a night: exit code, the text sent, a line for each alert, and folder."""

    code: int
    sent: str
    alerts: dict[str, str]
    folder: Path
    annotations: list[str]

    @property
    def pages(self):
        return {page.parent.name for page in self.folder.glob("*/report.html")}

    @property
    def lines(self):
        return "\n".join(self.alerts.values())


def read_script() -> str:
    """Return the script that the page links."""
    assert "](night.sh)" in (ROOT / "docs/ci.md").read_text()
    return (ROOT / "docs/night.sh").read_text()


def variables(folder):
    """Return an environment in which servers and caches of other tests are not seen."""
    path = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"
    own = {"XDG_STATE_HOME": str(folder / "state"), "XDG_CACHE_HOME": str(folder / "cache")}
    # Errors are read line by line.
    return environment(PATH=path, HOME=str(folder), TMPDIR=str(folder), **own)


def serve_eval(folder, *words):
    """Run a command in the folder of the nights."""
    return subprocess.run(
        ["serve-eval", *words],
        cwd=folder,
        env=variables(folder),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def write_known(folder, plan):
    """Write what fails on the servers of a plan today, and return the name of the file."""
    served = serve_eval(folder, "serve", plan, "--detach")
    assert served.returncode == 0, served.stderr
    told = dict(line.split(": ", 1) for line in served.stdout.splitlines() if ": " in line)
    url, number = told["base URL"].strip(), told["id"].strip()
    try:
        serve_eval(folder, "smoke", url, "--write-known", "known.json")
    finally:
        assert serve_eval(folder, "serve", "--stop", number).returncode == 0
    assert (folder / "known.json").exists()
    return "known.json"


def spend_night(folder, old, new, **more):
    """Run the script for two plans of a folder. No server may be left."""
    (folder / "night.sh").write_text(read_script())
    night = folder / f"night-{Path(new).stem}"
    env = {**variables(folder), "OLD": old, "NEW": new, **more}
    ended = subprocess.run(
        ["sh", "night.sh", night.name],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    listed = serve_eval(folder, "serve", "--list").stdout
    assert listed.startswith(" NO SERVERS ")
    file = night / "alerts.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    assert len(ended.stdout.splitlines()) <= 1, ended.stdout
    if lines:
        mark = "REHEARSAL, " if more.get("REHEARSE") else ""
        assert ended.stdout.startswith(f"{mark}{Path(new).name} against {Path(old).name}: ")
        assert any(line in ended.stdout for line in lines)
    alerts = {line.split()[0].rstrip(":"): line for line in lines}
    marked = [line for line in ended.stderr.splitlines() if line.startswith("::")]
    return Night(ended.returncode, ended.stdout.strip(), alerts, night, marked)


STAND_IN = [sys.executable, "-P", "-m", "serve_eval.launchers._standin"]
SAMPLES = 120
ASKED = {"TASKS": "word_problems", "LIMIT": str(SAMPLES), "FLOOR": "0.1"}
STEPS = {"smoke", "verify", "compare"}


@pytest.fixture
def images(tmp_path):
    """Return a folder with plans of the same model, each with an image of its own."""
    task = Spec(name="word_problems", options={"num_samples": SAMPLES})
    every = Plan(
        model="M",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name=task.name),),
        no_reference=True,
    )
    answers = write_answers(every, tmp_path / "answers.jsonl")
    images = {
        "old": None,
        "sound": None,
        "damaged": {"corrupt_after": 0, "share": 0.7},
        "dying": {"crash_after": 300},
        "early": {"crash_after": 60},
        "fragile": {"crash_after": 8},
        "slow": None,
        "broken": {"crash_at_start": 1, "last_words": "RuntimeError: no kernel image"},
    }
    for number, (name, faults) in enumerate(images.items()):
        env = {"STANDIN_ANSWERS": str(answers), "STANDIN_SKILLS": "1"}
        env |= {"STANDIN_FAULTS": json.dumps(faults)} if faults else {}
        env |= {"STANDIN_LOAD_S": "120"} if name == "slow" else {}
        launcher = {"name": "trtllm", "gpus": [number], "command": STAND_IN, "env": env}
        plan = {"model": "M", "tasks": [{task.name: dict(task.options)}], "launcher": launcher}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(plan))
    split = {
        "name": "trtllm_disaggregated",
        "gpus": [8, 9],
        "command": STAND_IN,
        "env": {"STANDIN_ANSWERS": str(answers), "STANDIN_SKILLS": "1"},
    }
    plan = {"model": "M", "tasks": [{task.name: dict(task.options)}], "launcher": split}
    (tmp_path / "split.yaml").write_text(yaml.safe_dump(plan))
    return tmp_path


def test_an_image_that_does_not_start_is_an_alert(images):
    night = spend_night(images, "old.yaml", "broken.yaml", **ASKED)
    assert night.code == 4
    assert list(night.alerts) == ["new"]
    assert re.fullmatch(
        r"new did not start: error: trtllm ended with exit code 1 after \S+ s: RuntimeError: no"
        rf" kernel image \({night.folder.name}/new\.log\)",
        night.lines,
    )
    viewed = serve_eval(images, "runs", "view", ".", "-o", "all.html")
    assert re.search("ERROR +serve: broken.yaml", viewed.stdout), viewed.stdout


def test_a_command_that_says_no_error_is_quoted(images):
    (images / "bin").mkdir()
    command = images / "bin/serve-eval"
    command.write_text("#!/bin/sh\necho 'Segmentation fault' >&2\necho >&2\nexit 3\n")
    command.chmod(0o755)
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    night = spend_night(images, "old.yaml", "sound.yaml", PATH=path)
    assert night.code == 3
    log = f"{night.folder.name}/old.log"
    assert night.lines == f"old did not start: Segmentation fault ({log})"


def test_a_folder_of_another_night_is_refused(tmp_path):
    (tmp_path / "night-sound").mkdir()
    night = spend_night(tmp_path, "old.yaml", "sound.yaml", **ASKED)
    assert (night.code, night.lines) == (2, "")
    assert [*night.folder.iterdir()] == []


def test_a_plan_twice_is_no_comparison(images):
    night = spend_night(images, "old.yaml", "old.yaml", **ASKED)
    assert night.code == 2
    assert night.lines.startswith("old and new are the same servers (http://")
    assert not night.pages


def test_servers_of_another_night_are_not_taken_for_those_of_this_one(images):
    # What a night leaves that KILL ended, or one that still runs.
    served = serve_eval(images, "serve", "old.yaml", "--detach", "-o", "yesterday/old")
    assert served.returncode == 0, served.stderr
    other = serve_eval(images, "serve", "sound.yaml", "--detach", "-o", "yesterday/new")
    assert other.returncode == 0, other.stderr
    number, second = re.findall(r"^id: +(\S+)$", served.stdout + other.stdout, re.MULTILINE)
    try:
        again = serve_eval(images, "serve", "old.yaml", "--detach", "-o", "today/old")
        assert again.returncode == 0
        assert "nothing was started: the servers of this plan are up already" in again.stderr
        (images / "night.sh").write_text(read_script())
        env = {**variables(images), "OLD": "old.yaml", "NEW": "sound.yaml", **ASKED}
        night = subprocess.run(
            ["sh", "night.sh", "night"],
            cwd=images,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert night.returncode == 2, night.stdout + night.stderr
        said = night.stdout.strip()
        logs = images / "yesterday/old/logs"
        assert said.endswith(
            f"old was not started: its servers are up already ({logs}); end them if nothing uses"
            f" them: serve-eval serve --stop {number}; serve-eval serve --stop {second}"
        ), said
        assert not (images / "night/smoke").exists()
        assert f"{number}  READY" in serve_eval(images, "serve", "--list", "-v").stdout
    finally:
        for one in (number, second):
            assert serve_eval(images, "serve", "--stop", one).returncode == 0


@pytest.mark.slow
def test_a_sound_image_sends_nothing(images):
    known = write_known(images, "old.yaml")
    github = {"GITHUB_ACTIONS": "true", "KNOWN": known}
    night = spend_night(images, "old.yaml", "sound.yaml", **ASKED, **github)
    assert (night.code, night.lines, night.annotations) == (0, "", [])
    assert night.pages == STEPS
    outcomes = {step: (night.folder / step / "summary.md").read_text() for step in STEPS}
    assert {step: text.split()[0] for step, text in outcomes.items()} == {
        "smoke": "PASS",
        "verify": "IDENTICAL",
        "compare": "PASS",
    }


@pytest.mark.slow
def test_a_damaged_image_fails_and_says_where(images):
    night = spend_night(images, "old.yaml", "damaged.yaml", GITHUB_ACTIONS="true", **ASKED)
    assert night.code == 1
    assert night.alerts["verify"].startswith("verify ended with 1: ")
    drop = r"B \d+\.\d against A \d+\.\d \(drop \d+\.\d \[\d+\.\d, \d+\.\d\]\)"
    said = rf"compare ended with 1: FAIL word_problems .*{drop}"
    assert re.match(said, night.alerts["compare"]), night.alerts
    for step, line in night.alerts.items():
        assert line.partition("; next: ")[0].count(f"{night.folder.name}/{step}") == 1
        assert "\\" not in line
        assert any(one.startswith("::error title=serve-eval") for one in night.annotations)
    assert night.pages == STEPS
    told = serve_eval(images, "runs", "view", ".", "-o", "all.html").stdout
    pair = r": damaged\.yaml against old\.yaml"
    assert re.search(rf"FAIL +compare: .*{pair} .*B \d+\.\d / A \d+\.\d ", told), told
    assert re.search(r"FAIL +smoke: .*: damaged\.yaml", told), told
    assert "next: serve-eval diagnose night-damaged/compare" in night.sent
    assert re.search(r" \(\+\d more in ", night.sent)
    page = (night.folder / "compare/report.html").read_text()
    assert '<strong class="badge">FAIL</strong>' in page


@pytest.mark.slow
def test_without_a_floor_a_night_says_how_to_measure_one(images):
    asked = {name: value for name, value in ASKED.items() if name != "FLOOR"}
    night = spend_night(images, "old.yaml", "damaged.yaml", **asked)
    assert re.match(r"verify ended with [13]: (UNDECIDED|FAULT OF SINGLE)", night.alerts["verify"])
    words = ["verify", "old.yaml", "--sibling", "sound.yaml", "--register", "floor.json"]
    measured = serve_eval(images, *words)
    assert re.search(r"noise +\S+ nat, floor \S+ nat", measured.stdout), measured


@pytest.mark.slow
def test_an_image_that_dies_is_not_a_regression(images):
    night = spend_night(images, "old.yaml", "dying.yaml", **ASKED)
    assert night.code == 4
    assert list(night.alerts) == ["compare"]
    assert "no server listens at" in night.lines
    log = next((night.folder / "new/logs").glob("trtllm*.log"))
    assert re.search(
        rf"trtllm ended with exit code \d+ after \S+ s\. Its log is \S*{log.name}", night.sent
    )


def test_a_server_that_dies_in_the_smoke_test_is_an_error(images):
    night = spend_night(images, "old.yaml", "fragile.yaml", **ASKED)
    assert night.code == 4
    assert night.alerts["smoke"].startswith(
        "smoke: the servers of new have ended (night-fragile/new/logs): ERROR smoke test "
    )
    said = r": the server died during \w+, .*; .* trtllm ended with exit code \d+ after"
    assert re.search(said, night.alerts["smoke"]), night.alerts
    assert night.sent.startswith("fragile.yaml against old.yaml: smoke: the servers of new have")
    viewed = serve_eval(images, "runs", "view", ".", "-o", "all.html").stdout
    assert re.search(r"^ ERROR +smoke: .*fragile\.yaml", viewed, re.MULTILINE), viewed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("new", ["slow.yaml", "sound.yaml"])
def test_a_night_that_is_interrupted_leaves_no_server(number, new, images):
    (images / "night.sh").write_text(read_script())
    env = {**variables(images), "OLD": "old.yaml", "NEW": new, **ASKED}
    with subprocess.Popen(
        ["sh", "night.sh", "night"], cwd=images, env=env, stdout=subprocess.PIPE, text=True
    ) as night:
        awaited = {"slow.yaml": "new/logs/trtllm.log", "sound.yaml": "smoke.log"}[new]
        deadline = time.monotonic() + 60
        while not (images / "night" / awaited).exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        night.send_signal(number)
        said, _ = night.communicate(timeout=30)  # Its start takes longer.
    assert night.returncode == 130
    during = {"slow.yaml": "the start of new", "sound.yaml": "smoke"}[new]
    assert said == f"{new} against old.yaml: interrupted during {during} (night)\n"
    assert serve_eval(images, "serve", "--list").stdout.startswith(" NO SERVERS ")


def test_a_night_has_a_limit_of_time(images):
    began = time.monotonic()
    night = spend_night(images, "old.yaml", "slow.yaml", HOURS="0.004", **ASKED)
    assert time.monotonic() - began < 60  # The start takes longer.
    assert night.code == 4
    assert night.lines == "new did not start within 0.004 hours (night-slow/new.log)"


@pytest.mark.slow
def test_steps_that_need_a_dead_server_are_not_run(images):
    night = spend_night(images, "old.yaml", "early.yaml", **ASKED)
    assert night.alerts["compare"].startswith(
        "compare was not run: the servers of new have ended (night-early/new/logs)"
    )
    assert not (night.folder / "compare").exists()
    assert list((night.folder / "new/logs").glob("*.log"))


@pytest.mark.slow
@pytest.mark.parametrize("rehearse", ["", "1"])
def test_a_disaggregated_image_against_an_aggregated_one(images, rehearse):
    night = spend_night(images, "old.yaml", "split.yaml", REHEARSE=rehearse, HEARTBEAT="1", **ASKED)
    assert {step: (night.folder / step).exists() for step in STEPS} == dict.fromkeys(STEPS, True)
    assert "--model" not in night.lines
    if rehearse:
        assert night.sent == (
            "REHEARSAL, split.yaml against old.yaml: OK, every step passed (night-split)"
        )
        for step in ("smoke", "verify", "compare"):
            assert (night.folder / f"{step}.line").read_text().startswith("REHEARSAL: ")
        viewed = serve_eval(images, "runs", "view", ".", "-o", "all.html").stdout
        assert "passed" not in viewed, viewed
    else:
        assert (night.code, night.lines) == (0, "")
        assert night.sent == "split.yaml against old.yaml: OK, every step passed (night-split)"


@pytest.mark.slow
@pytest.mark.parametrize(("image", "code"), [("sound", 0), ("damaged", 1)])
def test_a_night_against_last_weeks_reference(image, code, images):
    taken = serve_eval(
        images,
        *("references", "take", "old.yaml", "--runs", "2", "--references-dir", "references"),
        *("--reason", "week 31", "-o", "week-31"),
    )
    assert taken.returncode == 0, taken.stderr
    night = spend_night(images, "old.yaml", f"{image}.yaml", REFERENCES="references", **ASKED)
    assert night.code == code
    assert night.pages == {*STEPS, "reference"}
    report = json.loads((night.folder / "reference/report.json").read_text())
    [task] = report["tasks"]
    assert task["verdict"]["outcome"] == ("FAIL" if code else "PASS")
    assert task["reference"]["file"].endswith("references/word_problems.yaml")
    assert ("reference" in night.alerts) is bool(code)
