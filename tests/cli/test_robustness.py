"""In odd surroundings, a command ends with a documented exit code, a reason and no traceback."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from serve_eval.launchers._simulated.simulator import SimulatorConfig, create_app
from tests.cli.command import environment, in_a_process, serve_eval
from tests.json_files import read_json
from tests.scripted_server import serve_in_thread

pytestmark = pytest.mark.usefixtures("simulated_here")

KEY = "sk-test-0123456789abcdef"
NOWHERE = (
    "--base-url",
    "127.0.0.1:9",
    "--model",
    "m",
    "--no-reference",
    "--set",
    "limits.max_attempts=1",
)


def _simulated(data_root, out, *more):
    flags = [
        "run",
        "--launcher",
        "simulated",
        "--tasks",
        "gsm8k",
        "--set",
        "gsm8k.num_samples=30",
        "--no-reference",
    ]
    return [*flags, "--dataset-root", str(data_root), "-o", str(out), *more]


@pytest.fixture(scope="module")
def asked(data_root):
    """Yield a run of 30 questions to an endpoint in this process.

    It is for tests that start the command as a process of its own.
    """
    with serve_in_thread(create_app(SimulatorConfig(any_model=True))) as url:
        flags = ["run", "--base-url", url, "--tasks", "gsm8k", "--set", "gsm8k.num_samples=30"]
        yield [*flags, "--dataset-root", str(data_root)]


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "said"),
    [
        (["--set", "gsm8k.temperature=.nan"], {}, 2, "must be a finite number"),
        (["--set", "gsm8k.temperature=-1"], {}, 2, "temperature 0 or more"),
        (["--set", "gsm8k.filter=strict"], {}, 2, "Did you mean 'strict-match'?"),
        (["--set", "limits.sample_timeout_s=.nan"], {}, 2, "must be above 0 and finite"),
        (["--set", "limits.connect_timeout_s=.inf"], {}, 2, "must be above 0 and finite"),
        (["--api-key-env", KEY], {}, 2, "expected the name of an environment variable"),
        (["--api-key-env", "NO_SUCH_VARIABLE"], {}, 2, "the environment has no NO_SUCH_VARIABLE"),
        (["--header", "Ocp-Apim-Subscription-Key: 0123456789abcdef"], {}, 2, "looks like a secret"),
        (["--header", f"Authorization: Bearer {KEY} ${{HOME}}"], {}, 2, "looks like a secret"),
        (["--header", "nonsense"], {}, 2, "expected 'Name: value'"),
        (
            ["--set", "connection.proxy=" + str(f"http://me:{KEY}@p:1/${{HOME}}")],
            {},
            2,
            "credentials",
        ),
        (["--set", "connection.proxy=nonsense"], {}, 2, "proxy: expected http://host:port"),
        (
            ["--set", "connection.proxy=${P}"],
            {"P": f"nonsense-{KEY}"},
            2,
            "proxy: expected http://host:port",
        ),
        (["--set", f"launcher.base_url=http://me:{KEY}@host"], {}, 2, "credentials"),
        (["--base-url", "http://a..b:8000"], {}, 4, "does not answer"),
        (["--base-url", "ftp://host"], {}, 2, "expected host:port"),
        ([], {"OPENAI_API_KEY": "sk-test\x01-0123456789"}, 2, "cannot be sent in a header"),
        ([], {"OPENAI_API_KEY": "schlüssel-0123456789"}, 2, "cannot be sent in a header"),
        (["--header", "X-Other: ${OTHER}"], {"OTHER": "a\nb"}, 2, "cannot be sent in a header"),
        (["--header", "X-Other: ${MISSING}"], {}, 2, "the environment has no MISSING"),
        (["--dump-prompts", "/dev/null/p.jsonl"], {}, 2, "cannot be written"),
    ],
)
def test_bad_input_is_said_without_a_traceback_and_without_the_secret(
    data_root,
    tmp_path,
    arguments,
    environ,
    code,
    said,
):
    flags = ["--tasks", "gsm8k", "--dataset-root", data_root, "-o", tmp_path / "out", *NOWHERE]
    done = serve_eval("run", *flags, *arguments, **environ, exits=code, tells=said)
    assert "Traceback" not in done.stderr
    assert KEY not in done.stderr + done.stdout
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


def test_a_trailing_newline_of_a_key_is_not_part_of_it(data_root, tmp_path):
    serve_eval(*_simulated(data_root, tmp_path / "out"), OPENAI_API_KEY=f"{KEY}\r\n", exits=3)


@pytest.mark.parametrize(
    "shell",
    ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "| true", "2>&1 | true", ">/dev/full", "2>/dev/full"],
)
def test_closed_and_broken_streams_change_neither_the_run_nor_its_exit_code(asked, tmp_path, shell):
    in_a_process(
        *asked, "--model", "m", "--no-reference", "-o", tmp_path / "out", shell=shell, exits=3
    )
    assert read_json(tmp_path / "out/report.json")["tasks"][0]["result"]["scored"] == 30


def test_a_terminal_that_knows_only_ascii_gets_escapes(asked, tmp_path):
    flags = ["--model", "模型", "--no-reference", "-o", tmp_path / "out"]
    in_a_process(*asked, *flags, PYTHONIOENCODING="ascii", exits=3, prints="\\u6a21")


def test_a_model_name_with_markup_and_control_characters_is_printed_as_it_is_or_without_them(
    data_root, tmp_path
):
    done = serve_eval(
        *_simulated(data_root, tmp_path / "out", "--model", "[red]x[/red]\x1b[2J"), exits=3
    )
    assert ": [red]x[/red]," in serve_eval(f"judge {tmp_path}/out -v").stdout
    assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("damage", ["samples", "environment.json", "samples/gsm8k.jsonl"])
def test_a_run_folder_that_was_meddled_with_is_said(data_root, tmp_path, damage):
    flags = _simulated(data_root, tmp_path / "out", "--set", "launcher.failure_rate=0.1")
    serve_eval(*flags, "--set", "launcher.failure_kind=wrapped_400")
    place = tmp_path / "out" / damage
    place.rename(tmp_path / "aside")
    if damage == "samples/gsm8k.jsonl":
        place.mkdir()
    else:
        place.write_text("{")
    done = serve_eval(*flags, "--set", "launcher.failure_kind=wrapped_400")
    assert done.returncode in (2, 4), done.stderr
    assert damage in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_that_reached_nothing_leaves_the_folder_to_the_corrected_command(data_root, tmp_path):
    serve_eval(f"run --tasks gsm8k --dataset-root {data_root} -o {tmp_path}/out", *NOWHERE, exits=4)
    serve_eval(*_simulated(data_root, tmp_path / "out"), exits=3)


def test_strict_is_the_same_in_the_report_and_in_the_exit_code(data_root, tmp_path):
    done = serve_eval(*_simulated(data_root, tmp_path / "out", "--strict", "--json"))
    assert done.returncode == json.loads(done.stdout)["exit_code"] == 1


def test_a_simulated_verdict_says_so(data_root, tmp_path):
    assert (
        "the endpoint was simulated" in serve_eval(*_simulated(data_root, tmp_path / "out")).stdout
    )


def test_a_flag_beats_a_variable_that_would_choose_another_endpoint(data_root, tmp_path):
    flags = _simulated(data_root, tmp_path / "out")
    serve_eval(*flags, SERVE_EVAL_BASE_URL="127.0.0.1:9", exits=3)
    serve_eval(
        f"run --tasks gsm8k --dataset-root {data_root}",
        *NOWHERE,
        SERVE_EVAL_LAUNCHER="simulated",
        exits=4,
        tells="127.0.0.1:9",
    )


def test_resuming_takes_what_the_run_was_started_with_and_not_what_the_environment_says(
    data_root, tmp_path
):
    serve_eval(*_simulated(data_root, tmp_path / "out"), exits=3)
    other = {
        "SERVE_EVAL_MODEL": "other",
        "OPENAI_BASE_URL": "http://other/v1",
        "SERVE_EVAL_OUTPUT_DIR": "elsewhere",
    }
    serve_eval(f"run --resume {tmp_path}/out", **other, exits=3)


def test_a_second_ctrl_c_ends_even_a_data_set_that_never_comes(data_root, tmp_path):
    (tmp_path / "gsm8k").mkdir()
    os.mkfifo(tmp_path / "gsm8k/train.jsonl")
    (tmp_path / "gsm8k/test.jsonl").write_bytes((data_root / "gsm8k/test.jsonl").read_bytes())
    flags = [
        "--tasks",
        "gsm8k",
        "--dataset-root",
        str(tmp_path),
        "-o",
        str(tmp_path / "out"),
        *NOWHERE,
    ]
    command = [sys.executable, "-m", "serve_eval", "run", *flags]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert "serve-eval: endpoint" in process.stderr.readline()
        while process.poll() is None:
            time.sleep(0.5)
            process.send_signal(signal.SIGINT)
    assert process.returncode == 130


def test_an_integration_test_is_resumed_as_one_whatever_the_environment_says_now(
    data_root, tmp_path
):
    serve_eval(*_simulated(data_root, tmp_path / "out"), INTEGRATION_TEST="1", exits=0)
    serve_eval(f"run --resume {tmp_path}/out", TRTLLM_ACCURACY_NO_REFERENCE="1", exits=0)


def test_an_external_endpoint_by_flag_takes_its_address_from_the_variable(data_root, tmp_path):
    flags = f"--tasks gsm8k --dataset-root {data_root} --model m --launcher external --dry-run"
    done = serve_eval(f"run --no-reference {flags}", SERVE_EVAL_BASE_URL="127.0.0.1:4567")
    assert "base_url: http://127.0.0.1:4567/v1" in done.stdout


def test_what_judges_nothing_takes_any_data(data_root, tmp_path):
    flags = f"--tasks gsm8k --dataset-root {data_root} --model meta-llama/Llama-3.1-8B-Instruct"
    serve_eval(f"run --dump-prompts {tmp_path}/p.jsonl {flags}", exits=0)
    serve_eval(f"run --dry-run {flags}", INTEGRATION_TEST="1", exits=0)
    serve_eval(f"run --dry-run {flags}", exits=3, prints="not the published set")


@pytest.mark.parametrize(
    "command", ["--version", "data list", "references list", "references power --total 99"]
)
@pytest.mark.parametrize("shell", ["| head -1", ">/dev/full"])
def test_a_listing_into_a_broken_stream_is_no_fail(command, shell):
    in_a_process(command, shell=shell, exits=0)


def _opened_by_a_reader(fifo, reader):
    """Open the pipe for writing as soon as the reader has opened it, and return the descriptor."""
    while True:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert reader.poll() is None
            time.sleep(0.02)


def test_ctrl_c_while_a_plan_is_read_is_an_interruption_and_no_fail(tmp_path):
    os.mkfifo(tmp_path / "plan.yaml")
    command = [sys.executable, "-m", "serve_eval", "run", str(tmp_path / "plan.yaml")]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        writing = _opened_by_a_reader(tmp_path / "plan.yaml", process)
        try:
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
            os.close(writing)
    assert process.returncode == 130
    assert "Traceback" not in said


def test_scipy_is_not_imported_where_no_verdict_needs_it(asked, tmp_path):
    def imports_scipy(*more):
        command = [
            sys.executable,
            "-X",
            "importtime",
            "-m",
            "serve_eval",
            *asked,
            "--model",
            "m",
            *more,
        ]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode in (0, 1, 3)
        return re.search(r"\|\s+scipy\b", done.stderr) is not None

    (tmp_path / "gsm8k.yaml").write_text("m:\n  - accuracy: 70\n")
    assert not imports_scipy("--dump-prompts", str(tmp_path / "prompts"), "--no-reference")
    assert not imports_scipy("-o", str(tmp_path / "out"), "--no-reference")
    assert not imports_scipy("-o", str(tmp_path / "judged"), "--references-dir", str(tmp_path))


def test_the_demo_does_not_write_into_a_folder_that_is_in_use(tmp_path):
    (tmp_path / "thesis.tex").touch()
    serve_eval(f"setup demo -o {tmp_path}", exits=2)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_unexpected_error_is_never_the_exit_code_of_a_fail(tmp_path):
    script = (
        "import sys; from serve_eval.cli import app; import serve_eval.cli.run as run\ndef"
        " broken(*a, **k): raise ZeroDivisionError('oops')\nrun.execute = broken; sys.argv ="
        " ['serve-eval', 'run', '--tasks', 'gsm8k', '--model', 'm']; app.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
    assert "unexpected ZeroDivisionError: oops" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_task_that_is_called_like_a_picture_keeps_its_name(tmp_path):
    cases = tmp_path / "a.yaml"
    cases.write_text("sound: {cases: [{case: x, input: {prompt: hi}, expected: {answer: b}}]}")
    flags = f"--launcher simulated -m m --cases {cases} --no-reference -o {tmp_path}/o"
    done = serve_eval(f"run {flags}")
    assert "cases:sound: 1/1 done" in done.stderr
    assert done.stdout.startswith(" NO REFERENCE   cases:sound  ")
    for text in (done.stdout, done.stderr, (tmp_path / "o/report.html").read_text()):
        assert "\U0001f509" not in text
