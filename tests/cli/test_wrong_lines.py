"""Lines that people type, and the line of serve-eval that answers each."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from serve_eval.cli._commands import find_entry, walk
from serve_eval.cli._wanted import find_commands
from serve_eval.cli._wrong_lines import FORMER, OTHER_OPTIONS
from serve_eval.errors import RunFolderError
from tests.cli.command import serve_eval
from tests.docs.commands import read_command

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
def test_a_wrong_line_is_answered_with_the_right_one(typed: str) -> None:
    done = serve_eval(*shlex.split(typed))
    assert done.returncode == 2
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
def test_a_task_of_lm_eval_names_ours(task: str, meant: str) -> None:
    done = serve_eval("run", "--base-url", "127.0.0.1:9", "--tasks", task)
    assert done.returncode == 2
    assert f"unknown task {task!r}. Did you mean {meant!r}?" in done.stderr


def test_every_former_command_is_answered_by_one_of_today() -> None:
    for name, today in FORMER.items():
        assert find_entry([name]) is None
        words = [word for word in today.split() if not word.startswith("-")]
        assert find_entry(words) is not None, name


@pytest.mark.parametrize("option", OTHER_OPTIONS)
def test_an_option_of_another_tool_is_answered_by_one_of_ours(option: str) -> None:
    done = serve_eval("run", option, "x")
    assert done.returncode == 2
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
def test_words_of_titles_name_the_command_that_answers(words: str, command: str) -> None:
    assert find_commands(words)[0].command == command
    said = serve_eval("--help", *words.split())
    assert said.returncode == 0
    assert f"serve-eval {command}" in said.stdout.splitlines()[2]


def test_titles_stand_in_the_help_of_their_command() -> None:
    for words, entry in walk():
        if entry.titles:
            said = " ".join(serve_eval(*words, "--help").stdout.split())
            assert f"Answers: {', '.join(entry.titles)}." in said


def test_titles_stand_in_the_list_of_pages_by_question() -> None:
    page = (Path(__file__).parents[2] / "docs/README.md").read_text(encoding="utf-8")
    for words, entry in walk():
        if entry.titles:
            assert f"| {', '.join(entry.titles)} | `{' '.join(words)}` | [" in page


def test_a_wrong_command_with_words_of_a_title_points_to_the_answer() -> None:
    done = serve_eval("my", "threshold", "is", "flaky")
    assert done.returncode == 2
    assert "serve-eval references power" in done.stderr


def test_help_all_lists_the_commands_of_every_group_within_80_columns() -> None:
    said = serve_eval("--help-all", COLUMNS="80").stdout
    assert max(map(len, said.splitlines())) <= 80
    for words, _ in walk():
        assert re.search(rf"^  {' '.join(words)}  ", said, re.MULTILINE), words
    of_data = serve_eval("data", "--help-all").stdout
    assert ("data cases expand" in of_data, "references take" in of_data) == (True, False)


def test_words_that_nothing_answers_say_so() -> None:
    assert find_commands("zebra") == []
    done = serve_eval("--help", "zebra")
    assert (done.returncode, "no help is about 'zebra'" in done.stderr) == (2, True)


def test_the_help_of_a_command_of_a_group_comes_by_its_words() -> None:
    assert (
        serve_eval("--help", "check", "load").stdout == serve_eval("check", "load", "--help").stdout
    )
