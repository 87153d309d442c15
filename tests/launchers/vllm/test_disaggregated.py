"""Launch prefill and decode servers with an orchestrator, with a fake engine for vLLM.

tests/vllm launches real ones.
"""

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import vllm_disaggregated
from serve_eval.launchers._vllm import deployment
from serve_eval.launchers._vllm.deployment import VllmDisaggregatedOptions
from serve_eval.launchers.vllm_disaggregated import job_size, launch
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext

ENGINE = Path(__file__).parents[1] / "fake_engine.py"
COMMAND = [sys.executable, "-I", str(ENGINE), "vllm"]
CONTEXT = LaunchContext(model="my-model", log_dir=Path("logs"))


def _options(**given):
    return VllmDisaggregatedOptions(**registry.check_options(launch, given, "launcher"))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"context_servers": {"block_size": 32}, "generation_servers": {"block_size": 64}},
            "block_size is 32 on context servers and 64 on generation servers",
        ),
        ({"generation_servers": {"kv_cache_dtype": "fp8"}}, "kv_cache_dtype is None on context"),
        ({"dtype": "float16", "context_servers": {"dtype": "bfloat16"}}, "dtype is bfloat16 on"),
        ({"context_servers": {"num_instances": 0}}, "context_servers.num_instances: must be 1"),
        ({"generation_servers": {"tp": 0}}, "launcher.generation_servers.tp: 0 is less than 1"),
        ({"gpus": [0]}, "2 GPUs are needed (context_0 1, generation_0 1)"),
        ({"extra_args": ["--kv-transfer-config", "{}"]}, "--kv-transfer-config is set by"),
        ({"context_servers": {"extra_args": ["-pp=2"]}}, "context_servers.extra_args: -pp=2"),
        ({"extra_args": ["--data_parallel_size", "2"]}, "launcher.extra_args: --data_parallel"),
        ({"connector_config": {"kv_role": "kv_both"}}, "kv_role is set by the launcher"),
        (
            {"connector_config": {"kv_connector_extra_config": {"shared_storage_path": "/x"}}},
            "shared_storage_path is set by the launcher",
        ),
        ({"connector_config": {"kv_connector_extra_config": 3}}, "must be a mapping"),
        ({"env": {"API_KEY": "sk-" + 8 * "0aB1cD2e"}}, "a plan must not contain a secret"),
    ],
)
def test_what_cannot_be_launched_is_told_before(options, problem):
    with pytest.raises(PlanError) as told:
        vllm_disaggregated.commands(CONTEXT, _options(**options))
    assert problem in f"{told.value} {told.value.hint}"


def test_a_side_has_the_options_of_both_where_it_has_none_of_its_own():
    options = _options(
        eager=True, max_model_len=512, generation_servers={"eager": False, "quantization": "fp8"}
    )
    first, second, _ = vllm_disaggregated.commands(CONTEXT, options)
    assert "--enforce-eager" in first
    assert "--enforce-eager" not in second
    assert ("--quantization" in first, "--quantization" in second) == (False, True)
    assert all("--max-model-len" in line for line in (first, second))


@pytest.mark.parametrize(
    ("options", "gpus"),
    [({}, 2), ({"tp": 2, "context_servers": {"num_instances": 2}}, 6), ({"gpus": []}, 0)],
)
def test_the_size_of_a_job(options, gpus):
    assert job_size(CONTEXT, _options(**options)).gpus_per_node == gpus


@pytest.mark.parametrize(
    ("env", "tls"),
    [
        ({"context_servers": {}, "generation_servers": {}}, None),
        ({"context_servers": {"UCX_TLS": "tcp"}, "generation_servers": {"UCX_TLS": "tcp"}}, "tcp"),
        (
            {"context_servers": {}, "generation_servers": {"UCX_TLS": "tcp"}},
            "context not set, generation tcp",
        ),
    ],
)
def test_the_report_has_the_transports_of_both_sides(env, tls):
    assert deployment.summarise("nixl", env).ucx_tls == tls


def _launched(context, story, **given):
    options = _options(command=COMMAND, ready_timeout_s=60.0, answer_timeout_s=30.0, **given)

    async def run():
        async with launch(context, options) as endpoint:
            await story(endpoint)

    asyncio.run(run())


async def _ask(endpoint):
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        body = {"model": endpoint.model, "prompt": "Hi", "max_tokens": 4}
        return await client.post(endpoint.base_url + "/completions", json=body)


def test_servers_and_front_door_start_and_hand_over(context, said):
    async def story(endpoint):
        servers = endpoint.info.servers or {}
        assert list(servers) == ["context_0", "generation_0", "generation_1", "orchestrator"]
        replies = [await _ask(endpoint) for _ in range(2)]
        for reply in replies:
            text = reply.json()["choices"][0]["text"]
            assert text == f"4 {servers['context_0'].rpartition(':')[2]}"
            assert reply.headers["X-Context-Server"] == "context_0"
        assert {reply.headers["X-Generation-Server"] for reply in replies} == {
            "generation_0",
            "generation_1",
        }
        assert endpoint.info.kv_transfer.backend == "NixlConnector"

    _launched(context, story, generation_servers={"num_instances": 2})
    assert any("transfer of the KV cache: NixlConnector" in line for line in said)


def test_each_server_has_its_own_port_for_nixl(context):
    ports = []

    async def story(endpoint):
        for words in endpoint.info.commands or ():
            ports.extend(one for one in words if one.startswith("VLLM_NIXL_SIDE_CHANNEL_PORT="))
        ports.extend(f"{url.rpartition(':')[2]}" for url in (endpoint.info.servers or {}).values())

    _launched(context, story)
    numbers = [one.rpartition("=")[2] for one in ports]
    assert len(numbers) == len(set(numbers)) == 5


def test_the_folder_of_the_cache_is_the_launch_s_own_and_is_deleted(context, tmp_path):
    old = tmp_path / "kv/of_another_model"
    old.mkdir(parents=True)

    async def story(endpoint):
        [made] = [one for one in (tmp_path / "kv").iterdir() if one != old]
        assert made.stat().st_mode & 0o777 == 0o700
        assert str(made) in str(endpoint.info.commands)
        (made / "layer.safetensors").write_bytes(b"keys")

    _launched(context, story, connector="folder", kv_folder=str(tmp_path / "kv"))
    assert list((tmp_path / "kv").iterdir()) == [old]


def test_the_end_of_a_context_server_ends_the_launch_and_names_it(context):
    async def story(endpoint):
        port = (endpoint.info.servers or {})["context_0"].rpartition(":")[2]
        os.kill(_find_server(port), signal.SIGKILL)
        await asyncio.sleep(30)

    with pytest.raises(LaunchError, match="context_0"):
        _launched(context, story)


def _find_server(port):
    """Return the process of a launched server by its port on the command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(ENGINE).encode() in words[:4] and port.encode() in words:
                return int(folder.name)
    raise AssertionError


def test_a_plan_with_a_model_of_the_hub_needs_no_folder():
    options = replace(_options(), model="org/other")
    line = " ".join(vllm_disaggregated.commands(CONTEXT, options)[0])
    assert "vllm serve org/other --served-model-name my-model" in line
