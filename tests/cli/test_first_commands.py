"""Test the first commands of a user: `setup doctor` and the demo."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from serve_eval.errors import install_command
from serve_eval.workflows import doctor as workflows_doctor
from serve_eval.workflows.demo import acts
from serve_eval.workflows.doctor import EXTRAS, FILES, PROGRAMS
from tests.cli.command import environment, serve_eval
from tests.json_files import read_json
from tests.workflows.smoke.server import Quirks, create

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


SERVERS, WATCH = install_command("servers"), install_command("watch")


@pytest.fixture
def without_extras(monkeypatch):
    monkeypatch.delitem(sys.modules, "serve_eval.workflows.watch.metrics", raising=False)
    for name in ("aiohttp", "prometheus_client"):
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize("launcher", ["embedded", "simulated"])
@pytest.mark.parametrize("more", ["", "--dry-run"], ids=["run", "dry"])
def test_servers_of_ours_name_their_extra(launcher, more, data_root, tmp_path):
    given = f"--model m --tasks gsm8k --dataset-root={data_root} --no-reference"
    said = serve_eval(
        f"run --launcher {launcher} -o {tmp_path}/run {given} {more}",
        exits=2,
        tells=f"the launcher {launcher} needs the package aiohttp",
    )
    assert SERVERS in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize("more", ["", "--dry-run"], ids=["run", "dry"])
def test_a_cluster_names_its_extra(more, data_root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kr8s", None)
    given = ["--model", "m", "--tasks", "gsm8k", f"--dataset-root={data_root}", "--no-reference"]
    given += ["--set", "launcher.service=llama", "-o", str(tmp_path / "run")]
    said = serve_eval(
        f"run --launcher kubernetes {more}",
        *given,
        exits=2,
        tells="the launcher kubernetes needs the package kr8s",
    )
    assert install_command("kubernetes") in said.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_extras")
@pytest.mark.parametrize("name", ["simulated", "embedded"])
def test_their_options_are_listed_all_the_same(name):
    script = "import sys; sys.modules['aiohttp'] = None; from serve_eval.cli import main; main()"
    command = [sys.executable, "-c", script, "data", "list", "launchers", name]
    said = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    assert "strict_fields" in said.stdout


@pytest.mark.usefixtures("without_extras")
def test_the_demo_names_its_extra(tmp_path):
    serve_eval(f"setup demo -o {tmp_path}/demo", exits=2, tells=SERVERS)
    assert not (tmp_path / "demo").exists()


@pytest.mark.usefixtures("without_extras")
def test_a_server_to_be_held_names_its_extra(tmp_path):
    serve_eval(f"serve embedded -o {tmp_path}/held", exits=2, tells=SERVERS)


@pytest.mark.usefixtures("without_extras")
def test_figures_of_a_watch_name_their_extra(tmp_path):
    folder = tmp_path / "watch"
    said = serve_eval(
        f"watch http://127.0.0.1:9 --every 1h --metrics-port 0 -o {folder}",
        exits=2,
        tells="--metrics-port needs the package prometheus_client",
    )
    assert WATCH in said.stderr
    assert not folder.exists()


@pytest.mark.usefixtures("without_extras")
def test_a_watch_without_figures_needs_no_extra():
    """The dry run goes as far as the endpoint, at a port where nothing listens."""
    serve_eval(
        "watch http://127.0.0.1:9 --every 1h --rounds 1 --dry-run",
        exits=0,
        prints="nothing was sent",
    )


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("simulated_here", "_here")
def test_an_unsupported_run_is_no_reference_and_a_resumed_one_would_be_none():
    run = serve_eval(
        "run --launcher simulated --set=launcher.no_completions=true -m org/m"
        " -t word_problems,passkey_short --no-reference -o run"
    )
    assert run.stdout.count("the endpoint lacks completions") == 1, run.stdout
    assert " why      word_problems and 1 more: " in run.stdout
    done = serve_eval(
        "references register run --references-dir refs",
        exits=2,
        tells="word_problems is UNSUPPORTED there",
    )
    assert "Use chat (apply_chat_template: true)" in done.stderr
    assert "resume" not in done.stderr
    assert not Path("refs").exists()


@pytest.mark.usefixtures("simulated_here", "_here")
def test_what_stopped_several_runs_is_told_once():
    Path("s.yaml").write_text(
        "defaults: {model: org/m, no_reference: true}\nmatrix:\n  kind:\n"
        "    - {label: sound, launcher: {name: simulated}}\n"
        "    - {label: dead, base_url: '127.0.0.1:9'}\n"
        "  tasks: [{word_problems: {num_samples: 30}}, {passkey_short: {}}]\n"
    )
    done = serve_eval("run s.yaml -o out", exits=4)
    assert done.stdout.count("nothing listens on that port") == 1, done.stdout
    assert "dead_word_problems/word_problems and 1 more: EndpointError" in done.stdout
    table = serve_eval("runs export out --format table")
    assert table.stdout.count("nothing listens on that port") == 1, table.stdout


GOOD = "{label: good, launcher: simulated}"
BAD = {
    "launcher": ("{label: bad, launcher: simulatd}", "unknown launcher 'simulatd'"),
    "option": ("{label: bad, launcher: {name: simulated, acuracy: 1}}", "launcher.acuracy"),
    "value": ("{label: bad, launcher: {name: simulated, accuracy: 80}}", "is not between 0 and 1"),
    "task": ("{label: bad, launcher: simulated, tasks: [pasky_short]}", "'pasky_short'"),
    "task option": (
        "{label: bad, launcher: simulated, tasks: [{passkey_short: {sentence: 5}}]}",
        "passkey_short.sentence",
    ),
    "gpus": (
        "{label: bad, launcher: {name: trtllm_disaggregated, gpus: [0]}}",
        "2 GPUs are needed",
    ),
}


def _write(*runs):
    lines = "".join(f"    - {run}\n" for run in runs)
    Path("s.yaml").write_text(
        "defaults: {model: m, no_reference: true, tasks: [passkey_short]}\n"
        f"matrix:\n  state:\n{lines}"
    )


@pytest.mark.usefixtures("simulated_here", "_here")
@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_run_is_named_beside_the_sound_ones_and_nothing_starts(kind):
    run, said = BAD[kind]
    _write(run, GOOD, run.replace("label: bad", "label: worse"))
    dry = serve_eval(
        "run s.yaml --dry-run -o out",
        exits=2,
        prints="  good: default, verdict by reference, state good",
    )
    assert "passkey_short: 110 requests" in dry.stdout
    assert "3 runs, 2 would be refused" in dry.stdout
    for name in ("bad", "worse"):
        [listed] = [line for line in dry.stdout.splitlines() if line.startswith(f"  {name}")]
        assert f"state {name}" in listed
        assert name in dry.stderr
    assert said in dry.stdout
    assert said in dry.stderr
    done = serve_eval("run s.yaml -o out")
    assert (done.returncode, said in done.stderr, done.stdout) == (2, True, "")
    assert "run bad" in done.stderr or "runs bad, worse" in done.stderr
    assert "worse" in done.stderr
    assert not Path("out").exists()


@pytest.mark.usefixtures("simulated_here", "_here")
def test_a_dry_run_as_json_has_the_runs_that_are_wrong():
    _write(BAD["option"][0], BAD["value"][0].replace("bad", "high"), GOOD)
    done = serve_eval("run s.yaml --dry-run --json")
    told = json.loads(done.stdout)
    [refused] = told["refused"]
    assert (done.returncode, refused["name"], refused["attributes"]) == (2, "bad", {"state": "bad"})
    runs = {run["name"]: run for server in told["servers"] for run in server["runs"]}
    assert [len(runs[name]["problems"]) for name in ("good", "high")] == [0, 1]
    assert runs["high"]["tasks"][0]["requests"] == 110


@pytest.mark.usefixtures("simulated_here", "_here")
def test_what_this_machine_lacks_is_told_first_and_stops_only_its_own_run():
    _write(
        "{label: nodata, launcher: simulated, tasks: [mmlu]}",
        "{label: noprogram, launcher: {name: vllm, command: no-such-server}}",
        GOOD,
    )
    dry = serve_eval(
        "run s.yaml --dry-run", exits=2, prints="refused: the data set MMLU was not found"
    )
    assert "note: no-such-server is not on PATH here" in dry.stdout
    done = serve_eval("run s.yaml -o out")
    first = done.stderr.index("run 1 of 3")
    for warning in (
        "warning: run nodata cannot be asked or judged as a whole: the data set MMLU",
        "warning: run noprogram cannot be asked or judged as a whole: no-such-server is not on",
    ):
        assert done.stderr.index(warning) < first
    report = read_json("out/suite_report.json")
    rows = {row["run"]: row["outcome"] for row in report["rows"]}
    assert rows == {"nodata": "ERROR", "noprogram": "ERROR", "good": "NO REFERENCE"}
    assert done.returncode == 2


RUN = "run --launcher simulated --model m --limit 20 --no-reference"


@pytest.mark.usefixtures("simulated_here", "_here")
@pytest.mark.parametrize("tasks", ["passkey_short", "passkey_short,word_problems"])
def test_a_run_prints_its_first_line_and_nothing_else(tasks):
    done = serve_eval(f"{RUN} -t {tasks} -q -o out")
    assert (done.returncode, done.stderr) == (3, "")
    [line] = done.stdout.splitlines()
    assert "NO REFERENCE" in line
    whole = serve_eval("judge out").stdout
    assert whole.startswith(line)
    a, b = "out", "out2"
    serve_eval(f"{RUN} -t {tasks} -q -o {b} --set launcher.accuracy=0.5")
    compared = serve_eval(f"compare {a} {b} -q -o compared")
    assert compared.stderr == ""
    assert len(compared.stdout.splitlines()) == 1


@pytest.mark.usefixtures("simulated_here", "_here")
def test_json_stays_whole():
    done = serve_eval(f"{RUN} -t passkey_short -q --json -o out")
    report = read_json("out/report.json")
    assert (done.stderr, json.loads(done.stdout)["result"]) == ("", report)


@pytest.mark.usefixtures("simulated_here", "_here")
def test_errors_are_printed_with_their_hint():
    done = serve_eval("run --base-url 127.0.0.1:9 -t passkey_short -m m -q", exits=3)
    assert done.stderr.startswith("error: passkey_short: there is no reference file")
    assert "serve-eval references take" in done.stderr
    again = serve_eval("run -t passkey_short --no-reference -m m")
    assert again.stderr.startswith("serve-eval: "), "the next command is not quiet"


@pytest.mark.usefixtures("simulated_here", "_here")
def test_a_suite_prints_its_verdict():
    plan = "launcher: simulated, model: m, tasks: [passkey_short], limit: 5, no_reference: true"
    Path("suite.yaml").write_text(f"name: s\nplans:\n  - {{{plan}, name: a}}\n")
    done = serve_eval("run suite.yaml -q -o out")
    assert (done.returncode, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [done.stdout.strip("\n")]
    assert "suite s: 1 run" in done.stdout


@pytest.mark.usefixtures("simulated_here", "_here")
def test_a_smoke_test_prints_its_counts():
    with create(Quirks()).serve_in_thread() as url:
        done = serve_eval(f"smoke {url} -q")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert re.fullmatch(r" PASS   smoke test  \d+ passed", line)
