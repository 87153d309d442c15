"""Test the first commands of a user: `setup doctor` and the demo."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serve_eval.workflows import doctor as workflows_doctor
from serve_eval.workflows.demo import acts
from serve_eval.workflows.doctor import EXTRAS, FILES, PROGRAMS
from tests.cli.command import serve_eval
from tests.json_files import read_json

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("soft", "hard", "state"),
    [(256, FILES, "ok"), (256, -1, "ok"), (256, FILES - 1, "problem"), (64, 64, "problem")],
)
def test_too_few_open_files_are_a_problem_with_a_fix(soft, hard, state):
    found = workflows_doctor._look_at_files(soft, hard)
    assert found.state == state
    assert bool(found.fix) == (state == "problem")


def test_gpus_are_counted_by_kind():
    assert workflows_doctor._look_at_gpus(["H100", "H100", "A10"]).text == "2 x H100, 1 x A10"
    assert workflows_doctor._look_at_gpus(None).state == "absent"


def test_an_extra_names_the_packages_that_it_lacks():
    lines = ["numpy>=2", "no-such-package>=1; extra == 'hub'", 'pyyaml; extra == "hub"']
    hub = next(one for one in workflows_doctor._look_for_extras(lines) if one.name == "[hub]")
    assert (hub.state, hub.text) == ("absent", "without no-such-package; needed by data fetch")
    assert hub.fix.endswith("[hub]'")


def test_every_extra_and_only_real_launchers_are_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS} == {*project["optional-dependencies"]} - {"dev", "trtllm"}
    for purpose in PROGRAMS.values():
        for launcher in re.findall(r"\b[a-z]+_[a-z_]+\b", purpose):
            assert (ROOT / "launchers" / f"{launcher}.py").exists(), launcher


def test_the_command_says_first_whether_runs_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = serve_eval("setup doctor", COLUMNS="80", OPENAI_API_KEY="sk-never-printed", exits=0)
    assert re.match(r" READY   \d+ parts: \d+ ABSENT, \d+ OK\n", done.stdout)
    assert "\n works    runs against endpoints\n" in done.stdout
    assert len(done.stdout.splitlines()) <= 22
    told = json.loads(serve_eval("setup doctor --json", OPENAI_API_KEY="sk-never-printed").stdout)
    found = told["result"]
    states = {one["name"]: one["state"] for one in found["findings"]}
    assert (states["serve-eval"], states["key"]) == ("ok", "ok")
    assert "sk-never-printed" not in json.dumps(told) + done.stdout
    whole = " ".join(serve_eval("setup doctor -v", COLUMNS="80").stdout.split())
    for one in found["findings"]:
        assert one["name"] in done.stdout
        assert " ".join(one["fix"].split()) in whole
    [command] = told["commands"]
    serve_eval(*shlex.split(command)[1:], HOME=str(tmp_path), exits=0)


def test_too_few_open_files_come_first_with_their_fix_and_fail_in_ci(tmp_path):
    junit = tmp_path / "junit.xml"
    doctor = [sys.executable, "-m", "serve_eval", "setup", "doctor", "--junit", str(junit)]
    limited = ["bash", "-c", f"ulimit -n 1000 && {shlex.join(doctor)}"]
    done = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(" PROBLEM   ")
    assert lines[2].split() == ["PROBLEM", "1", "open", "files"]
    assert any(line.startswith(" why      open files: at most 1,000: a run has") for line in lines)
    assert any(line.startswith(" fix      open files: ulimit -Hn 4096") for line in lines)
    assert 'failures="1"' in junit.read_text()


@pytest.mark.slow
def test_every_act_of_the_demo_ends_as_expected_and_leaves_a_page(tmp_path):
    serve_eval(f"setup demo -o {tmp_path}/demo", exits=0)
    for act in acts():
        folder = tmp_path / "demo" / act.name
        (task,) = read_json(folder / "report.json")["tasks"]
        assert task["result"]["scored"] == 500
        assert f"<title>run: {task['verdict']['outcome']} " in (folder / "report.html").read_text()
    (seen,) = read_json(tmp_path / "demo/int4-g32/report.json")["tasks"]
    assert (seen["verdict"]["outcome"], seen["verdict"]["rule"]) == ("FAIL", "paired")
    (power,) = read_json(tmp_path / "demo/int4-g32-classic/report.json")["tasks"]
    assert (power["verdict"]["outcome"], power["verdict"]["rule"]) == ("PASS", "classic")
    assert power["verdict"]["paired"]["finding"] == "FAIL"
