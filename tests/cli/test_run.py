"""`serve-eval run` as users run it: real sockets, real files, and real processes if they matter."""

import json
import resource
import signal
import socket
import subprocess
import sys
import time

import pytest

from serve_eval.cli import _dry_run
from serve_eval.launchers import simulated
from serve_eval.launchers._process.server_process import own_server
from serve_eval.schema import Plan, Spec
from tests.cli.command import environment, in_a_process, serve_eval
from tests.json_files import read_json

pytestmark = pytest.mark.usefixtures("simulated_here")

KEY = "sk-test-0123456789abcdef"


@pytest.fixture(scope="module")
def references(tmp_path_factory):
    """Return references of the simulated model, which is right with probability 0.9."""
    folder = tmp_path_factory.mktemp("references")
    for task in ("gsm8k", "mmlu"):
        (folder / f"{task}.yaml").write_text(
            "simulated:\n  - accuracy: 90.0\n    source: declared by the tests\n"
        )
    return folder


@pytest.fixture
def flags(data_root, references, tmp_path):
    """Return the flags of a small run on the simulated endpoint; tests append their own."""
    return [
        *(
            "--launcher",
            "simulated",
            "--dataset-root",
            str(data_root),
            "--references-dir",
            str(references),
        ),
        *("--tasks", "gsm8k", "--set", "gsm8k.num_samples=300", "--set", "launcher.accuracy=0.9"),
        *("-o", str(tmp_path / "out")),
    ]


def _run(*arguments, **environ):
    return serve_eval("run", *arguments, **environ)


def _report(tmp_path, name="out"):
    return read_json(tmp_path / name / "report.json")


def _records(tmp_path, name="out"):
    lines = (tmp_path / name / "samples" / "gsm8k.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def test_a_sound_endpoint_passes(flags, tmp_path):
    done = in_a_process("run", *flags, exits=0)
    first, drawn, *rows = done.stdout.splitlines()
    assert first.startswith(" PASS   gsm8k  ")
    assert drawn.count("●") == 1
    assert " asked    300 samples: 0 failed, 0 repaired, 0 cut off" in rows
    verbose = serve_eval(f"judge {tmp_path}/out --verbose").stdout
    assert f"\n run      {tmp_path / 'out'}: simulated, default," in verbose
    assert {"theta", "alpha", "beta", "sigma"} <= set(verbose.split())
    assert "gsm8k: 300/300 done, 0 failed" in done.stderr
    report = _report(tmp_path)
    (task,) = report["tasks"]
    assert task["verdict"]["outcome"] == "PASS"
    assert task["verdict"]["num_samples"] == 300
    assert task["verdict"]["protocol"] == "assumed (task default)"
    assert task["result"]["scored"] == 300
    assert [len(file["sha256"]) for file in task["dataset"]["files"]] == [64, 64]
    scores = (tmp_path / "out/scores/gsm8k.jsonl").read_text().splitlines()
    assert len(scores) == 300
    mean = sum(json.loads(line)["value"] for line in scores) / 300
    assert 100 * mean == pytest.approx(task["result"]["value"])


def test_a_damaged_endpoint_fails(flags):
    done = _run(*flags, "--set", "launcher.damage=0.3")
    assert done.returncode == 1
    assert "FAIL" in done.stdout


def _without_times(report):
    """Return the tasks of a report without the fields that differ between any two runs."""
    times = ("latency_s", "ttft_s", "tpot_s")
    return [
        {
            **task,
            "traffic": {key: value for key, value in task["traffic"].items() if key not in times},
        }
        for task in report["tasks"]
    ]


def test_a_plan_file_with_the_same_content_gives_the_same_report(
    flags,
    data_root,
    references,
    tmp_path,
    monkeypatch,
):
    # As outside of the tests, the server is a process.
    monkeypatch.setattr(simulated, "own_server", own_server)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "launcher: {name: simulated, accuracy: 0.9}\n"
        "tasks: [gsm8k: {num_samples: 300}]\n"
        f"dataset_root: {data_root}\nreferences_dir: {references}\noutput_dir: {tmp_path / 'two'}\n"
    )
    assert _run(*flags).returncode == _run(str(plan)).returncode == 0
    one, two = _report(tmp_path), _report(tmp_path, "two")
    assert _without_times(one) == _without_times(two)
    assert one["plan"] == two["plan"]


def test_both_tasks_are_judged_and_mmlu_names_both_numbers(flags, tmp_path):
    done = _run("--tasks", "mmlu", *flags, "--json")  # the flags name gsm8k: both lists count
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)["result"]
    mmlu = report["tasks"][0]
    assert (mmlu["result"]["planned"], mmlu["verdict"]["num_samples"]) == (4104, 4096)
    assert len(mmlu["result"]["breakdown"]["subject"]) == 57
    assert len(mmlu["result"]["breakdown"]["category"]) == 4
    assert report == _report(tmp_path)


@pytest.mark.parametrize(
    "again", [pytest.param("same command", marks=pytest.mark.slow), "--resume"]
)
def test_a_killed_run_goes_on_and_ends_with_the_numbers_of_an_uninterrupted_one(
    flags, tmp_path, again
):
    slow = [*flags, "--set", "launcher.latency_s=0.05", "--concurrency", "8"]
    whole = [*flags, "--set", "launcher.latency_s=0.05"]
    assert (
        _run(
            *[str(tmp_path / "whole") if x == str(tmp_path / "out") else x for x in whole]
        ).returncode
        == 0
    )
    journal = tmp_path / "out/samples/gsm8k.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "run", *slow],
        env=environment(),
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    ) as process:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (
            not journal.exists() or journal.stat().st_size < 20_000
        ):
            time.sleep(0.01)
        process.kill()
    had = _records(tmp_path)
    assert 20 < len(had) < 290
    with journal.open("ab") as file:
        file.write(b'{"id":"test-1","respon')
    done = _run(*(slow if again == "same command" else ["--resume", str(tmp_path / "out")]))
    assert done.returncode == 0, done.stderr
    assert "torn last record" in done.stdout
    records = _records(tmp_path)
    assert records[: len(had)] == had
    assert len({record["id"] for record in records}) == 300
    assert len(records) <= 300 + 2 * len(had), "each is withdrawn and asked again once"
    assert _without_times(_report(tmp_path)) == _without_times(_report(tmp_path, "whole"))


def test_a_finished_run_is_judged_again_without_its_endpoint(flags, tmp_path):
    assert _run(*flags).returncode == 0
    before = _records(tmp_path)
    endpoint = _report(tmp_path)["endpoint"]
    done = _run(*flags)
    assert done.returncode == 0
    assert _records(tmp_path) == before
    assert _report(tmp_path)["endpoint"] == endpoint
    assert (endpoint["info"]["models"], endpoint["info"]["version"]) == (["simulated"], "simulator")
    assert len(read_json(tmp_path / "out/environment.json")) == 1


def test_a_run_with_lasting_failures_can_be_repeated_and_keeps_its_report(flags, tmp_path):
    failing = [
        *flags,
        "--set",
        "launcher.failure_rate=0.05",
        "--set",
        "launcher.failure_kind=wrapped_400",
    ]
    # In some orders the first prompts fail, which stops the run.
    failing += ["--set", "limits.order_seed=7"]
    first = _run(*failing, "--set", "limits.max_attempts=1")
    result = _report(tmp_path)["tasks"][0]["result"]
    assert 0 < result["failed"] < 30
    again = _run(*failing, "--set", "limits.max_attempts=1")
    assert (again.returncode, _report(tmp_path)["tasks"][0]["result"]) == (
        first.returncode,
        result,
    ), again.stderr


def test_an_interruption_stays_one_whatever_became_of_the_notes(flags, tmp_path):
    command = [sys.executable, "-m", "serve_eval", "run", *flags, "--set", "launcher.latency_s=0.3"]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        journal, deadline = tmp_path / "out/samples/gsm8k.jsonl", time.monotonic() + 30
        while time.monotonic() < deadline and (not journal.exists() or not journal.stat().st_size):
            time.sleep(0.02)
        (tmp_path / "out/environment.json").unlink()
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in said
    assert "unexpected" not in said


def test_another_plan_in_the_same_folder_is_refused_naming_the_field(flags):
    assert _run(*flags).returncode == 0
    done = _run(*flags, "--set", "gsm8k.num_fewshot=3", "--allow-mismatch", "num_fewshot")
    assert done.returncode == 2
    assert "plan.tasks.gsm8k.num_fewshot: was null, now 3" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_to_go_on_and_leaves_no_server(flags, tmp_path, number):
    slow = [*flags, "--set", "launcher.latency_s=0.2", "--concurrency", "4"]
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "run", *slow],
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        journal = tmp_path / "out/samples/gsm8k.jsonl"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and (not journal.exists() or not journal.stat().st_size):
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"serve-eval run --resume {tmp_path / 'out'}" in said
    base_url = read_json(tmp_path / "out/environment.json")[0]["endpoint"]["base_url"]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(
            ("127.0.0.1", int(base_url.split(":")[2].split("/")[0])), timeout=2
        )


def test_a_dry_run_shows_everything_and_sends_nothing(flags, tmp_path):
    done = _run(*flags, "--dry-run")
    assert done.returncode == 0, done.stderr
    for part in (
        "launcher:",
        "_simulated",
        "task gsm8k: 300 requests",
        "reference: 90.0",
        "threshold: ",
        "theta: ",
        "| Question: ",
        "nothing was sent",
    ):
        assert part in done.stdout
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_that_one_side_alone_speculates(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "{model: m, tasks: [gsm8k], launcher: {name: trtllm_disaggregated, gpus: [0, 1],"
        " generation_servers: {config: {speculative_config: {decoding_type: MTP}}}}}"
    )
    for more in ((), ("--json",)):
        done = _run(str(plan), "--dry-run", *more)
        assert "warning: context servers have speculation not set" in done.stderr


def test_a_dry_run_shows_the_ends_of_a_long_prompt(capsys):
    plan = Plan(
        model="meta-llama/Llama-3.1-8B",
        launcher=Spec(name="simulated"),
        tasks=(Spec(name="passkey_retrieval_64k"),),
    )
    assert _dry_run.show(plan, as_json=False) == 0
    shown = capsys.readouterr().out
    assert len(shown) < 20_000
    assert "| There is an important info" in shown
    assert "| The pass key is\n" in shown
    assert " characters left out; --dump-prompts FILE writes them all ...\n" in shown


def test_prompts_can_be_dumped(flags, tmp_path):
    assert _run(*flags, "--dump-prompts", str(tmp_path / "p.jsonl")).returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(lines) == 300
    assert set(lines[0]) == {"task", "id", "prompt", "target"}
    assert not (tmp_path / "out").exists()


def test_a_limit_is_a_seeded_random_subset_judged_with_its_own_n(flags, tmp_path):
    done = _run(*flags, "--limit", "40", "--set", "seed=7")
    assert "only 40 of 300 samples are asked, drawn at random (seed 7)" in done.stdout
    (task,) = _report(tmp_path)["tasks"]
    assert task["verdict"]["num_samples"] == task["result"]["planned"] == 40
    again = [str(tmp_path / "two") if x == str(tmp_path / "out") else x for x in flags]
    _run(*again, "--limit", "40", "--set", "seed=8")
    ids = [{record["id"] for record in _records(tmp_path, name)} for name in ("out", "two")]
    assert ids[0] != ids[1]


def test_integration_test_asks_one_sample_judges_nothing_and_shouts(flags, tmp_path):
    done = _run(*flags, INTEGRATION_TEST="1")
    assert done.returncode == 0
    assert "INTEGRATION TEST" in done.stdout
    assert len(_records(tmp_path)) == 1


@pytest.mark.parametrize("how", ["--no-reference", "variable"])
def test_a_missing_reference_stops_the_run_unless_it_is_allowed(flags, how):
    unknown = [*flags, "--quant-algo", "NVFP4"]
    refused = _run(*unknown)
    assert refused.returncode == 3
    assert "simulated" in refused.stderr
    assert "NVFP4" in refused.stderr
    allowed = (
        _run(*unknown, how)
        if how.startswith("--")
        else _run(*unknown, TRTLLM_ACCURACY_NO_REFERENCE="1")
    )
    assert allowed.returncode == 3
    assert "NO REFERENCE" in allowed.stdout
    assert " NO REFERENCE   gsm8k  ● 9" in allowed.stdout


def test_an_option_that_deviates_from_the_assumed_protocol_is_refused_unless_allowed(
    flags,
):
    deviating = [*flags, "--set", "gsm8k.num_fewshot=3"]
    refused = _run(*deviating)
    assert refused.returncode == 3
    assert "num_fewshot is 3 here and 5 with the reference" in refused.stderr
    allowed = _run(*deviating, "--allow-mismatch", "num_fewshot")
    assert allowed.returncode == 0
    assert "mismatch allowed: num_fewshot" in allowed.stdout


def test_a_port_where_nobody_listens_is_said_at_once(flags, tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    began = time.monotonic()
    done = _run(
        *flags[2:-8],
        *flags[-2:],
        "--tasks",
        "gsm8k",
        "--model",
        "simulated",
        "--base-url",
        f"127.0.0.1:{port}",
    )
    assert done.returncode == 4
    assert f"http://127.0.0.1:{port}/v1/completions" in done.stderr
    assert "Check that the server is up" in done.stderr
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("html", "an HTML page"),
        pytest.param("empty_choices", "no choices", marks=pytest.mark.slow),
        pytest.param("null_content", "neither a text nor", marks=pytest.mark.slow),
        pytest.param("bad_json", "not an OpenAI answer", marks=pytest.mark.slow),
        ("disconnect", "the connection ended before an answer came"),
        ("500", "HTTP 500"),
        ("wrapped_400", "Bad Request"),
    ],
)
def test_an_endpoint_that_answers_nothing_useful_ends_the_run_with_its_cause(flags, kind, said):
    done = _run(
        *flags, "--set", "launcher.failure_rate=1.0", "--set", f"launcher.failure_kind='{kind}'"
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert said in done.stderr


def test_failures_are_counted_never_scored_and_bound_the_value(flags, tmp_path):
    done = _run(
        *flags,
        "--set",
        "launcher.failure_rate=0.01",
        "--set",
        "launcher.failure_kind=wrapped_400",
        "--set",
        "launcher.seed=3",
    )
    (task,) = _report(tmp_path)["tasks"]
    result = task["result"]
    assert 0 < result["failed"] <= 6
    assert result["scored"] + result["failed"] == result["planned"] == 300
    assert result["failures"] == {"http_error": result["failed"]}
    low, high = result["bounds"]
    assert high - low == pytest.approx(100 * result["failed"] / 300)
    assert low < result["value"] < high
    assert done.returncode == 0
    assert f"{low:.1f} to {high:.1f}" in done.stdout.splitlines()[0]


def test_too_many_failures_are_inconclusive(flags, tmp_path):
    failing = ["--set", "launcher.failure_rate=0.2", "--set", "launcher.failure_kind=wrapped_400"]
    patient = [*flags, *failing, "--set", "limits.max_error_rate=0.5"]
    done = _run(*patient)
    assert done.returncode == 3, done.stderr
    assert "too_many_missing" in done.stdout
    assert (
        _run(
            "--resume", str(tmp_path / "out"), "--set", "limits.max_error_rate=1", "--strict"
        ).returncode
        == 1
    )


def test_a_run_that_fails_too_often_is_stopped_with_the_one_cause(flags, tmp_path):
    failing = ["--set", "launcher.failure_rate=0.2", "--set", "launcher.failure_kind=wrapped_400"]
    # A fixed order and low concurrency: neither chance nor the machine decides where the run stops.
    done = _run(*flags, *failing, "--set", "limits.order_seed=1", "--concurrency", "4")
    assert done.returncode == 4
    assert "samples failed, more than the allowed 10%; " in done.stderr
    assert "resume the run. --set limits.max_error_rate=SHARE allows more." in done.stderr
    assert "Bad Request" in done.stderr
    assert f"--resume {tmp_path / 'out'}" in done.stderr
    before = _records(tmp_path)
    assert 50 <= len(before) < 100
    more = ["--rerun", "never", "--set", "limits.max_error_rate=1"]
    _run("--resume", str(tmp_path / "out"), *more)
    asked = [record["id"] for record in _records(tmp_path)]
    assert (len(asked), len(set(asked))) == (300, 300), "failures stand"


def test_truncated_answers_are_scored_and_counted(flags, tmp_path):
    _run(*flags, "--set", "launcher.truncate_rate=0.5")
    result = _report(tmp_path)["tasks"][0]["result"]
    assert result["truncated"] > 100
    assert result["scored"] == 300
    assert result["failed"] == 0


def test_a_full_disk_stops_the_run_and_loses_nothing(flags, tmp_path):
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (450_000, 450_000))

    command = [sys.executable, "-m", "serve_eval", "run", *flags, "--set", "gsm8k.num_samples=1319"]
    command += ["--set", "no_prompts=true"]  # that file would be the first to reach the limit
    done = subprocess.run(
        command,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=small_files,
    )
    assert done.returncode == 4, done.stderr
    assert "samples/gsm8k.jsonl: cannot write" in done.stderr
    assert "All answers so far are kept" in done.stderr
    had = _records(tmp_path)
    assert 500 < len(had) < 1319
    done = _run(*command[4:])
    assert done.returncode == 0, done.stderr
    assert _records(tmp_path)[: len(had)] == had


def test_a_key_never_reaches_a_file_or_the_screen(flags, tmp_path):
    for arguments in (
        ["--api-key", KEY],
        ["--header", f"Authorization: Bearer {KEY}"],
        ["--base-url", f"http://me:{KEY}@host"],
    ):
        done = _run(*flags, *arguments)
        assert done.returncode == 2
        assert KEY not in done.stdout + done.stderr
    done = _run(*flags, "--header", "X-Other-Key: ${OTHER}", OPENAI_API_KEY=KEY, OTHER=KEY)
    assert done.returncode == 0, done.stderr
    assert KEY not in done.stdout + done.stderr
    for file in (tmp_path / "out").rglob("*"):
        if file.is_file():
            assert KEY.encode() not in file.read_bytes(), file


def test_files_of_a_run_are_private(flags, tmp_path):
    _run(*flags, "--limit", "5")
    for path in (tmp_path / "out", *(tmp_path / "out").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


def test_two_runs_in_one_folder_are_refused(flags, tmp_path):
    slow = [*flags, "--set", "launcher.latency_s=1"]
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "run", *slow],
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as first:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (tmp_path / "out/environment.json").exists():
            time.sleep(0.02)
        second = _run(*slow)
        first.terminate()
    assert second.returncode == 2
    assert f"in use by another run (process {first.pid})" in second.stderr


def test_usage_errors_come_all_at_once(flags):
    done = _run(*flags, "--tasks", "gsm8", "--verdict", "clasic", "--limit", "0")
    assert done.returncode == 2
    for part in ("Did you mean 'gsm8k'?", "Did you mean 'classic'?", "limit: must be 1 or more"):
        assert part in done.stderr


def test_variables_stand_for_flags_and_underscores_for_dashes(flags, references):
    renamed = ["--references_dir" if x == "--references-dir" else x for x in flags]
    done = _run(
        *renamed,
        "--dry-run",
        SERVE_EVAL_LIMIT="17",
        SERVE_EVAL_SET="gsm8k.num_samples=200\nlauncher.accuracy=0.5",
    )
    assert "task gsm8k: 17 requests" in done.stdout, done.stderr


def test_a_narrow_terminal_gets_one_block_per_task(flags):
    done = _run(*flags, "--limit", "5", "--verbose", COLUMNS="60")
    assert any(line.split() == ["failed", "0"] for line in done.stdout.splitlines())
