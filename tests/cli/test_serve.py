"""`serve-eval serve` where it starts nothing.

tests/workflows/servers/test_daemon.py starts servers.
"""

import json
import re

import pytest

from serve_eval.cli.serve import _describe, _resolve
from serve_eval.errors import PlanError
from serve_eval.plan.resolve import resolve
from serve_eval.schema import Endpoint
from serve_eval.workflows.servers import Held
from tests.cli.command import serve_eval


@pytest.fixture(autouse=True)
def _own_registry(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_dry_run_shows_commands_and_files_and_starts_nothing(tmp_path):
    settings = ["--set", "launcher.config={max_num_tokens: 1}", "--set", "launcher.gpus=[3]"]
    said = serve_eval("serve trtllm --model org/m --dry-run", *settings)
    assert said.stdout.splitlines() == [
        "files:",
        "mkdir -p logs",
        "cat > logs/trtllm.yaml <<'END'",
        "max_num_tokens: 1",
        "END",
        "commands:",
        (
            "  env CUDA_VISIBLE_DEVICES=3 trtllm-serve serve org/m --host 127.0.0.1 --port 8000"
            " --config logs/trtllm.yaml"
        ),
        "nothing was started",
    ]
    assert not (tmp_path / "state").exists()


def test_the_launcher_of_a_plan_is_taken_with_its_lines(tmp_path):
    (plan := tmp_path / "plan.yaml").write_text(
        "model: m\ntasks: [gsm8k]\nlauncher: {name: trtllm, tp: 2}\n"
    )
    found = _resolve(str(plan), "other", ["launcher.pp=2"])
    assert (found.model, found.tasks, found.launcher.options) == ("other", (), {"tp": 2, "pp": 2})
    plan.write_text("model: m\nlauncher: {name: trtllm, tpp: 2}\n")
    with pytest.raises(PlanError, match=r"plan\.yaml:2: launcher\.tpp: unknown option"):
        _resolve(str(plan), None, None)
    plan.write_text("- m\n")
    with pytest.raises(PlanError, match="expected a mapping"):
        _resolve(str(plan), None, None)


@pytest.mark.parametrize(
    ("launcher", "tasks"),
    [("embedded", ["word_problems"]), ("trtllm_disaggregated", ["gsm8k", "mmlu"])],
)
def test_the_command_that_is_told_is_one_that_can_be_run(launcher, tasks):
    url = "http://127.0.0.1:1/v1"
    held = Held(
        id="0a",
        state="ready",
        launcher=launcher,
        model="org/m",
        pid=1,
        began="",
        since="",
        log_dir="/logs",
        patience_s=1.0,
        endpoint=Endpoint(base_url=url),
    )
    told = dict(
        line.split(":", 1) for line in _describe(held, launcher, detached=True).splitlines()
    )
    words = told["evaluate"].split()
    assert words[:2] == ["serve-eval", "run"]
    flags = {
        name[2:].replace("-", "_"): value
        for name, value in zip(words[2::2], words[3::2], strict=True)
    }
    plan = resolve({}, {**flags, "tasks": flags["tasks"].split(",")}, {}).plan
    assert (flags["base_url"], plan.model, [task.name for task in plan.tasks]) == (
        url,
        "org/m",
        tasks,
    )


def test_the_list_names_the_folder_that_a_server_was_started_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    started = serve_eval("serve embedded --detach", exits=0)
    number = re.findall(r"^id: +(\w+)$", started.stdout, re.MULTILINE)[0]
    listed = serve_eval("serve --list -v").stdout
    told = json.loads(serve_eval("serve --list --json").stdout)
    [command] = told["commands"]
    stopped = serve_eval(*command.split()[1:], exits=0)
    assert stopped.stdout.startswith(
        f" STOPPED   {number}  embedded: embedded at http://127.0.0.1:"
    )
    assert listed.startswith(f" READY   {number}  embedded: embedded at http://127.0.0.1:")
    [server] = told["result"]["servers"]
    assert (server["id"], server["state"], server["started_in"]) == (number, "ready", str(tmp_path))
    assert f"  {tmp_path}  {server['log_dir']}\n" in listed, listed
    assert serve_eval("serve --list -q").stdout.startswith(" NO SERVERS ")


def test_of_the_settings_in_the_environment_those_of_the_launcher_count(
    monkeypatch,
):
    monkeypatch.setenv("SERVE_EVAL_SET", "gsm8k.num_fewshot=3\nlauncher.tp=2\n")
    assert _resolve("trtllm", "m", None).launcher.options == {"tp": 2}
    assert _resolve("trtllm", "m", ["launcher.pp=2"]).launcher.options == {"pp": 2}


@pytest.mark.parametrize(
    "arguments", ["", "trtllm --list", "trtllm --stop all", "--list --stop all"]
)
def test_one_thing_is_done_at_a_time(arguments):
    serve_eval(
        f"serve {arguments}", exits=2, tells="give one of: a launcher, a plan file, --list, --stop"
    )


def test_nothing_is_held_at_first():
    nothing = " NO SERVERS   this machine  no servers are running\n"
    assert serve_eval("serve --list").stdout == nothing
    ended = serve_eval("serve --stop all")
    assert (ended.returncode, ended.stdout) == (0, nothing)
    serve_eval(
        "serve --stop 0a1b2c3d",
        exits=2,
        tells="no servers 0a1b2c3d run on this machine; running: none",
    )


def test_a_folder_that_cannot_be_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "file").touch()
    serve_eval(
        f"serve trtllm --model m -o {tmp_path}/file", exits=2, tells="cannot write: File exists"
    )
