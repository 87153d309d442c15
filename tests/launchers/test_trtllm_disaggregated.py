import asyncio
import os
import shlex
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import yaml

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import trtllm_disaggregated
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._process import supervisor
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import gone, process_number

CONTEXT = LaunchContext(model="org/model", log_dir=Path("logs"))
NVFP4 = {"kv_cache_config": {"dtype": "nvfp4"}}
UCX = "'UCX_TLS=^ib'"


@pytest.fixture(autouse=True)
def _no_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def checked(**options):
    return registry.check_options(trtllm_disaggregated.launch, options, "launcher")


def lines(**options):
    return [
        shlex.join(line)
        for line in trtllm_disaggregated.commands(
            CONTEXT, trtllm_disaggregated.DisaggregatedOptions(**checked(**options))
        )
    ]


def written(**options):
    files = trtllm_disaggregated.files(
        CONTEXT, trtllm_disaggregated.DisaggregatedOptions(**checked(**options))
    )
    return {path.name: yaml.safe_load(text) for path, text in files.items()}


def start(context, story, **options):
    async def tell():
        given = checked(ready_timeout_s=20.0, **options)
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**given)
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


async def complete(endpoint):
    async with httpx.AsyncClient() as client:
        body = {"model": "m", "prompt": "p", "max_tokens": 4}
        reply = await client.post(endpoint.base_url + "/completions", json=body)
    text = reply.json()["choices"][0]["text"]
    assert isinstance(text, str)
    return text


# Pure


def test_one_and_one_need_no_options():
    assert lines() == [
        (
            f"env CUDA_VISIBLE_DEVICES=0 {UCX} trtllm-serve serve org/model --host 127.0.0.1 --port"
            " 8001 --config logs/context_servers.yaml"
        ),
        (
            f"env CUDA_VISIBLE_DEVICES=1 {UCX} trtllm-serve serve org/model --host 127.0.0.1 --port"
            " 8002 --config logs/generation_servers.yaml"
        ),
        (
            "env TRTLLM_DISAGG_NO_RETRY=1 trtllm-serve disaggregated -c logs/orchestrator.yaml -t"
            " 3660 -r 7200"
        ),
    ]
    assert written() == {
        "context_servers.yaml": {
            "cache_transceiver_config": {"backend": "UCX"},
            "disable_overlap_scheduler": True,
        },
        "generation_servers.yaml": {"cache_transceiver_config": {"backend": "UCX"}},
        "orchestrator.yaml": {
            "hostname": "127.0.0.1",
            "port": 8000,
            "max_retries": 0,
            "context_servers": {"num_instances": 1, "urls": ["127.0.0.1:8001"]},
            "generation_servers": {"num_instances": 1, "urls": ["127.0.0.1:8002"]},
        },
    }


def test_many_servers_get_blocks_of_gpus_context_first():
    options = {
        "context_servers": {
            "num_instances": 2,
            "router": "kv_cache_aware",
            "config": {"tensor_parallel_size": 1},
        },
        "generation_servers": {
            "num_instances": 1,
            "tp": 2,
            "pp": 2,
            "router": {"type": "load_balancing"},
        },
        "gpus": [7, 6, 5, 4, 3, 2],
        "env": {"UCX_TLS": None},
        "orchestrator": {"schedule_style": "generation_first"},
    }
    found = trtllm_disaggregated.commands(
        CONTEXT, trtllm_disaggregated.DisaggregatedOptions(**checked(**options))
    )
    assert [word for line in found for word in line if word.startswith("CUDA")] == [
        "CUDA_VISIBLE_DEVICES=7",
        "CUDA_VISIBLE_DEVICES=6",
        "CUDA_VISIBLE_DEVICES=5,4,3,2",
    ]
    assert found[0][:3] == ["env", "-u", "UCX_TLS"]
    assert found[2][-4:] == ["--pp_size", "2", "--config", "logs/generation_servers.yaml"]
    content = written(**options)["orchestrator.yaml"]
    assert content["context_servers"] == {
        "num_instances": 2,
        "urls": ["127.0.0.1:8001", "127.0.0.1:8002"],
        "router": {"type": "kv_cache_aware"},
    }
    assert content["generation_servers"]["router"] == {"type": "load_balancing"}
    assert content["schedule_style"] == "generation_first"


def test_a_side_may_load_a_model_of_its_own():
    """The context servers of test_mixed_ctx_gen_model load FP4, its generation servers FP8."""
    sides = {
        "context_servers": {"model": "nvidia/M-FP4", "num_instances": 2},
        "generation_servers": {"model": "nvidia/M-FP8"},
    }
    loaded = [
        shlex.split(line)[shlex.split(line).index("serve") + 1] for line in lines(**sides)[:3]
    ]
    assert loaded == ["nvidia/M-FP4", "nvidia/M-FP4", "nvidia/M-FP8"]
    one = lines(generation_servers={"model": "nvidia/M-FP8"}, model="org/all")
    assert [" serve org/all " in line for line in one] == [True, False, False]


def test_service_discovery_names_one_cluster_everywhere():
    found, files = lines(discovery=True, host="0.0.0.0"), written(discovery=True, host="0.0.0.0")
    assert found[0].endswith("--config logs/context_servers.yaml --server_role context")
    assert found[1].endswith("--server_role generation")
    section = files["orchestrator.yaml"]["disagg_cluster"]
    assert section == {
        "cluster_uri": "http://127.0.0.1:8000",
        "cluster_name": "serve-eval-8000",
        "minimal_instances": {"context_servers": 1, "generation_servers": 1},
        "heartbeat_interval_sec": 5,
        "inactive_timeout_sec": 10,
    }
    assert (
        files["context_servers.yaml"]["disagg_cluster"]
        == files["generation_servers.yaml"]["disagg_cluster"]
        == section
    )
    assert "urls" not in files["orchestrator.yaml"]["context_servers"]


UCX_BOTH = {"cache_transceiver_config": {"backend": "UCX"}}


def _transceivers(context, generation):
    return {
        "context_servers": {"config": {"cache_transceiver_config": context}},
        "generation_servers": {"config": {"cache_transceiver_config": generation}},
    }


@pytest.mark.parametrize(
    "options",
    [
        _transceivers({"backend": "UCX"}, {"backend": "UCX", "max_tokens_in_buffer": 8192}),
        _transceivers({"backend": "NIXL", "kv_transfer_timeout_ms": 60000}, {"backend": "NIXL"}),
        _transceivers({"backend": "DEFAULT"}, {"backend": "default"}),
        _transceivers({"backend": "NIXL", "transceiver_runtime": "auto"}, {"backend": "NIXL"}),
        {"context_servers": {"config": {"kv_cache_config": {"tokens_per_block": 32}}}},
    ],
)
def test_sides_may_differ_in_all_else(options):
    assert len(lines(gpus=[0, 1], **options)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {
                "context_servers": {"num_instances": 2, "tp": 2},
                "generation_servers": {"tp": 4},
                "gpus": [0, 1, 2, 3],
            },
            (
                r"8 GPUs are needed \(context_0 2, context_1 2, generation_0 4\), and gpus names 4:"
                r" 0,1,2,3"
            ),
        ),
        (
            {"context_servers": {"config": UCX_BOTH}},
            "generation_servers: cache_transceiver_config is missing, and context_servers have one",
        ),
        (
            {"generation_servers": {"config": {"kv_cache_config": {"dtype": "fp8"}}}},
            "type of the KV cache differs: context servers None, generation servers fp8",
        ),
        (
            _transceivers({"backend": "UCX"}, {"backend": "NIXL"}),
            "backend of cache_transceiver_config differs: context servers UCX, generation.* NIXL",
        ),
        (
            _transceivers(
                {"backend": "NIXL", "transceiver_runtime": "PYTHON"}, {"backend": "NIXL"}
            ),
            "transceiver_runtime of cache_transceiver_config differs: context.* PYTHON, .*None",
        ),
        (
            {"context_servers": {"config": {"kv_cache_config": {"tokens_per_block": 64}}}},
            "block size of the KV cache differs: context servers 64, generation servers None",
        ),
        ({"cache_transceiver": {"max_tokens_in_buffer": 8}}, "has no backend, which disables it"),
        (
            {"request_timeout_s": 3600},
            "would give up after 3600 s, before the client, which waits for 3600 s",
        ),
        ({"orchestrator": {"schedul_style": "x"}}, "schedul_style: unknown key"),
        ({"orchestrator": {"port": 1}}, "port: is written by the launcher"),
        (
            {"orchestrator": {"disagg_coordinator_url": "http://h:1"}},
            "disagg_coordinator_url: the launcher starts no coordinator elsewhere",
        ),
        ({"orchestrator": {"num_workers": 0}}, "num_workers: 0 is not a number of processes"),
        ({"orchestrator": {"num_workers": True}}, "num_workers: True is not a number of processes"),
        (
            {"orchestrator": {"num_workers": 2}, "discovery": True},
            "num_workers: servers register at one process, and 2 would share its port",
        ),
        ({"context_servers": {"router": {"use_tokens": True}}}, "router: a type is required"),
        (
            {"context_servers": {"config": {"disagg_cluster": {}}}},
            "disagg_cluster is written by the launcher",
        ),
        (
            {"generation_servers": {"env": {"CUDA_VISIBLE_DEVICES": None}}},
            "CUDA_VISIBLE_DEVICES: the launcher sets this variable",
        ),
        (
            {"generation_servers": {"extra_args": ["--kv_cache_dtype", "fp8"]}},
            "type of the KV cache differs: context servers None, generation servers fp8",
        ),
        (
            {
                "generation_servers": {"extra_args": ["--kv_cache_dtype=fp8"]},
                "context_servers": {"config": NVFP4},
            },
            "type of the KV cache differs: context servers nvfp4, generation servers fp8",
        ),
        ({"context_servers": {"num_instances": 0}}, "must be 1 or more"),
        (
            {"context_servers": {"instances": 2}},
            (
                "context_servers.instances: unknown option. Did you mean"
                " launcher.context_servers.num_inst"
            ),
        ),
        (
            {"context_servers": {"tp": 2, "config": {"tensor_parallel_size": 1}}},
            "tp is 2 and tensor_parallel_size",
        ),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        lines(**options)


def test_the_orchestrator_waits_longer_than_the_client():
    patient = replace(CONTEXT, patience_s=7200.0)
    assert trtllm_disaggregated.commands(
        patient, trtllm_disaggregated.DisaggregatedOptions(ready_timeout_s=100.5)
    )[-1][-4:] == ["-t", "161", "-r", "14400"]


def test_perf_metrics_are_kept_by_all_servers_when_they_are_asked_for():
    found = written(perf_metrics=True, context_servers={"config": {"perf_metrics_max_requests": 5}})
    asked_for = ("return_perf_metrics", "perf_metrics_max_requests")
    kept = {name: [content.get(key) for key in asked_for] for name, content in found.items()}
    assert kept == {
        "context_servers.yaml": [True, 5],
        "generation_servers.yaml": [True, 10_000],
        "orchestrator.yaml": [True, 10_000],
    }
    assert found["orchestrator.yaml"]["perf_metrics_output_dir"] == str(
        CONTEXT.log_dir / "perf_metrics"
    )


def test_the_orchestrator_alone_traces_its_requests_where_the_user_lets_it():
    def traced(**options):
        return [
            "TRTLLM_REQUEST_TRACE_DIR=logs/request_traces" in line
            for line in lines(perf_metrics=True, **options)
        ]

    assert traced() == [False, False, True]
    assert not any(traced(env={"TRTLLM_REQUEST_TRACE_DIR": None}))
    assert "TRTLLM_REQUEST_TRACE_DIR" not in "".join(lines())


# Lifecycle


@pytest.mark.parametrize("discovery", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_many_start_answer_and_stop(discovery, context, standin, said):
    standin(STANDIN_LOAD_S="0.2")
    assert start(context, complete, context_servers={"num_instances": 2}, discovery=discovery)
    names = ["context_0", "context_1", "generation_0", "orchestrator"]
    assert said.pop(0) == "transfer of the KV cache: UCX; NVLink not known; UCX_TLS=^ib"
    assert sorted(file.name for file in context.log_dir.glob("*.log")) == [
        f"{name}.log" for name in names
    ]
    assert all(gone(process_number(context, name)) for name in names)
    assert [line.partition(":")[0] for line in said[:4]] == names
    assert "the first completion" in said[-1]


@pytest.mark.parametrize("side", [pytest.param("context", marks=pytest.mark.slow), "generation"])
def test_one_that_ends_ends_all(side, context, standin):
    standin()

    async def killing(endpoint):
        os.kill(process_number(context, f"{side}_0"), signal.SIGKILL)
        await asyncio.sleep(60)

    began = time.monotonic()
    with pytest.raises(LaunchError, match=f"{side}_0 ended with signal 9"):
        start(context, killing)
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("flavour", ["v12", pytest.param("main", marks=pytest.mark.slow)])
def test_an_orchestrator_that_never_was_ready_ends_at_once_and_workers_keep_their_time(
    flavour, context, standin, said
):
    """It waits for its servers where it heeds no SIGTERM; the other worker takes 4 s to end."""
    faults = [
        {"crash_at_start": 1, "last_words": "Killed by the test", "when": {"gpus": "0"}},
        {"hang_at_start": True, "ignore_sigterm": True, "when": {"gpus": "1"}},
    ]
    standin(flavour, faults, STANDIN_LOAD_S="1")
    with pytest.raises(LaunchError, match="context_0 ended with exit code 1") as caught:
        start(context, complete, stop_timeout_s=4.0, auth_key=False)
    assert "Killed by the test" in str(caught.value)
    [waiting] = [line for line in said if line.startswith("waiting up to")]
    assert waiting.startswith("waiting up to 4 s for the end of generation_0;")
    log = (context.log_dir / "orchestrator.log").read_text()
    assert "Waiting for application startup" in log
    assert "Application startup complete" not in log


# Flavours


def test_an_option_that_this_version_lacks_is_refused_before_anything_starts(context, standin):
    standin("v12")
    options = {
        side: {"extra_args": ["--kv_cache_dtype", "fp8"]}
        for side in ("context_servers", "generation_servers")
    }
    with pytest.raises(PlanError, match="of this version has no option --kv_cache_dtype"):
        start(context, complete, **options)
    assert not context.log_dir.exists()


def test_telemetry_is_off_where_it_can_be(context, standin):
    standin("main")

    async def flags(endpoint):
        return (context.log_dir / "commands.sh").read_text()

    options = {"generation_servers": {"extra_args": ["--kv_cache_dtype", "auto"]}}
    assert start(context, flags, **options).count("--no-telemetry") == 3


async def test_a_command_whose_help_fails_is_an_error(context):
    with pytest.raises(LaunchError, match=r"(serve|disaggregated) --help ended with exit code 2"):
        await _launch_with(context, [sys.executable, "/nowhere.py"])


async def _launch_with(context, command):
    async with trtllm_disaggregated.launch(
        context, trtllm_disaggregated.DisaggregatedOptions(command=command)
    ):
        raise AssertionError("it started")


# Causes


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
            "out of GPU memory",
        ),
        ("RuntimeError: Failed to bind socket to localhost:8000: [Errno 98]", "its port is taken"),
        (
            "Error: No such option '--server-role'. Did you mean '--server_role'?",
            "it does not know an option",
        ),
        (
            "Error: Invalid value for '--backend': 'vllm' is not one of",
            "it does not accept the value of an option",
        ),
        (
            "kv_cache_transceiver is disabled, please set 'cache",
            "its cache transceiver is disabled",
        ),
        ("ValueError: No GPU devices found on the node", "it found too few GPUs"),
        (
            "OSError: foo is not a local folder and is not a valid model identifier",
            "its model was not found",
        ),
        ("INFO: all is well", None),
    ],
)
def test_known_causes(line, told):
    found = cause(f"INFO: first\n{line}\nlast")
    assert (found is None) if told is None else (found is not None and found[0].startswith(told))


def test_descendants_are_found_below_this_process():
    assert os.getpid() in supervisor.descendants(os.getppid())
