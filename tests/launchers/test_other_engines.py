"""Test launchers of servers other than TensorRT-LLM's: command lines, start and requests."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import llama_cpp, transformers_serve, vllm
from serve_eval.plugins import registry
from serve_eval.schema import Endpoint, LaunchContext

OPTIONS: dict[Any, Any] = {
    llama_cpp: llama_cpp.LlamaCppOptions,
    transformers_serve: transformers_serve.TransformersOptions,
    vllm: vllm.VllmOptions,
}
CONTEXT = LaunchContext(model="my-model", log_dir=Path("logs"))
FAKE = Path(__file__).with_name("fake_engine.py")
ALIAS = "--alias my-model --parallel 4"
TOKEN = "hf_" + 4 * "0aB1cD2e"


@pytest.mark.parametrize(
    ("launcher", "options", "line"),
    [
        (
            llama_cpp,
            {"model": "/models/m.gguf"},
            f"llama-server --model /models/m.gguf --host 127.0.0.1 --port 8000 {ALIAS}",
        ),
        (
            llama_cpp,
            {
                "model": "m.gguf",
                "context_tokens": 512,
                "parallel": 16,
                "threads": 1,
                "gpu_layers": 0,
                "port": 9000,
            },
            (
                "llama-server --model m.gguf --host 127.0.0.1 --port 9000 --alias my-model"
                " --parallel 16 --ctx-size 8192 --threads 1 --n-gpu-layers 0"
            ),
        ),
        (
            llama_cpp,
            {
                "model": "m.gguf",
                "gpus": [3, "GPU-ab"],
                "extra_args": ["--metrics"],
                "env": {"A": "b", "C": None},
            },
            (
                "env -u C CUDA_VISIBLE_DEVICES=3,GPU-ab A=b llama-server --model m.gguf --host"
                f" 127.0.0.1 --port 8000 {ALIAS} --metrics"
            ),
        ),
        (
            llama_cpp,
            {
                "model": "m.gguf",
                "server": "python",
                "context_tokens": 512,
                "prompt_logprobs": True,
                "threads": 2,
            },
            (
                "env PYTHONSAFEPATH=1 python3 -m llama_cpp.server --model m.gguf --host 127.0.0.1"
                " --port 8000 --model_alias my-model --n_ctx 512 --n_threads 2 --n_threads_batch 2"
                " --interrupt_requests false --logits_all true"
            ),
        ),
        (
            transformers_serve,
            {},
            "transformers serve my-model --host 127.0.0.1 --port 8000",
        ),
        (
            transformers_serve,
            {
                "command": "/v/bin/transformers",
                "device": "cpu",
                "dtype": "float32",
                "continuous_batching": True,
            }
            | {"threads": 1, "model": "org/m", "extra_args": ["--log-level", "info"]},
            (
                "env OMP_NUM_THREADS=1 /v/bin/transformers serve org/m --host 127.0.0.1 --port 8000"
                " --device cpu --dtype float32 --continuous-batching --log-level info"
            ),
        ),
    ],
)
def test_the_command_line(launcher: ModuleType, options: dict[str, Any], line: str) -> None:
    assert registry.check_options(launcher.launch, options, "launcher") == options
    assert [
        shlex.join(command) for command in launcher.commands(CONTEXT, OPTIONS[launcher](**options))
    ] == [line]


@pytest.mark.parametrize(
    ("launcher", "options", "problem"),
    [
        (llama_cpp, {"parallel": 0}, "launcher.parallel: 0 is less than 1"),
        (llama_cpp, {"context_tokens": 0}, "launcher.context_tokens: 0"),
        (
            llama_cpp,
            {"prompt_logprobs": True},
            "llama-server returns no log-probabilities of prompts",
        ),
        (llama_cpp, {"extra_args": ["--ctx-size=9"]}, "--ctx-size is set by the launcher"),
        (
            llama_cpp,
            {"server": "python", "extra_args": ["--n_ctx", "9"]},
            "--n_ctx is set by the launcher",
        ),
        (llama_cpp, {"extra_args": ["--api-key", TOKEN]}, "a plan must not contain a secret"),
        (llama_cpp, {"gpus": [1, 1]}, "twice"),
        (llama_cpp, {"port": 0}, "launcher.port: 0"),
        (llama_cpp, {"command": []}, "launcher.command"),
        (transformers_serve, {"threads": 0}, "launcher.threads"),
        (transformers_serve, {"env": {"HF_TOKEN": TOKEN}}, "a plan must not contain a secret"),
        (transformers_serve, {"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "launcher.gpus"),
        (vllm, {"max_model_len": 0}, "launcher.max_model_len: 0 is less than 1"),
        (vllm, {"tp": 2, "gpus": [3]}, "2 GPUs are needed"),
        (vllm, {"extra_args": ["--block_size", "9"]}, "--block_size is set by the launcher"),
        (vllm, {"extra_args": ["-tp=9"]}, "-tp is set by the launcher"),
        (vllm, {"extra_args": ["--speculative-config.method=ngram"]}, "is set by the launcher"),
        (vllm, {"extra_args": ["--model", "other"]}, "--model is set by the launcher"),
        (vllm, {"extra_args": ["--api-key", TOKEN]}, "a plan must not contain a secret"),
    ],
)
def test_what_cannot_be_launched_is_told_before(
    launcher: ModuleType, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PlanError) as told:
        launcher.commands(CONTEXT, OPTIONS[launcher](**options))
    assert problem in f"{told.value} {told.value.hint}"


def test_without_a_model_its_name_is_asked_for() -> None:
    with pytest.raises(PlanError, match="name a GGUF file"):
        llama_cpp.commands(
            LaunchContext(model=None, log_dir=Path("logs")), llama_cpp.LlamaCppOptions()
        )


def _launched(launcher: ModuleType, context: LaunchContext, **options: Any) -> Endpoint:
    given = OPTIONS[launcher](ready_timeout_s=20.0, answer_timeout_s=10.0, **options)

    async def story() -> Endpoint:
        async with launcher.launch(context, given) as endpoint:
            found: Endpoint = endpoint
            return found

    return asyncio.run(story())


@pytest.mark.parametrize(
    ("launcher", "kind", "options", "asked"),
    [
        (llama_cpp, "llama-server", {}, "org/model"),
        (llama_cpp, "llama-cpp-python", {"server": "python"}, "org/model"),
        (transformers_serve, "transformers", {"model": "."}, str(Path.cwd())),
        (vllm, "vllm", {"model": "."}, "org/model"),
    ],
)
def test_it_is_started_and_answers(
    launcher: ModuleType,
    kind: str,
    options: dict[str, Any],
    asked: str,
    context: LaunchContext,
    said: list[str],
) -> None:
    command = [sys.executable, "-I", str(FAKE), kind]
    endpoint = _launched(launcher, context, command=command, **options)
    assert endpoint.model == asked
    assert endpoint.base_url.endswith("/v1")
    assert any("the first completion took" in line for line in said)
    assert "started with" in (context.log_dir / f"{launcher.NAME}.log").read_text()


def test_an_executable_that_is_not_there_is_named(context: LaunchContext) -> None:
    with pytest.raises(LaunchError, match="no-such-server is not on PATH"):
        _launched(llama_cpp, context, command="no-such-server")
