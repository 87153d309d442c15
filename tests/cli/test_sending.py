"""Requests that the command line sends: hosted models' dialects, streams, order and load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from tests.cli.command import serve_eval
from tests.scripted_server import HttpRequest, Reply, ScriptedServer, answer, json_reply, models

pytestmark = pytest.mark.usefixtures("simulated_here")

RENAMED = (
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use"
    " 'max_completion_tokens' instead."
)
ONLY_ONE = (
    "Unsupported value: 'temperature' does not support 0.0 with this model. Only the default (1) is"
    " supported."
)


def _hosted(request: HttpRequest) -> Reply:
    """Answer as a chat model that refuses `max_tokens` and any temperature but 1."""
    body = request.body
    refusal = (
        RENAMED if "max_tokens" in body else ONLY_ONE if body.get("temperature", 1) != 1 else None
    )
    if refusal:
        return json_reply(
            {"error": {"message": refusal, "type": "invalid_request_error", "param": None}}, 400
        )
    return answer("<think>hm</think>#### 7", body={"id": f"c-{request.number}"})


@pytest.fixture
def hosted() -> Iterator[tuple[str, ScriptedServer]]:
    server = ScriptedServer(_hosted, routes={"/v1/models": models("o9")})
    with server.serve_in_thread() as url:
        yield url, server


def _run(data_root: Path, out: Path, *arguments: str) -> CompletedProcess[str]:
    flags = ["--dataset-root", str(data_root), "--tasks", "gsm8k", "--no-reference", "-o", str(out)]
    return serve_eval("run", *flags, *arguments)


def test_a_hosted_model_that_refuses_fields_is_served_by_the_options_that_its_refusals_name(
    data_root: Path, tmp_path: Path, hosted: tuple[str, ScriptedServer]
) -> None:
    url, server = hosted
    flags = [
        "--base-url",
        url,
        "--set",
        "gsm8k.num_samples=20",
        "--set",
        "gsm8k.apply_chat_template=true",
    ]
    flags += ["--set", "gsm8k.truncate_prompt_tokens=null"]
    first = _run(data_root, tmp_path / "1", *flags)
    assert first.returncode == 4
    assert "add --set connection.max_tokens_field=max_completion_tokens" in first.stderr
    flags += ["--set", "connection.max_tokens_field=max_completion_tokens"]
    second = _run(data_root, tmp_path / "2", *flags)
    assert second.returncode == 4
    assert "omit it with --set TASK.temperature=null" in second.stderr
    assert "--allow-mismatch temperature" in second.stderr
    assert len(server.bodies) == 2  # one refusal each, before any other request
    third = _run(data_root, tmp_path / "3", *flags, "--set", "gsm8k.temperature=null")
    assert third.returncode == 3, third.stderr
    last = server.bodies[-1]
    assert "temperature" not in last
    assert last["max_completion_tokens"] == 256
    (task,) = json.loads((tmp_path / "3/report.json").read_text())["tasks"]
    assert task["fingerprint"]["temperature"] == "null"
    assert task["result"]["scored"] == 20
    records = (tmp_path / "3/samples/gsm8k.jsonl").read_text().splitlines()
    assert {json.loads(line)["response"]["reasoning"] for line in records} == {"hm"}


def test_a_streamed_run_tells_its_times_its_order_and_its_load(
    data_root: Path, tmp_path: Path
) -> None:
    flags = [
        "--launcher",
        "simulated",
        "--set",
        "gsm8k.num_samples=300",
        "--set",
        "launcher.latency_s=0.02",
    ]
    done = _run(
        data_root,
        tmp_path / "s",
        *flags,
        "--verbose",
        "--set",
        "limits.stream=true",
        "--set",
        "limits.order_seed=7",
        "--concurrency",
        "auto",
    )
    assert done.returncode == 3, done.stderr
    assert "first token p50" in done.stdout
    assert "order random (seed 7)" in done.stdout
    assert "concurrency steps 32" in done.stdout
    report = json.loads((tmp_path / "s/report.json").read_text())
    (task,), (load,) = report["tasks"], report["loads"]
    assert task["traffic"]["attempts"] == 300
    assert task["traffic"]["retries"] == {}
    assert 0.02 <= task["traffic"]["ttft_s"]["p50"] <= task["traffic"]["latency_s"]["max"]
    assert load["limits"]["order"] == "random"
    assert load["steps"][0]["concurrency"] == 32
    assert load["max_in_flight"] > 16
    plain = _run(data_root, tmp_path / "p", *flags, "--set", "limits.order=natural")
    assert plain.returncode == 3
    (other,) = json.loads((tmp_path / "p/report.json").read_text())["tasks"]
    assert other["result"] == task["result"]
    first_asked = [
        json.loads(line)["id"]
        for line in (tmp_path / "s/samples/gsm8k.jsonl").read_text().splitlines()
    ]
    as_planned = [
        json.loads(line)["id"]
        for line in (tmp_path / "p/samples/gsm8k.jsonl").read_text().splitlines()
    ]
    assert first_asked[:10] != as_planned[:10]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--concurrency", "many"], "limits.concurrency: expected a number or auto, not 'many'"),
        (["--concurrency", "0"], "limits.concurrency: must be above 0"),
        (["--concurrency", "100000000"], "100000000 requests in flight need 100000100 open files"),
        (["--set", "limits.order=sideways"], "limits.order: expected "),
        (["--set", "limits.max_error_rate=2"], "limits.max_error_rate: must be at most 1"),
        (["--set", "limits.rate_limit=-1"], "limits.rate_limit: must be above 0"),
        (["--set", "limits.requests_per_minute=0"], "limits.requests_per_minute: must be above 0"),
        (
            ["--set", "connection.max_tokens_field=tokens"],
            "connection.max_tokens_field: expected ",
        ),
        (["--set", "limits.retry_budget=-1"], "limits.retry_budget: must be"),
        (
            ["--set", "limits.known_finish_reasons=content-filter"],
            "limits.known_finish_reasons: 'content-filter' says that no whole answer came",
        ),
    ],
)
def test_limits_that_cannot_be_meant_are_refused_before_anything_starts(
    data_root: Path, tmp_path: Path, flags: list[str], said: str
) -> None:
    done = _run(data_root, tmp_path / "out", "--launcher", "simulated", *flags)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "compare"])
def test_names_of_every_time_that_an_option_was_given_count(
    data_root: Path, tmp_path: Path, command: str
) -> None:
    """If only the last list counted, tasks would be left out silently.

    Unknown tasks are named from each list.
    """
    address = {"run": ["--base-url", "127.0.0.1:9"], "compare": ["127.0.0.1:9", "127.0.0.1:8"]}[
        command
    ]
    given = ["--tasks", "gsm8l,mmlu", "--tasks", "humanevil", "-t", "gsm8k"]
    done = serve_eval(
        command, *address, "--model", "m", "--dataset-root", data_root, *given, "-o", tmp_path / "o"
    )
    assert done.returncode == 2
    assert "Did you mean 'gsm8k'?" in done.stderr
    assert "Did you mean 'humaneval'?" in done.stderr


def test_lines_of_the_variable_count_as_times(data_root: Path) -> None:
    flags = ["--model", "m", "--dataset-root", data_root, "--no-reference", "--dry-run", "--json"]
    done = serve_eval("run", "--base-url", "127.0.0.1:9", *flags, SERVE_EVAL_TASKS="gsm8k,\nmmlu\n")
    assert done.returncode == 0, done.stderr
    assert [task["task"] for task in json.loads(done.stdout)["tasks"]] == ["gsm8k", "mmlu"]


def test_a_watch_of_two_tasks_is_refused_and_so_is_a_check_that_no_time_knows(
    data_root: Path,
) -> None:
    flags = ["--model", "m", "--dataset-root", data_root, "--tasks", "gsm8k", "--tasks", "mmlu"]
    assert "a watch takes one task, not 2" in serve_eval("watch", "127.0.0.1:9", *flags).stderr
    done = serve_eval(
        "smoke", "127.0.0.1:9", "--require", "chta", "--require", "tools", "--dry-run"
    )
    assert done.returncode == 2
    assert "chta" in done.stderr
