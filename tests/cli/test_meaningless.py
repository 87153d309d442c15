"""Refuse runs whose answers would not follow from the model, and warn where they are allowed."""

from pathlib import Path

import msgspec
import pytest
import yaml

from tests.cli.command import serve_eval
from tests.workflows.smoke.server import Quirks, create

FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
FORCED = {"env": {FORCE: "2"}}
SYNTHETIC = {"method": "mtp", "rejection_sample_method": "synthetic"}
ALLOWED = ("--set", "allow_meaningless=true")


@pytest.fixture(autouse=True)
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


def test_a_variable_that_servers_inherit_is_refused():
    plan = _plan({"name": "trtllm"})
    serve_eval(
        f"run {plan} --dry-run", **{FORCE: "2"}, exits=2, tells=f"your environment: {FORCE} 2"
    )
    serve_eval(f"run {plan} --dry-run", **{FORCE: "0"}, exits=0)
    removed = _plan({"name": "trtllm", "env": {FORCE: None}})
    serve_eval(f"run {removed} --dry-run", **{FORCE: "2"}, exits=0)


def test_a_request_that_ignores_the_end_is_refused_and_warned_about_where_it_is_allowed():
    with create(Quirks()).serve_in_thread() as url:
        body = {"extra_body": {"ignore_eos": True}}
        plan = _plan({"name": "external", "base_url": url}, protocol=body)
        serve_eval(f"run {plan} --limit 3 -o out", exits=2, tells="ignore_eos True generates past")
        assert not Path("out").exists()
        serve_eval(f"run {plan} --limit 3 -o out", *ALLOWED, exits=3)
        [warned] = [line for line in _report("out")["warnings"] if " ".join(ALLOWED) in line]
        assert "word_problems.extra_body: ignore_eos True" in warned
        again = serve_eval("judge --rescore out")
        assert "none of 3 changed" in again.stdout, again.stderr


@pytest.mark.parametrize(
    "told",
    [
        {"vllm_config": "model='m', load_format=dummy, seed=0"},
        {"vllm_config": {"load_config": {"load_format": "dummy"}}},
    ],
)
def test_a_running_server_that_tells_is_refused(told):
    with create(Quirks(), told).serve_in_thread() as url:
        plan = _plan({"name": "external", "base_url": url})
        refused = serve_eval(f"run {plan} --limit 3 -o refused", exits=4, tells="the server")
        assert "load_format dummy loads random weights" in refused.stderr
        serve_eval(f"run {plan} --limit 3 -o out", *ALLOWED, exits=3)
        assert any("load_format dummy" in line for line in _report("out")["warnings"])


def _report(folder):
    return msgspec.json.decode((Path(folder) / "report.json").read_bytes())
