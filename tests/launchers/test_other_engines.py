"""Test launchers of servers other than TensorRT-LLM's, also external and simulated ones."""

import asyncio
import math
import shlex
import socket
import sys
import time
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import external, llama_cpp, transformers_serve, vllm
from serve_eval.launchers._simulated.simulator import SimulatorConfig, serve
from serve_eval.launchers.simulated import _mixture, probability
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext, ServerInfo

OPTIONS = {
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
def test_the_command_line(launcher, options, line):
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
def test_what_cannot_be_launched_is_told_before(launcher, options, problem):
    with pytest.raises(PlanError) as told:
        launcher.commands(CONTEXT, OPTIONS[launcher](**options))
    assert problem in f"{told.value} {told.value.hint}"


def test_without_a_model_its_name_is_asked_for():
    with pytest.raises(PlanError, match="name a GGUF file"):
        llama_cpp.commands(
            LaunchContext(model=None, log_dir=Path("logs")), llama_cpp.LlamaCppOptions()
        )


def _launched(launcher, context, **options):
    given = OPTIONS[launcher](ready_timeout_s=20.0, answer_timeout_s=10.0, **options)

    async def story():
        async with launcher.launch(context, given) as endpoint:
            return endpoint

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
    launcher,
    kind,
    options,
    asked,
    context,
    said,
):
    command = [sys.executable, "-I", str(FAKE), kind]
    endpoint = _launched(launcher, context, command=command, **options)
    assert endpoint.model == asked
    assert endpoint.base_url.endswith("/v1")
    assert any("the first completion took" in line for line in said)
    assert "started with" in (context.log_dir / f"{launcher.NAME}.log").read_text()


def test_an_executable_that_is_not_there_is_named(context):
    with pytest.raises(LaunchError, match="no-such-server is not on PATH"):
        _launched(llama_cpp, context, command="no-such-server")


CONTEXT_EXTERNAL = LaunchContext(model="a/b", log_dir=Path("logs"))


async def launched(base_url, ready_timeout_s=0.0):
    async with external.launch(
        CONTEXT_EXTERNAL,
        external.ExternalOptions(base_url=base_url, ready_timeout_s=ready_timeout_s),
    ) as endpoint:
        return endpoint


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def test_nothing_is_started():
    assert external.commands(CONTEXT_EXTERNAL, external.ExternalOptions(base_url="host:8000")) == []


async def test_the_address_is_yielded_as_given_without_a_look_at_it():
    endpoint = await launched("host.invalid:8000")
    assert (endpoint.base_url, endpoint.model) == ("host.invalid:8000", "a/b")
    assert endpoint.info == ServerInfo(launcher="external")


async def test_any_http_answer_means_ready():
    async with serve(SimulatorConfig()) as base_url:
        address = base_url.removeprefix("http://")  # GET of it is a 404
        assert (await launched(address, ready_timeout_s=5)).base_url.startswith("127.0.0.1:")


async def test_a_server_that_comes_later_is_waited_for():
    port = free_port()
    waiting = asyncio.create_task(launched(f"http://127.0.0.1:{port}/v1", ready_timeout_s=10))
    await asyncio.sleep(0.2)
    assert not waiting.done()
    async with serve(SimulatorConfig(), port=port):
        await waiting


async def test_a_port_where_nobody_listens_is_an_error_in_time():
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"does not answer within 0\.3 s"):
        await launched(f"http://127.0.0.1:{free_port()}/v1", ready_timeout_s=0.3)
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("address", ["ftp://127.0.0.1/v1", "http://127.0.0.1:port/v1"])
async def test_what_is_no_address_is_an_error_at_once(address):
    with pytest.raises(LaunchError, match="is not an address"):
        await launched(address, ready_timeout_s=60)


IDS = [str(i) for i in range(2000)]


@st.composite
def mixtures(draw):
    """Draw a compatible accuracy and flip rate."""
    flip_rate = draw(st.floats(0.0, 1 / 3))
    half = min(3 * flip_rate / 2, 0.5)
    accuracy = draw(st.floats(half, 1 - half))
    assume(half <= accuracy <= 1 - half and 3 * flip_rate <= 1)
    return accuracy, flip_rate


@given(mixtures())
def test_the_mixture_has_the_declared_mean_and_the_declared_flip_rate(
    mixture,
):
    accuracy, flip_rate = mixture
    share, sure = _mixture(accuracy, flip_rate)
    assert 0.0 <= share <= 1.0
    assert 0.0 <= sure <= 1.0
    assert share / 2 + (1 - share) * sure == pytest.approx(accuracy)
    assert share * 2 * (1 / 2 - 1 / 3) == pytest.approx(flip_rate)


@settings(max_examples=50, deadline=None)
@given(mixtures(), st.integers(0, 1000))
def test_the_prompts_have_the_mean_and_the_flip_rate_of_the_mixture(mixture, seed):
    accuracy, flip_rate = mixture
    of = probability(accuracy, flip_rate, seed)
    chances = [of("task", i) for i in IDS]
    assert all(0.0 <= p <= 1.0 for p in chances)
    # 6 standard errors, with at most 1/4 and 1/16 for the variances of p and of 2 p (1 - p)
    assert abs(sum(chances) / len(IDS) - accuracy) < 6 * math.sqrt(1 / 4 / len(IDS))
    assert abs(sum(2 * p * (1 - p) for p in chances) / len(IDS) - flip_rate) < 6 * math.sqrt(
        1 / 16 / len(IDS)
    )


@given(st.floats(0.0, 1.0), st.text(), st.text(max_size=20).filter(lambda s: s.isascii()))
def test_without_a_flip_rate_every_prompt_has_the_accuracy(accuracy, task, sample_id):
    assert probability(accuracy, None, 0)(task, sample_id) == accuracy


def test_a_flip_rate_of_zero_makes_every_prompt_certain():
    chances = [probability(0.75, 0.0, 0)("task", i) for i in IDS]
    assert set(chances) == {0.0, 1.0}
    assert abs(sum(chances) / len(IDS) - 0.75) < 4 * math.sqrt(0.75 * 0.25 / len(IDS))


def test_the_same_seed_task_and_id_have_the_same_probability_and_others_do_not():
    of, again, other = probability(0.6, 0.2, 1), probability(0.6, 0.2, 1), probability(0.6, 0.2, 2)
    assert [of("task", i) for i in IDS] == [again("task", i) for i in IDS]
    assert [of("task", i) for i in IDS] != [other("task", i) for i in IDS]
    assert [of("task", i) for i in IDS] != [of("another", i) for i in IDS]


def test_accuracies_may_be_given_per_task():
    of = probability({"mmlu": 0.6, "gsm8k": 0.9}, None, 0)
    assert (of("mmlu", "1"), of("gsm8k", "1")) == (0.6, 0.9)
    with pytest.raises(LaunchError, match=r"no entry for the task 'arc', only for mmlu, gsm8k"):
        of("arc", "1")


@pytest.mark.parametrize(
    ("accuracy", "flip_rate", "said"),
    [
        (1.2, None, r"accuracy of 1\.2 is not between 0 and 1"),
        ({"mmlu": -0.1}, None, r"accuracy of -0\.1"),
        (0.5, 0.4, r"flip_rate of 0\.4 is not between 0 and 1/3"),
        (0.5, -0.1, r"flip_rate of -0\.1"),
        (0.9, 0.2, r"between 0\.3 and 0\.7 and cannot be 0\.9"),
        (float("nan"), None, "accuracy of nan"),
        (0.5, float("nan"), "flip_rate of nan"),
    ],
)
def test_impossible_wishes_are_refused_with_their_numbers(accuracy, flip_rate, said):
    with pytest.raises(PlanError, match=said):
        probability(accuracy, flip_rate, 0)
