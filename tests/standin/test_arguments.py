"""Test command lines, files and bodies that the real definitions accept or refuse."""

import json
from pathlib import Path

import click
import pytest
from pydantic import ValidationError

from serve_eval.launchers._standin.config import orchestrator
from serve_eval.launchers._standin.options import group
from serve_eval.launchers._standin.parsing import Invalid, parse, set_fields
from serve_eval.launchers._standin.worker_config import check_llm_args, worker

OWN = [
    {"argv": ["M", "--tp_size", "2"], "flavour": "v12", "rc": 0, "subcommand": "serve"},
    {
        "argv": ["--host", "h", "M"],
        "flavour": "v12",
        "rc": 2,
        "error": "Error: No such option '--host'.",
    },
    {"argv": ["M", "--server-role", "context"], "flavour": "main", "rc": 2},
    {
        "argv": ["disagg", "-c", "x"],
        "flavour": "v12",
        "rc": 2,
        "error": "Error: No such option '-c'.",
    },
    {"argv": ["disaggregated", "--config", "x"], "flavour": "v12", "rc": 2},
    {
        "argv": ["disaggregated", "--config", "x"],
        "flavour": "main",
        "rc": 0,
        "subcommand": "disaggregated",
    },
    {"argv": ["M", "--log_level", "INFO"], "flavour": "main", "rc": 2},
    {"argv": ["serve"], "flavour": "main", "rc": 2, "error": "Error: Missing argument 'MODEL'."},
    {"argv": [], "flavour": "v12", "rc": 2},
    {"argv": ["serve", "--help"], "flavour": "v12", "rc": 0},
]


def check(row, capsys):
    flavour = row["flavour"]
    seen = []
    command = group(flavour, lambda name, params, given: seen.append((name, params)))
    try:
        rc = command.main(row["argv"], prog_name="trtllm-serve", standalone_mode=True)
    except SystemExit as end:
        rc = end.code
    out, err = capsys.readouterr()
    assert (rc or 0) == row["rc"], err
    if row["rc"] == 0 and "subcommand" in row:
        [(name, params)] = seen
        assert name == row["subcommand"]
        assert params == row.get("params", params)
    elif not row["argv"]:
        assert "Usage: trtllm-serve" in err
    elif row["rc"]:
        last = err.strip().splitlines()[-1].strip()
        assert last.startswith("Error: ")
        assert last.partition(" (")[0] == row.get("error", last).partition(" (")[0]
    else:
        assert "--help" in out
        assert out.strip() == row.get("stdout", out.strip())


@pytest.mark.parametrize("row", OWN, ids=lambda row: " ".join([row["flavour"], *row["argv"]]))
def test_command_lines_of_ours(row, capsys):
    check(row, capsys)


def test_every_command_line_of_the_conformance_file(shared, capsys):
    rows = json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())["argv"]
    failed = []
    for number, row in enumerate(rows):
        try:
            check(row, capsys)
        except AssertionError as error:
            failed.append((number, row["argv"], str(error)[:600]))
    assert not failed, f"{len(failed)} of {len(rows)}: {failed}"


def test_the_help_names_every_option():
    for flavour in ("v12", "main"):
        command = group(flavour, lambda *_: None).commands["serve"]
        text = command.get_help(click.Context(command))
        assert all(
            flag in text
            for flag in ("--tp_size", "--config", "--server_role", "--disagg_cluster_uri")
        )
        assert ("--report_addr" in text) == (flavour == "main")


GEN = {"urls": ["c:3"]}
OWN_CONFIG = [
    {
        "config": {
            "context_servers": {"urls": ["a:1", "b:2"], "num_instances": 2},
            "generation_servers": GEN,
        },
        "rc": 0,
    },
    {"config": {"context_servers": {"urls": ["http://a:1"]}, "generation_servers": GEN}, "rc": 1},
    {
        "config": {
            "context_servers": {"urls": ["a:1"], "num_instances": 2},
            "generation_servers": GEN,
        },
        "rc": 1,
    },
    {
        "config": {"disagg_cluster": {"cluster_uri": "http://a:1", "inactive_interval_sec": 1}},
        "rc": 1,
    },
    {
        "config": {"node_id": 256},
        "rc": 1,
        "error": "ValueError: node_id must be in range [0, 256), got 256",
    },
]


def check_config(row):
    if row["rc"]:
        with pytest.raises((ValueError, KeyError)) as refused:
            orchestrator(row["config"], "main")
        said = f"{type(refused.value).__name__}: {refused.value}"
        assert said == row.get("error", said)
        return
    parsed = orchestrator(row["config"], "main")
    wanted = row.get("parsed")
    if not wanted:
        return
    assert [server._asdict() for server in parsed.servers] == wanted["server_configs"]
    assert parsed.ctx_router._asdict() == wanted["ctx_router_config"]
    assert parsed.gen_router._asdict() == wanted["gen_router_config"]
    assert (parsed.urls("ctx"), parsed.urls("gen")) == (wanted["_ctx_addrs"], wanted["_gen_addrs"])
    assert (vars(parsed.cluster) if parsed.cluster else None) == wanted["disagg_cluster_config"]
    for name in (
        "hostname",
        "port",
        "max_retries",
        "perf_metrics_max_requests",
        "schedule_style",
        "num_workers",
    ):
        assert getattr(parsed, name) == wanted[name], name


@pytest.mark.parametrize("row", OWN_CONFIG, ids=lambda row: json.dumps(row["config"]))
def test_orchestrator_files_of_ours(row):
    check_config(row)


def test_every_orchestrator_file_of_the_conformance_file(shared):
    for row in json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())[
        "disagg_config"
    ]:
        check_config(row)


def _worker(argv, flavour):
    command = group(
        flavour, lambda name, params, given: worker(params["model"], params, given, flavour)
    )
    return command.main(argv, standalone_mode=False)


def test_the_file_wins_in_the_1_2_line_and_the_command_line_on_main(tmp_path):
    file = tmp_path / "w.yaml"
    file.write_text("tensor_parallel_size: 4\nmax_batch_size: 7\n")
    argv = ["M", "--tp_size", "2", "--config", str(file)]
    assert _worker(argv, "v12").args["tensor_parallel_size"] == 4
    assert _worker(argv, "main").args["tensor_parallel_size"] == 2
    assert _worker([*argv, "--set", "kv_cache_config.dtype=fp8"], "main").args[
        "kv_cache_config"
    ] == {"dtype": "fp8"}
    assert _worker(argv, "main").args["max_batch_size"] == 7


def test_what_a_worker_refuses(tmp_path):
    with pytest.raises(FileNotFoundError):
        _worker(["M", "--config", str(tmp_path / "none.yaml")], "v12")
    with pytest.raises(AssertionError):
        _worker(["M", "--port", "0"], "v12")
    with pytest.raises(AssertionError):
        _worker(["M", "--disagg_cluster_uri", "http://a:1"], "v12")
    with pytest.raises(KeyError):
        _worker(["M", "--server_role", "boss"], "v12")
    with pytest.raises(ValueError, match="Invalid server role"):
        _worker(["M", "--server_role", "boss"], "main")
    with pytest.raises(ValidationError, match="extra_forbidden"):
        check_llm_args({"tensor_paralel_size": 2})
    with pytest.raises(ValidationError):
        check_llm_args({"cache_transceiver_config": {"backend": "ucx"}})
    assert _worker(["M", "--port", "0", "--report_addr", "f"], "main").report_addr == Path("f")


CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
KINDS = ("extra_forbidden", "missing", "value_error", "int_type", "int_parsing", "string_type")
OWN_FIELDS = [
    {"route": "completions", "body": {**TEXT, "temperature": 0}, "accepted": True},
    {"route": "completions", "body": {**TEXT, "prompt": [[1], [2, 3]]}, "accepted": True},
    {
        "route": "completions",
        "body": {**TEXT, "prompt_logprobs": 1},
        "accepted": False,
        "error": "extra_forbidden",
    },
    {"route": "completions", "body": {"prompt": "hi"}, "accepted": False, "error": "missing"},
    {
        "route": "chat",
        "body": {**CHAT, "max_tokens": 4, "max_completion_tokens": 4},
        "accepted": False,
    },
    {
        "route": "chat",
        "body": {**CHAT, "top_logprobs": 2},
        "accepted": False,
        "error": "value_error",
    },
    {
        "route": "chat",
        "body": {**CHAT, "detokenize": True},
        "accepted": False,
        "error": "extra_forbidden",
    },
]


def check_fields(row):
    chat = row["route"] == "chat"
    raw = json.dumps(row["body"]).encode()
    if row["accepted"]:
        request = parse(raw, chat=chat, flavour="v12", path="/v1")
        assert set_fields(request) == row.get("forwarded", set_fields(request))
        return
    with pytest.raises(Invalid) as refused:
        parse(raw, chat=chat, flavour="v12", path="/v1")
    # recorded errors are cut at a length
    assert {kind for kind in KINDS if kind in row.get("error", "")} <= {
        k for k in KINDS if k in str(refused.value)
    }


@pytest.mark.parametrize("row", OWN_FIELDS, ids=lambda row: json.dumps(row["body"]))
def test_bodies_of_ours(row):
    check_fields(row)


def test_every_body_of_the_conformance_file(shared):
    rows = json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())["request"]
    failed = []
    for number, row in enumerate(rows):
        try:
            check_fields(row)
        except (AssertionError, Invalid, pytest.fail.Exception) as error:
            failed.append((number, row["body"], str(error)[:500]))
    assert not failed, f"{len(failed)} of {len(rows)}: {failed}"


def test_broken_json_is_a_validation_error():
    with pytest.raises(Invalid, match=r"'json_invalid', 'loc': \('body', 9\)"):
        parse(b'{"model":', chat=False, flavour="v12", path="/v1/completions")


def test_main_knows_more_fields():
    body = {**CHAT, "priority": 0.5, "agent_hierarchy": [["a", 1]]}
    assert set_fields(parse(body, chat=True, flavour="main", path="")) == {**body}
    with pytest.raises(Invalid):
        parse(body, chat=True, flavour="v12", path="")
