"""Test wrong lines, odd bounds and paths, and the line that answers each."""

import asyncio
import gzip
import json
import re
import shlex
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from serve_eval.cases.expansion import MOST_CASES, ExpansionError, expand
from serve_eval.cli._commands import find_entry, walk
from serve_eval.cli._usage import OTHER_OPTIONS, find_commands
from serve_eval.cli._wrong_lines import FORMER
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.prepare import MOST_ASKED
from serve_eval.launchers import external
from serve_eval.plugins.closest import LONGEST_COMPARED, MOST_COMPARED, find_closest, nearest
from serve_eval.report.text import keep_styles
from serve_eval.schema import MOST_REPEATS, LaunchContext
from tests.cli.command import serve_eval
from tests.test_pages import read_command

RUN = "run --base-url http://HOST:8000 --tasks gsm8k"
LM_EVAL = "--model local-completions --model_args base_url=http://h:8000/v1/completions,model=org/m"
TYPED = {
    "eval --tasks gsm8k": RUN,
    "evaluate": RUN,
    "test": RUN,
    "benchmark --task gsm8k": RUN,
    "gsm8k": RUN,
    "eval plan.yaml": "run plan.yaml",
    "test --url http://h:8000 --tasks mmlu": "run --base-url http://h:8000 --tasks mmlu",
    f"lm_eval {LM_EVAL} --tasks gsm8k --num_fewshot 5": (
        "run --base-url http://h:8000/v1 --model org/m --tasks gsm8k --num-fewshot 5"
    ),
    f"lm-eval {LM_EVAL},num_concurrent=32 --tasks mmlu --limit 10": (
        "run --base-url http://h:8000/v1 --model org/m --concurrency 32 --tasks mmlu --limit 10"
    ),
    "python -m lm_eval --model hf --model_args pretrained=org/m --tasks gsm8k": (
        "run --base-url http://HOST:8000 --model org/m --tasks gsm8k"
    ),
    "nemo-evaluator-launcher run --config-dir . -o out": (
        "run --base-url http://HOST:8000 -o out --tasks gsm8k"
    ),
    "nemo_evaluator run_eval --eval_type mmlu --model_id org/m --model_url http://h:8000": (
        "run --base-url http://h:8000 --model org/m --tasks gsm8k"
    ),
    "vllm bench serve --model org/m": "check load http://HOST:8000 --concurrency 1,32",
    "vllm serve org/m": "serve vllm --model org/m",
    "trtllm-serve org/m --port 8000": "serve trtllm --model org/m",
    "trtllm-serve serve org/m": "serve trtllm --model org/m",
    "trtllm-eval --model org/m gsm8k": "run --launcher trtllm --model org/m --tasks gsm8k",
    "trtllm-eval --model org/m gpqa_diamond --num_samples 10": (
        "run --launcher trtllm --model org/m --limit 10 --tasks gpqa"
    ),
    "trtllm-llmapi-launch trtllm-eval --model org/m gsm8k": "run PLAN.yaml --write-job DIR",
    "trtllm-bench --model org/m throughput": "check load http://HOST:8000 --concurrency 1,32",
    "sgl-eval run gsm8k --base-url http://h:30000": "run --base-url http://h:30000 --tasks gsm8k",
    "python3 -m sglang.test.run_eval --eval-name mmlu --num-examples 64": (
        "run --base-url http://HOST:8000 --tasks mmlu --limit 64"
    ),
    "guidellm benchmark --target http://h:8000": "check load http://h:8000 --concurrency 1,32",
    "genai-perf profile -m org/m": "check load http://HOST:8000 --concurrency 1,32",
    "aiperf profile --model org/m --url h:8000": "check load h:8000 --concurrency 1,32",
    "evalscope eval --model org/m --api-url http://h:8000/v1/chat/completions": (
        "run --base-url http://h:8000/v1 --model org/m --tasks gsm8k"
    ),
    "inspect eval task.py --model openai/m": (
        "run --base-url http://HOST:8000 --model openai/m --tasks gsm8k"
    ),
    "lighteval endpoint openai": RUN,
    "diff a b": "compare http://A:8000 http://B:8000",
    "health": "smoke http://HOST:8000",
    "why": "diagnose",
    "samples": "show",
    "monitor": "watch http://HOST:8000",
    "dashboard": "runs view outputs",
    "report": "runs view outputs",
    "baseline": "references take http://HOST:8000",
    "launch": "serve trtllm",
    "stop": "serve --stop ID",
    "ps": "serve --list",
    "download gsm8k": "data fetch gsm8k",
    "tasks": "data list tasks",
    "launchers": "data list launchers",
    "config": "setup init http://HOST:8000",
    "quickstart": "setup demo",
    "sample-size": "references power --total 1319",
    "rum plan.yaml": "run plan.yaml",
    "runz": "run",
    "suite nightly.yaml -o out": "run nightly.yaml -o out",
    "attribute out --samples 12": "check workers out --samples 12",
    "atribute out": "check workers out",
    "capsule out --sample test-1 --task t": "show out --task t test-1 --capsule",
    "rescore out --set gsm8k.filter=strict": "judge --rescore out --set gsm8k.filter=strict",
    "datasets fetch gsm8k --to data": "data fetch gsm8k -o data",
    "datasets verify --root data": "data check --dataset-root data",
    "datasets list": "data list datasets",
    "collect outputs --output t.csv": "runs table outputs -o t.csv",
    "check wokers out": "check workers out",
    "plan.yaml --dry-run": "run plan.yaml --dry-run",
    "http://h:8000": "smoke http://h:8000",
    "h:8000/v1": "smoke h:8000/v1",
    "data verify gsm8k": "data check gsm8k",
    "data datasets": "data list datasets",
    "runs list": "runs view",
    "check attribute out": "check workers out",
    "trtllm-serve disaggregated -c conf": "serve trtllm_disaggregated --model MODEL",
}
"""The words after `serve-eval` as typed, and as they are answered."""


@pytest.mark.parametrize("typed", TYPED)
def test_a_wrong_line_is_answered_with_the_right_one(typed):
    done = serve_eval(*shlex.split(typed), exits=2)
    assert done.stderr.startswith("error: there is no command ")
    right = re.search(r"^Write: serve-eval (.*)$", done.stderr, re.MULTILINE)
    assert right is not None, done.stderr
    assert right[1] == TYPED[typed]
    with suppress(RunFolderError):  # no run is the latest
        read_command(shlex.split(right[1]))


@pytest.mark.parametrize(
    ("task", "meant"),
    [("gsm8k_cot", "gsm8k"), ("gpqa_diamond", "gpqa"), ("mmlu_generative", "mmlu")],
)
def test_a_task_of_lm_eval_names_ours(task, meant):
    serve_eval(
        f"run --base-url 127.0.0.1:9 --tasks {task}",
        exits=2,
        tells=f"unknown task {task!r}. Did you mean {meant!r}?",
    )


def test_every_former_command_is_answered_by_one_of_today():
    for name, today in FORMER.items():
        assert find_entry([name]) is None
        words = [word for word in today.split() if not word.startswith("-")]
        assert find_entry(words) is not None, name


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_an_option_of_another_tool_is_answered_by_one_of_ours(option):
    done = serve_eval("run", option, "x", exits=2)
    assert f"there is no option {option}: write {OTHER_OPTIONS[option]}" in done.stderr


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("accuracy drop", "compare"),
        ("accuracy regression", "compare"),
        ("low GSM8K score", "diagnose"),
        ("garbage output", "smoke"),
        ("sanity check", "smoke"),
        ("flaky threshold", "references power"),
        ("cannot reproduce", "diagnose"),
        ("which worker is bad", "check workers"),
        ("wrong answers at high concurrency", "check load"),
        ("nondeterministic output", "check invariants"),
        ("tool calls", "check tools"),
        ("monitor production", "watch"),
        ("dashboard", "runs view"),
        ("same model", "verify"),
    ],
)
def test_words_of_titles_name_the_command_that_answers(words, command):
    assert find_commands(words)[0].command == command
    said = serve_eval("--help", *words.split(), exits=0)
    assert f"serve-eval {command}" in said.stdout.splitlines()[2]


def test_titles_stand_in_the_help_of_their_command():
    for words, entry in walk():
        if entry.titles:
            said = " ".join(serve_eval(*words, "--help").stdout.split())
            assert f"Answers: {', '.join(entry.titles)}." in said


def test_titles_stand_in_the_list_of_pages_by_question():
    page = (Path(__file__).parents[2] / "docs/README.md").read_text(encoding="utf-8")
    for words, entry in walk():
        if entry.titles:
            assert f"| {', '.join(entry.titles)} | `{' '.join(words)}` | [" in page


def test_a_wrong_command_with_words_of_a_title_points_to_the_answer():
    serve_eval("my threshold is flaky", exits=2, tells="serve-eval references power")


def test_help_all_lists_the_commands_of_every_group_within_80_columns():
    said = serve_eval("--help-all", COLUMNS="80").stdout
    assert max(map(len, said.splitlines())) <= 80
    for words, _ in walk():
        assert re.search(rf"^  {' '.join(words)}  ", said, re.MULTILINE), words
    of_data = serve_eval("data --help-all").stdout
    assert ("data cases expand" in of_data, "references take" in of_data) == (True, False)


def test_words_that_nothing_answers_say_so():
    assert find_commands("zebra") == []
    serve_eval("--help zebra", exits=2, tells="no help is about 'zebra'")


def test_the_help_of_a_command_of_a_group_comes_by_its_words():
    assert serve_eval("--help check load").stdout == serve_eval("check load --help").stdout


ESC = "\x1b]0;owned\x07\x1b[2J"


@pytest.mark.parametrize(
    "columns", ["0", "-3", "1", "99999999999999999999", "wide", "²", " 80", ""]
)
def test_an_odd_width_is_ignored(columns):
    usual = serve_eval("data list tasks", COLUMNS="80")
    odd = serve_eval("data list tasks", COLUMNS=columns, LINES=columns)
    assert (odd.returncode, odd.stdout) == (0, usual.stdout)


def test_folders_of_one_second_never_collide(tmp_path):
    script = (
        "from serve_eval.storage.command_folder import claim_default_folder as claim\n"
        "for _ in range(20): print(claim('same').name)\n"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    names = [name for one in started for name in one.communicate(timeout=60)[0].split()]
    assert (len(names), len(set(names))) == (60, 60)


def test_a_command_that_wrote_nothing_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    serve_eval("run --launcher simulated --tasks word_problems --limit 2", exits=3)
    assert not (tmp_path / "outputs").exists()


def _cases(tmp_path, text):
    file = tmp_path / "cases.yaml"
    file.write_text(text)
    done = serve_eval(f"run --launcher simulated --cases {file} --no-reference -o {tmp_path}/out")
    assert (done.returncode, (tmp_path / "out").exists()) == (2, False), done.stderr
    return done.stderr


def test_iterations_and_repeats_have_a_bound_that_the_error_names(tmp_path):
    case = (
        "sums:\n  iterations: {}\n"
        "  cases: [{{case: a, input: {{prompt: x}}, expected: {{answer: x}}}}]\n"
    )
    assert f"{MOST_REPEATS}" in _cases(tmp_path, case.format(1_000_000_000))
    serve_eval(
        "run --tasks gsm8k --base-url h:1 --repeats 1000000000",
        exits=2,
        tells=f"at most {MOST_REPEATS:,}",
    )
    serve_eval(
        "run --tasks word_problems --launcher simulated --no-reference --repeats 100000"
        f" -o {tmp_path}/out",
        exits=2,
        tells=f"the limit is {MOST_ASKED:,}",
    )
    assert not (tmp_path / "out").exists()


def test_the_product_over_axes_has_a_bound_that_the_error_names():
    axis = {f"k{i}": f"v{i}" for i in range(100)}
    case = {"case": "a", "input": dict.fromkeys(("a", "b", "c", "d", "e"), axis)}
    with pytest.raises(ExpansionError, match=f"the limit is {MOST_CASES:,}"):
        next(expand({**case, "axes": ["a", "b", "c", "d", "e"]}))


def test_a_look_up_of_a_huge_name_is_bounded():
    huge = "x" * 1_000_000
    assert find_closest(huge, ["gsm8k", huge]) == []
    assert find_closest("gsm8", ["gsm8k", huge]) == ["gsm8k"]
    many = [f"name-{i}" for i in range(1_000_000)]
    assert find_closest("name-5", many) == ["name-5"]
    assert find_closest(many[-1] + "-zzzzzzzz", many[MOST_COMPARED:]) != []
    assert len(nearest("q", [huge] * 9)) < 10 * LONGEST_COMPARED


class _Server(threading.Thread):
    """A server on the loopback that answers every connection with the same bytes, for ever."""

    def __init__(self, head, piece):
        import socket

        super().__init__(daemon=True)
        self.head, self.piece, self.sent = head, piece, 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}/v1"

    def run(self):
        while True:
            try:
                client, _ = self.socket.accept()
                with client:
                    client.recv(65536)
                    client.sendall(self.head)
                    while self.sent < 200_000_000:
                        client.sendall(self.piece)
                        self.sent += len(self.piece)
            except OSError:
                if self.socket.fileno() < 0:
                    return


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd", "gzip, gzip", "identity"])
def test_the_wait_for_an_answer_reads_no_body(encoding):
    piece = gzip.compress(b"0" * 100_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\n\r\n".encode()
    server = _Server(head, piece)
    server.start()

    async def wait():
        options = external.ExternalOptions(base_url=server.url, ready_timeout_s=20.0)
        context = LaunchContext(model="m", log_dir=Path())
        async with external.launch(context, options) as endpoint:
            return endpoint.base_url

    assert asyncio.run(wait()) == server.url
    server.socket.close()
    assert server.sent < 100_000_000


@pytest.mark.parametrize(
    "words",
    [
        "run --launcher simulated --tasks word_problems --limit 2 -o",
        "verify h:1 h:2 -o",
        "compare h:1 h:2 --tasks word_problems -o",
        "check load --base-url h:1 --tasks word_problems -o",
        "check tools --base-url 127.0.0.1:9 -o",
        "check invariants --base-url h:1 --tasks word_problems -o",
        "setup demo -o",
        "smoke 127.0.0.1:9 -o",
        "watch 127.0.0.1:9 -o",
        "show",
        "diagnose",
        "judge",
        "judge --rescore",
        "runs merge",
        "runs view",
        "runs trend",
        "runs table",
        "run --resume",
        "run",
        "runs export",
    ],
)
@pytest.mark.parametrize("kind", ["file", "under-a-file/x", "broken", "n" * 300])
def test_a_path_of_the_wrong_kind_is_an_error_of_the_user(tmp_path, words, kind):
    (tmp_path / "file").write_text("text")
    (tmp_path / "under-a-file").write_text("text")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    done = serve_eval(f"{words} {tmp_path}/{kind}")
    assert "defect" not in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (2, 3, 4, 5), done.stderr
    assert done.stderr.strip()


def test_a_null_character_in_a_plan_is_an_error_of_the_user(tmp_path):
    plan = {"model": "m", "tasks": ["word_problems"], "launcher": {"name": "simulated"}}
    plan |= {"output_dir": "a\0b", "no_reference": True, "limit": 2}
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    done = serve_eval(f"run {tmp_path}/plan.yaml", exits=2, tells="null")
    assert "defect" not in done.stderr


def test_collect_writes_no_controls_of_foreign_texts(tmp_path):
    log = tmp_path / "a.log"
    log.write_text(
        f"Hypothesis testing: {ESC}\nMODEL_NAME: {ESC}\n"
        "[TRT-LLM] MMLU weighted average accuracy: 55.5\n"
    )
    done = serve_eval(f"runs table {log}")
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        (f"a{ESC}b", "ab"),
        (
            "\x1b]8;id=1;http://h\x1b\\link\x1b]8;;\x1b\\",
            "\x1b]8;id=1;http://h\x1b\\link\x1b]8;;\x1b\\",
        ),
        ("\x1b[2A\x1b[1mx", "\x1b[1mx"),
        ("plain\ttext\n", "plain\ttext\n"),
    ],
)
def test_drawn_text_keeps_colours_and_links_only(text, kept):
    assert keep_styles(text) == kept


@pytest.mark.parametrize(
    ("flag", "option"),
    [
        ("--temperature", "temperature"),
        ("--num-samples", "num_samples"),
        ("--sampling-seed", "seed"),
    ],
)
def test_a_flag_of_run_that_compare_lacks_is_set_for_a_task(flag, option):
    serve_eval(
        "compare a b",
        flag,
        "1",
        exits=2,
        tells=f"no option {flag}: set it for a task, --set TASK.{option}=VALUE",
    )


@pytest.mark.parametrize("command", ["compare h:1 h:2", "verify h:1 h:2", "check load h:1"])
@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("base_url=h:3", "name the endpoint as an argument, or in its plan"),
        ("output_dir=out", "write -o DIR"),
        ("shard=1/2", "only serve-eval run asks a part of the samples"),
    ],
)
def test_a_key_that_would_change_both_sides_is_refused(command, given, instead):
    done = serve_eval(*command.split(), "--set", given, exits=2)
    assert f"--set {given.partition('=')[0]}: {instead}" in done.stderr


def test_list_of_a_name_prints_the_command_that_describes_it():
    done = serve_eval("data list word_problems", exits=2)
    assert "serve-eval data list tasks word_problems" in done.stderr.splitlines()
