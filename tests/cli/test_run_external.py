"""`serve-eval run` against a running endpoint: the simulator in its own process."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import msgspec
import pytest

from serve_eval.schema import DataRoots
from serve_eval.schema.media import prompt_sha256
from serve_eval.tasks.gsm8k import task
from tests.cli.command import serve_eval
from tests.json_files import read_json

MODEL = "my-org/my-model"


@contextmanager
def _simulator(folder, data_root, *flags):
    """Yield the URL of a simulator that knows the first 60 gsm8k questions, as chat and text."""
    lines = []
    for chat in (False, True):
        made = task(apply_chat_template=chat)
        for sample in made.load(DataRoots(roots=(data_root,)), 60).samples:
            right, wrong = made.answers(sample)
            entry = {
                "sha256": prompt_sha256(sample.prompt),
                "right": right,
                "wrong": wrong,
                "probability": 1.0,
            }
            lines.append(msgspec.json.encode(entry))
    (folder / "answers.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    ready = folder / "ready"
    command = [
        sys.executable,
        "-m",
        "serve_eval.launchers._simulated",
        "--answers",
        str(folder / "answers.jsonl"),
    ]
    with subprocess.Popen(
        [*command, "--ready-file", str(ready), *flags], stdin=subprocess.PIPE
    ) as process:
        try:
            deadline = time.monotonic() + 30
            while not ready.exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            yield ready.read_text().strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def plain(data_root, tmp_path_factory):
    """Yield the base URL of a faultless simulator, shared by the tests of this file."""
    with _simulator(tmp_path_factory.mktemp("plain"), data_root) as url:
        yield url


def _run(data_root, out, *arguments, **environ):
    flags = f"--dataset-root {data_root} --tasks gsm8k --set gsm8k.num_samples=60 -o {out}"
    return serve_eval(f"run {flags} --no-reference", *arguments, **environ)


def _task(out):
    return read_json(out / "report.json")["tasks"][0]


@pytest.mark.parametrize(
    "form", ["{host}", "http://{host}", "{host}/v1", "http://{host}/v1/completions"]
)
def test_every_form_of_the_address_works_and_the_resolved_one_is_printed(
    tmp_path, data_root, plain, form
):
    host = plain.removeprefix("http://").removesuffix("/v1")
    done = _run(data_root, tmp_path / "out", "--base-url", form.format(host=host))
    assert done.returncode == 3, done.stderr
    assert f"endpoint {plain}" in done.stderr
    assert _task(tmp_path / "out")["result"]["value"] == 100.0


def test_the_one_served_model_is_taken_and_the_address_from_the_environment(tmp_path, data_root):
    with _simulator(tmp_path, data_root, "--model", MODEL) as url:
        done = _run(data_root, tmp_path / "out", OPENAI_BASE_URL=url)
    assert done.returncode == 3, done.stderr
    assert read_json(tmp_path / "out/plan.json")["plan"]["model"] == MODEL
    assert MODEL in done.stdout  # the message about the missing reference names the model


def test_an_orchestrator_without_a_model_list_works_when_the_model_is_named(tmp_path, data_root):
    with _simulator(tmp_path, data_root, "--no-models", "--model", MODEL) as url:
        unnamed = _run(data_root, tmp_path / "out", "--base-url", url)
        named = _run(data_root, tmp_path / "out", "--base-url", url, "--model", MODEL)
    assert unnamed.returncode == 4
    assert "--model" in unnamed.stderr
    assert named.returncode == 3, named.stderr
    assert _task(tmp_path / "out")["result"]["scored"] == 60


def test_an_unknown_model_is_said_with_the_nearest_before_anything_else(tmp_path, data_root):
    with _simulator(tmp_path, data_root, "--model", MODEL) as url:
        done = _run(data_root, tmp_path / "out", "--base-url", url, "--model", "my-org/my-modle")
        models = "--model my-org/my-modle --set compare.model_b=my-org/my-modell"
        prompts = f"--tasks gsm8k --limit 20 --dataset-root {data_root}"
        both = serve_eval(f"compare {url} {url} -o {tmp_path}/both {models} {prompts}")
    for one in (done, both):
        assert one.returncode == 4, one.stderr
        assert f"Did you mean '{MODEL}'?" in one.stderr
        assert "ry again" not in one.stderr


def test_a_context_overflow_is_a_failure_with_its_reason_on_record(tmp_path, data_root):
    with _simulator(tmp_path, data_root, "--context-tokens", "490") as url:
        done = _run(
            data_root,
            tmp_path / "out",
            "--base-url",
            url,
            "--model",
            "simulated",
            "--set",
            "limits.max_error_rate=1",
        )
    result = _task(tmp_path / "out")["result"]
    assert 0 < result["failed"] < 60, done.stderr
    assert result["failures"] == {"http_error": result["failed"]}
    records = (tmp_path / "out/samples/gsm8k.jsonl").read_text().splitlines()
    failures = [r["failure"] for r in map(json.loads, records) if "failure" in r]
    assert len(failures) == result["failed"]
    assert all("maximum context length" in f["message"] and f["status"] == 400 for f in failures)
    assert all(len(f["attempts"]) == 1 for f in failures)


def test_the_chat_endpoint_is_used_for_messages(tmp_path, data_root, plain):
    done = _run(
        data_root, tmp_path / "out", "--base-url", plain, "--set", "gsm8k.apply_chat_template=true"
    )
    assert done.returncode == 3, done.stderr
    assert _task(tmp_path / "out")["result"]["value"] == 100.0


def test_a_server_that_refuses_truncate_prompt_tokens_can_be_served_by_an_option(
    tmp_path, data_root, plain
):
    without = ("--set", "gsm8k.truncate_prompt_tokens=null")
    done = _run(data_root, tmp_path / "out", "--base-url", plain, *without)
    assert done.returncode == 3
    assert _task(tmp_path / "out")["result"]["scored"] == 60


def test_a_run_whose_endpoint_comes_back_elsewhere_names_the_field(tmp_path, data_root, plain):
    _run(data_root, tmp_path / "out", "--base-url", plain, "--model", "simulated")
    done = _run(data_root, tmp_path / "out", "--base-url", "127.0.0.1:9", "--model", "simulated")
    assert done.returncode == 2
    assert "plan.launcher.options.base_url" in done.stderr


def test_a_report_outlives_an_attempt_to_go_on_that_reached_nothing(tmp_path, data_root):
    with _simulator(tmp_path, data_root, "--context-tokens", "490") as url:
        _run(
            data_root,
            tmp_path / "out",
            "--base-url",
            url,
            "--model",
            "simulated",
            "--set",
            "limits.max_error_rate=1",
        )
    before = (tmp_path / "out/report.json").read_bytes()
    done = _run(data_root, tmp_path / "out", "--base-url", url, "--model", "simulated")
    assert done.returncode == 4
    assert (tmp_path / "out/report.json").read_bytes() == before


def test_a_run_goes_on_at_a_new_address_and_stays_there(tmp_path, data_root, plain):
    with _simulator(tmp_path, data_root, "--context-tokens", "490") as old:
        _run(
            data_root,
            tmp_path / "out",
            "--base-url",
            old,
            "--model",
            "simulated",
            "--set",
            "limits.max_error_rate=1",
        )
    done = serve_eval(f"run --resume {tmp_path}/out --base-url {plain}", exits=3)
    assert _task(tmp_path / "out")["result"]["scored"] == 60
    assert f"the answers come from 2 addresses: {', '.join(sorted([old, plain]))}" in done.stdout
    assert read_json(tmp_path / "out/plan.json")["plan"]["launcher"]["options"]["base_url"] == plain


def test_the_default_folder_is_called_after_the_model_that_the_endpoint_lists(
    plain, data_root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    flags = f"--dataset-root {data_root} --tasks gsm8k --set gsm8k.num_samples=60 --no-reference"
    done = serve_eval(f"run --base-url {plain} {flags}", exits=3)
    folder = (tmp_path / "outputs/latest").resolve()
    assert folder.name.endswith("_simulated")
    assert f"run folder outputs/{folder.name}" in done.stderr
    assert read_json(folder / "plan.json")["plan"]["model"] == "simulated"


def test_without_a_model_nothing_is_made_where_the_endpoint_does_not_answer(
    data_root, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    done = serve_eval(
        f"run --base-url 127.0.0.1:9 --tasks gsm8k --dataset-root {data_root}", exits=4
    )
    assert done.stderr.startswith(
        "error: http://127.0.0.1:9/v1/models does not answer: cannot connect"
    )
    assert not list(tmp_path.iterdir())


def test_no_reference_is_used_where_none_is_wanted_though_one_ships(plain, data_root, tmp_path):
    """The same holds for `verdict`, which judges the same answers again."""
    flags = [
        "--model",
        "meta-llama/Llama-3.1-8B-Instruct",
        "--allow-mismatch",
        "dataset",
        "--base-url",
        plain,
    ]
    with _simulator(tmp_path, data_root, "--any-model") as url:
        flags[-1] = url
        done = _run(data_root, tmp_path / "out", *flags)
    assert done.returncode == 3, done.stderr
    assert "--no-reference was given" in " ".join(done.stdout.split())
    serve_eval(f"judge {tmp_path}/out", exits=3)
