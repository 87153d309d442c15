"""Presets and efforts through the command line, on real sockets."""

import json
import re
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import yaml

from serve_eval.launchers._standin.faults import Faults
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.launchers._standin.worker import create
from serve_eval.launchers._standin.worker_config import WorkerConfig
from serve_eval.protocol.presets import read_presets
from tests.cli.command import serve_eval
from tests.json_files import read_json
from tests.scripted_server import ScriptedServer, answer, fail, models
from tests.scripted_server.server import serve_in_thread
from tests.workflows.smoke.server import Quirks
from tests.workflows.smoke.server import create as create_meaningless

QWEN3 = "Qwen3-8B"
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def _standin(thinks, *, flavour="main", model=QWEN3):
    config = WorkerConfig(model=model, host="127.0.0.1", port=0, args={})
    with serve_in_thread(create(config, MadeUpModel(), Faults(thinks=thinks), flavour)) as url:
        yield url


@contextmanager
def _scripted(model=QWEN3):
    server = ScriptedServer(answer("#### 1", usage=(5, 3)), routes={"/v1/models": models(model)})
    with server.serve_in_thread() as url:
        yield url, server


def _run(url, out, line="", *arguments):
    """Run word_problems with six questions, and return the exit code, the output and the report."""
    done = serve_eval(
        f"run --base-url {url} -t word_problems --limit 6 --no-reference -o {out} {line}",
        *arguments,
    )
    file = out / "report.json"
    report = read_json(file) if file.exists() else {}
    return done.returncode, done.stdout + done.stderr, report


def _asked(server):
    """Return the fields of the last request, apart from the prompt."""
    return {key: value for key, value in server.bodies[-1].items() if key != "messages"}


def test_auto_takes_the_preset_of_the_served_model_and_the_report_names_it(tmp_path):
    with _scripted() as (url, server):
        code, told, report = _run(url, tmp_path / "run", "--preset auto")
    assert code == 3, told
    assert _asked(server) == {
        "model": QWEN3,
        "max_tokens": 32768,
        "temperature": 0.6,
        "top_p": 0.95,
        "top_k": 20,
        "min_p": 0,
        "chat_template_kwargs": {"enable_thinking": True},
    }
    preset, version = report["plan"]["preset"], read_presets().version
    assert (preset["name"], preset["table"]) == ("qwen3-thinking", version)
    assert f"qwen3-thinking (table of {version}; {preset['source']}, read" in " ".join(told.split())
    assert report["plan"]["tasks"][0]["options"]["temperature"] == 0.6
    assert report["tasks"][0]["fingerprint"]["extra_body"] == '{"min_p":0,"top_k":20}'


def test_options_that_are_given_win_over_the_preset(tmp_path):
    with _scripted() as (url, server):
        _run(
            url,
            tmp_path / "run",
            "--preset qwen3-thinking --temperature 0 --set protocol.thinking=off"
            " --set word_problems.max_tokens=64 --set",
            'protocol.extra_body={"top_k": 5}',
        )
    assert _asked(server) == {
        "model": QWEN3,
        "max_tokens": 64,
        "temperature": 0.0,
        "top_p": 0.95,
        "top_k": 5,
        "min_p": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_a_resumed_run_keeps_the_values_and_takes_no_other_preset(tmp_path):
    out = tmp_path / "run"
    with _scripted() as (url, _):
        _run(url, out, "--preset auto")
        before = read_json(out / "plan.json")["plan"]
        serve_eval(f"run --resume {out} --no-reference", exits=3)
        refused = serve_eval(f"run --resume {out} --preset gpt-oss")
        saved = read_json(out / "plan.json")
        saved["plan"]["preset"]["table"] = "2026-01-01"
        (out / "plan.json").write_text(json.dumps(saved))
        later, told, _ = _run(url, out, "--preset auto")
    assert later == 3, told
    assert saved["plan"] | {"preset": before["preset"]} == before
    assert refused.returncode == 2
    assert "have the values of qwen3-thinking already" in refused.stderr


def test_both_sides_of_a_comparison_are_asked_with_the_preset_of_their_model(
    tmp_path,
):
    with _scripted() as (a, first), _scripted() as (b, second):
        done = serve_eval(
            f"compare {a} {b} -t word_problems --limit 6 --self 0 --set preset=auto"
            f" --set effort=none -o {tmp_path}/compare"
        )
    assert done.returncode in (0, 3), done.stderr
    for server in (first, second):
        asked = _asked(server)
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.8, 20)
        assert asked["chat_template_kwargs"] == {"enable_thinking": False}


def test_a_plan_file_names_a_preset(tmp_path):
    with _scripted("gpt-oss-20b") as (url, server):
        plan = tmp_path / "plan.yaml"
        plan.write_text(
            f"base_url: {url}\ntasks: [word_problems]\nlimit: 6\nno_reference: true\n"
            "preset: auto\neffort: high\n"
        )
        serve_eval(f"run {plan} -o {tmp_path}/run", exits=3)
    asked = _asked(server)
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (1.0, 1.0, 128)
    assert asked["reasoning_effort"] == "high"


def test_a_suite_asks_with_several_efforts_and_each_is_heeded(tmp_path):
    suite, out = tmp_path / "suite.yaml", tmp_path / "suite"
    with _standin("as_asked", model="Qwen3.8-27B") as url:
        suite.write_text(
            f"defaults: {{base_url: '{url}', tasks: [word_problems], limit: 6,"
            " no_reference: true, preset: auto}\nmatrix: {effort: [none, low, medium, max]}\n"
        )
        serve_eval(f"run {suite} -o {out}", exits=3)
    found = {
        effort: read_json(out / f"runs/effort-{effort}/report.json")
        for effort in ("none", "low", "medium", "max")
    }
    thinking = {effort: report["effort"][0]["thinking"] for effort, report in found.items()}
    assert thinking == {"none": 0, "low": 6, "medium": 6, "max": 6}
    tokens = [report["effort"][0]["median_tokens"] for report in found.values()]
    assert tokens == sorted(set(tokens))
    assert not any("effort" in line for one in found.values() for line in one["warnings"])
    assert found["none"]["plan"]["preset"]["name"] == "qwen3.8-no-thinking"


@pytest.mark.parametrize("stream", [(), ("--set", "limits.stream=true")])
@pytest.mark.parametrize(
    ("thinks", "effort", "warned"),
    [
        ("as_asked", "none", ""),
        ("always", "none", "6 of 6 answers have thoughts, "),
        ("as_asked", "high", ""),
        ("never", "high", "none of 6 answers has thoughts"),
    ],
)
def test_an_effort_is_checked_against_what_came(thinks, effort, warned, stream, tmp_path):
    with _standin(thinks) as url:
        _, told, report = _run(url, tmp_path / "run", f"--set effort={effort}", *stream)
    found = [line for line in report["warnings"] if line.startswith(f"effort {effort}")]
    if not warned:
        assert found == []
    else:
        assert len(found) == 1
        assert "(sent as chat_template_kwargs, enable_thinking) was not heeded" in found[0]
        assert warned in found[0]
        assert f"effort {effort} (sent as" in told
    assert report["effort"][0]["answers"] == 6


def test_a_server_that_refuses_the_field_of_an_effort_is_named_before_the_run(
    tmp_path,
):
    with _standin("as_asked", flavour="v12", model="Mistral-Small-4-119B-2603") as url:
        code, told, _ = _run(url, tmp_path / "run", "--set effort=none")
    assert code == 4
    assert "refuses its value 'none'" in told
    assert "change the option that sends it (effort, --preset or protocol.extra_body)" in told


def test_refusals_during_a_run_are_counted_with_the_message(tmp_path):
    refuse = fail(400, "reasoning_effort is not supported for this prompt")

    def reply(request):
        return refuse if request.number > 3 and request.number % 2 else answer("#### 1")

    server = ScriptedServer(reply, routes={"/v1/models": models("gpt-oss-20b")})
    with server.serve_in_thread() as url:
        flags = ("--set", "effort=high", "--set", "limits.max_error_rate=1", "--concurrency", "1")
        _, _, report = _run(url, tmp_path / "run", "", *flags)
    seen = report["effort"][0]
    assert seen["refused"] == report["tasks"][0]["result"]["failed"] > 0
    assert "reasoning_effort is not supported" in seen["refusal"]
    assert any("the server refused" in line for line in report["warnings"])


def test_a_dry_run_shows_what_was_set_and_what_waits_for_the_model():
    flags = "run -t word_problems,word_problems_perplexity --dry-run --no-reference"
    done = serve_eval(f"{flags} --model {QWEN3} --preset auto")
    assert "preset qwen3-thinking (table of " in done.stdout
    assert "temperature 0.6, top_p 0.95, max_tokens 32768, thinking on, top_k 20" in done.stdout
    waiting = serve_eval(f"{flags} --preset auto")
    assert "the preset follows from the model, which the run asks the endpoint for" in (
        waiting.stdout
    )
    serve_eval(
        f"{flags} --model {QWEN3} --set effort=none,high",
        exits=2,
        tells="matrix: {effort: [none, high]}",
    )


def test_one_preset_is_described_with_what_its_efforts_send():
    told = serve_eval("data list presets deepseek-v4").stdout
    assert "effort max: chat_template_kwargs.thinking on" in told
    assert "source of the switch: https://" in told
    assert re.search(r"\n  presets[: ]", serve_eval("data list").stdout)
    serve_eval("data list presets deepseek-v5", exits=2)


FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
FORCED = {"env": {FORCE: "2"}}
SYNTHETIC = {"method": "mtp", "rejection_sample_method": "synthetic"}
ALLOWED = ("--set", "allow_meaningless=true")


@pytest.fixture
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(FORCE, raising=False)


def _plan(launcher, **more):
    plan = {
        "model": "m",
        "launcher": launcher,
        "tasks": ["word_problems"],
        "allow_missing_reference": True,
        **more,
    }
    Path("plan.yaml").write_text(yaml.safe_dump(plan))
    return "plan.yaml"


def _sides(generation):
    return {"generation_servers": generation}


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    ("launcher", "words"),
    [
        ({"name": "trtllm", **FORCED}, f"launcher.env: {FORCE} 2 accepts a fixed number"),
        (
            {"name": "trtllm", "config": {"load_format": "dummy"}},
            "launcher.config: load_format dummy loads random weights",
        ),
        ({"name": "trtllm", "config": "dummy.yaml"}, "launcher.config dummy.yaml: load_format"),
        (
            {"name": "trtllm", "extra_args": ["--load_format", "dummy"]},
            "launcher.extra_args: --load_format dummy",
        ),
        (
            {"name": "trtllm_disaggregated", "gpus": [0, 1], **_sides(FORCED)},
            f"launcher.generation_servers.env: {FORCE}",
        ),
        (
            {"name": "vllm", "speculative": SYNTHETIC},
            "launcher.speculative: rejection_sample_method synthetic",
        ),
        (
            {"name": "vllm", "extra_args": ["--load-format=dummy"]},
            "launcher.extra_args: --load-format dummy",
        ),
        ({"name": "container", "image": "i", "trtllm": FORCED}, f"launcher.trtllm.env: {FORCE} 2"),
        (
            {"name": "slurm", "trtllm_disaggregated": _sides({"config": {"load_format": "dummy"}})},
            "launcher.trtllm_disaggregated.generation_servers.config: load_format dummy",
        ),
    ],
)
def test_each_launcher_refuses(launcher, words):
    Path("dummy.yaml").write_text("load_format: dummy\n")
    plan = _plan(launcher)
    for more in ("--dry-run", ""):
        refused = serve_eval(f"run {plan} {more}", exits=2, tells=words)
        assert " ".join(ALLOWED) in refused.stderr
    serve_eval(f"run {plan} --dry-run", *ALLOWED, exits=0)


@pytest.mark.usefixtures("_here")
def test_a_variable_that_servers_inherit_is_refused():
    plan = _plan({"name": "trtllm"})
    serve_eval(
        f"run {plan} --dry-run", **{FORCE: "2"}, exits=2, tells=f"your environment: {FORCE} 2"
    )
    serve_eval(f"run {plan} --dry-run", **{FORCE: "0"}, exits=0)
    removed = _plan({"name": "trtllm", "env": {FORCE: None}})
    serve_eval(f"run {removed} --dry-run", **{FORCE: "2"}, exits=0)


@pytest.mark.usefixtures("_here")
def test_a_request_that_ignores_the_end_is_refused_and_warned_about_where_it_is_allowed():
    with create_meaningless(Quirks()).serve_in_thread() as url:
        body = {"extra_body": {"ignore_eos": True}}
        plan = _plan({"name": "external", "base_url": url}, protocol=body)
        serve_eval(f"run {plan} --limit 3 -o out", exits=2, tells="ignore_eos True generates past")
        assert not Path("out").exists()
        serve_eval(f"run {plan} --limit 3 -o out", *ALLOWED, exits=3)
        [warned] = [line for line in _report("out")["warnings"] if " ".join(ALLOWED) in line]
        assert "word_problems.extra_body: ignore_eos True" in warned
        again = serve_eval("judge --rescore out")
        assert "none of 3 changed" in again.stdout, again.stderr


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(
    "told",
    [
        {"vllm_config": "model='m', load_format=dummy, seed=0"},
        {"vllm_config": {"load_config": {"load_format": "dummy"}}},
    ],
)
def test_a_running_server_that_tells_is_refused(told):
    with create_meaningless(Quirks(), told).serve_in_thread() as url:
        plan = _plan({"name": "external", "base_url": url})
        refused = serve_eval(f"run {plan} --limit 3 -o refused", exits=4, tells="the server")
        assert "load_format dummy loads random weights" in refused.stderr
        serve_eval(f"run {plan} --limit 3 -o out", *ALLOWED, exits=3)
        assert any("load_format dummy" in line for line in _report("out")["warnings"])


def _report(folder):
    return msgspec.json.decode((Path(folder) / "report.json").read_bytes())
