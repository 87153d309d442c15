"""Test how parts of a deployment talk: MPI ranks and transfers of the KV cache.

`mpi_logs` holds output of the stand-in and of real MPIs, by version of Open MPI. tests/mpi starts
such servers.
"""

import asyncio
import subprocess
from pathlib import Path

import pytest

from serve_eval.launchers import container, llama_cpp, slurm, trtllm, trtllm_disaggregated
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._process import environment
from serve_eval.launchers._slurm.step_container import SlurmContainer
from serve_eval.launchers._trtllm import deployments, kv_transfer
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.deployments import Disaggregated
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.launchers._trtllm.servers import summarise_transfer
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import process_number

LOGS = Path(__file__).with_name("mpi_logs")
CONTEXT = LaunchContext(model="org/model", log_dir=Path("/out/logs"))
WORDS = {"PRTE_ALLOW_RUN_AS_ROOT=1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1"}
MPIRUN_4 = """OMPI_APP_CTX_NUM_PROCS OMPI_ARGV OMPI_COMMAND OMPI_COMM_WORLD_LOCAL_RANK
OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE
OMPI_FILE_LOCATION OMPI_FIRST_RANKS OMPI_MCA_ess OMPI_MCA_ess_base_jobid OMPI_MCA_ess_base_vpid
OMPI_MCA_initial_wdir OMPI_MCA_mpi_oversubscribe OMPI_MCA_orte_app_num OMPI_MCA_orte_bound_at_launch
OMPI_MCA_orte_ess_node_rank OMPI_MCA_orte_ess_num_procs OMPI_MCA_orte_hnp_uri
OMPI_MCA_orte_jobfam_session_dir OMPI_MCA_orte_launch OMPI_MCA_orte_local_daemon_uri
OMPI_MCA_orte_num_nodes OMPI_MCA_orte_precondition_transports OMPI_MCA_orte_tmpdir_base
OMPI_MCA_orte_top_session_dir OMPI_MCA_pmix OMPI_MCA_shmem_RUNTIME_QUERY_hint OMPI_NUM_APP_CTX
OMPI_UNIVERSE_SIZE PMIX_BFROP_BUFFER_TYPE PMIX_DSTORE_21_BASE_PATH PMIX_DSTORE_ESH_BASE_PATH
PMIX_GDS_MODULE PMIX_HOSTNAME PMIX_ID PMIX_MCA_mca_base_component_show_load_errors PMIX_NAMESPACE
PMIX_RANK PMIX_SECURITY_MODE PMIX_SERVER_TMPDIR PMIX_SERVER_URI2 PMIX_SYSTEM_TMPDIR PMIX_VERSION"""
MPIRUN_5 = """OMPI_ARGV OMPI_COMMAND OMPI_COMM_WORLD_RANK OMPI_LIBDIR_LOC OMPI_MCA_PREFIXES
OMPI_MCA_cpu_type OMPI_MCA_initial_wdir OMPI_MCA_num_procs OMPI_TOOL_NAME OMPI_VERSION
OMPI_WORLD_LOCAL_SIZE OMPI_WORLD_SIZE PMIX_BFROP_BUFFER_TYPE PMIX_GDS_MODULE PMIX_NAMESPACE
PMIX_PARAM_FILE_PASSED PMIX_RANK PMIX_SERVER_URI41"""
SETTINGS = {
    "OMPI_MCA_btl": "^openib",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PMIX_MCA_gds": "hash",
    "PMIX_INSTALL_PREFIX": "/opt/ompi",
    "UCX_TLS": "rc,cuda",
    "UCX_NET_DEVICES": "mlx5_0:1",
    "MPI4PY_LIBMPI": "/opt/libmpi.so",
}


@pytest.fixture
def root(monkeypatch):
    monkeypatch.setattr(kv_transfer, "we_are_root", lambda: True)


@pytest.mark.parametrize(
    ("log", "what", "cure"),
    [
        ("root_5", "Open MPI starts no processes for root", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"),
        ("no_prte_5", "did not find its program prte", "on PATH"),
        ("slots_4", "fewer slots (cores)", "OMPI_MCA_rmaps_base_oversubscribe: '1'"),
        ("slurm_4", "believed that it was a rank", "pass_env"),
        ("btl_4", "cannot reach each other", "Unset OMPI_MCA_btl"),
        ("btl_5", "cannot reach each other", "Unset OMPI_MCA_btl"),
    ],
)
def test_why_ranks_did_not_start(log, what, cure):
    found = cause((LOGS / f"{log}.log").read_text())
    assert what in found[0]
    assert cure in found[1]


def test_of_an_unknown_failure_its_kind_is_told():
    lines = (LOGS / "no_prte_5.log").read_text().splitlines()
    spawning = cause("\n".join(line for line in lines if "dpm.c" not in line))
    assert "MPI did not start its ranks" in spawning[0]
    other = cause("mpi4py.MPI.Exception: MPI_ERR_TRUNCATE: message truncated")
    assert other[0] == "MPI failed"
    assert (
        cause("rank 0 using MpiPoolSession to spawn MPI processes\nMPI_SUCCESS: no errors") is None
    )


@pytest.mark.parametrize("written", [MPIRUN_4, MPIRUN_5])
def test_inside_mpirun_settings_are_kept_and_marks_are_not(written):
    marks = dict.fromkeys(written.split(), "x")
    assert environment.inherit({**marks, **SETTINGS}) == SETTINGS
    assert environment.inherit({"OMPI_MCA_pmix": "^s1", **SETTINGS}) == {
        "OMPI_MCA_pmix": "^s1",
        **SETTINGS,
    }


@pytest.mark.parametrize("written", [MPIRUN_4, MPIRUN_5])
def test_the_shell_of_a_step_takes_away_the_same_but_for_what_mpirun_sets(written):
    environ = {
        **dict.fromkeys(written.split(), "x"),
        "SLURM_PROCID": "0",
        "PMI_RANK": "0",
        "MPI_X": "1",
        **SETTINGS,
    }
    done = subprocess.run(
        ["bash", "-c", f"{environment.FORGET}; env"], env=environ, capture_output=True, text=True
    )
    left = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert left >= SETTINGS.keys()
    assert not [
        name
        for name in left - SETTINGS.keys()
        if name.startswith(environment.FOREIGN) and "_MCA_" not in name
    ]


@pytest.mark.usefixtures("root")
def test_ranks_of_root_are_allowed_on_this_machine_and_in_steps():
    assert set(trtllm.commands(CONTEXT, trtllm.TrtllmOptions())[0]) >= WORDS
    context, generation, orchestrator = trtllm_disaggregated.commands(
        CONTEXT, trtllm_disaggregated.DisaggregatedOptions()
    )
    assert set(context) & set(generation) >= WORDS
    assert not WORDS & set(orchestrator)
    assert set(slurm.commands(CONTEXT, slurm.SlurmOptions())[0]) >= WORDS
    assert (
        WORDS
        & set(
            trtllm.commands(CONTEXT, trtllm.TrtllmOptions(env={"PRTE_ALLOW_RUN_AS_ROOT": None}))[0]
        )
        < WORDS
    )


def test_other_servers_and_other_users_are_not():
    for commands in (
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions()),
        trtllm_disaggregated.commands(CONTEXT, trtllm_disaggregated.DisaggregatedOptions()),
        slurm.commands(CONTEXT, slurm.SlurmOptions()),
    ):
        assert not [words for words in commands if WORDS & set(words)]


@pytest.mark.usefixtures("root")
def test_engines_without_mpi_get_none_of_it():
    assert not WORDS & set(
        llama_cpp.commands(CONTEXT, llama_cpp.LlamaCppOptions(model="/m.gguf"))[0]
    )


@pytest.mark.parametrize(
    ("user", "allowed"), [(None, True), ("0:0", True), ("root", True), ("1000", False)]
)
def test_in_a_container_it_is_its_own_user_that_counts(user, allowed):
    [words] = container.commands(CONTEXT, container.ContainerOptions(image="i", user=user))
    assert (set(words) >= WORDS) == allowed
    by_engine = {"container": {"image": "i", "engine": "docker", "user": user}}
    [step] = slurm.commands(
        CONTEXT, slurm.SlurmOptions(**registry.check_options(slurm.launch, by_engine, "launcher"))
    )
    assert (set(step) >= WORDS) == allowed


def test_pyxis_may_make_root_of_us():
    [step] = slurm.commands(CONTEXT, slurm.SlurmOptions(container=SlurmContainer(image="i")))
    assert set(step) >= WORDS


def test_an_orchestrator_in_a_container_has_no_ranks():
    *workers, orchestrator = container.commands(
        CONTEXT, container.ContainerOptions(image="i", trtllm_disaggregated=Disaggregated())
    )
    assert all(set(words) >= WORDS for words in workers)
    assert not WORDS & set(orchestrator)


def server(name, *before, **more):
    return Server(
        name=name, argv=(*before, "s", "serve"), probe=("s",), place=Place(host="h", port=1), **more
    )


def test_what_is_not_passed_on_is_told_with_the_reason():
    environ = {"UCX_TLS": "rc", "OMPI_MCA_btl": "tcp", "PATH": "/bin", "OMPI_COMM_WORLD_RANK": "0"}
    replaced = "your UCX_TLS; the launcher or the plan sets it there"
    outside = "your OMPI_MCA_btl; to pass it into a container, name it in its pass_env"
    assert kv_transfer.describe_ranks([server("a")], environ) == []
    three = [
        server(name, env={"UCX_TLS": value})
        for name, value in (("a", "^ib"), ("b", "^ib"), ("c", "rc"))
    ]
    assert kv_transfer.describe_ranks(three, environ) == [
        f"not passed on to a and 1 more: {replaced}"
    ]
    assert kv_transfer.describe_ranks([server("a", "srun", "env", "UCX_TLS=^ib")], environ) == [
        f"not passed on to a: {replaced}"
    ]
    within = server("a", "docker", "-e", "UCX_TLS=^ib", image="i")
    assert kv_transfer.describe_ranks([within], environ) == [
        f"not passed on to a: {outside}",
        f"not passed on to a: {replaced}",
    ]
    assert (
        kv_transfer.describe_ranks(
            [server("a", image="i", pass_env=("UCX_TLS", "OMPI_MCA_btl"))], environ
        )
        == []
    )


@pytest.mark.usefixtures("root")
def test_a_launch_tells_once_and_the_servers_have_it(
    context,
    standin,
    said,
    monkeypatch,
):
    standin()
    monkeypatch.setenv("OMPI_MCA_btl", "^openib")
    monkeypatch.setenv("UCX_TLS", "rc")

    async def story():
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(ready_timeout_s=20.0)
        ):
            for name in ("context_0", "generation_0"):
                environ = (
                    Path(f"/proc/{process_number(context, name)}/environ").read_text().split("\0")
                )
                assert {"OMPI_MCA_btl=^openib", "UCX_TLS=^ib", *WORDS} <= set(environ)

    asyncio.run(story())
    told = [line for line in said if "PRTE" in line or "not passed on" in line]
    assert len(told) == 2
    assert "PRTE_ALLOW_RUN_AS_ROOT=1" in told[0]
    assert told[1].startswith("not passed on to context_0 and 1 more: your UCX_TLS")
    assert "PRTE_ALLOW_RUN_AS_ROOT=1" in (context.log_dir / "commands.sh").read_text()


UUID = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Write an nvidia-smi that prints the file `said` and exits with the code in `code`."""
    (path := tmp_path / "bin/nvidia-smi").parent.mkdir()
    path.write_text(
        f'#!/bin/sh\n[ "$*" = "nvlink -s" ] || exit 9\ncat {tmp_path}/said\nexit $(cat'
        f" {tmp_path}/code)\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        (f"{UUID}\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n", 0, True),
        (f"{UUID}\t Link 0: <inactive>\n\t Link 1: 25 GB/s\n", 0, True),
        (f"{UUID}\t Link 0: <inactive>\n", 0, False),
        (f"{UUID}Device does not have or support Nvlink\n", 0, False),
        ("", 1, False),
        (f"{UUID}\t Link 0: 25 GB/s\n", 1, False),
    ],
)
def test_links_are_those_that_nvidia_smi_shows(text, code, found, smi):
    (smi / "said").write_text(text)
    (smi / "code").write_text(str(code))
    assert kv_transfer.nvlink() is found


def test_nothing_is_assumed_without_nvidia_smi(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert kv_transfer.nvlink() is None


@pytest.mark.parametrize(
    ("backend", "ways", "found"),
    [
        ("UCX", Ways(), {"UCX_TLS": "^ib"}),
        ("UCX", Ways(nvlink=True), {"UCX_TLS": "^ib"}),
        ("UCX", Ways(nvlink=False), {"UCX_TLS": "^cuda_ipc"}),
        ("nixl", Ways(nvlink=False), {"UCX_TLS": "^cuda_ipc", "UCX_MM_ERROR_HANDLING": "y"}),
        ("DEFAULT", Ways(), {"UCX_TLS": "^ib", "UCX_MM_ERROR_HANDLING": "y"}),
        ("NIXL", Ways(nvlink=False, own=frozenset({"UCX_TLS"})), {"UCX_MM_ERROR_HANDLING": "y"}),
        ("UCX", None, {}),
    ],
)
def test_the_ways_of_ucx(backend, ways, found):
    assert kv_transfer.variables(backend, ways) == found


@pytest.mark.parametrize(
    ("options", "ways", "told"),
    [
        ({}, Ways(nvlink=False), "UCX; no NVLink; UCX_TLS=^cuda_ipc"),
        ({}, Ways(), "UCX; NVLink not known; UCX_TLS=^ib"),
        (
            {"cache_transceiver": {"backend": "NIXL"}},
            Ways(nvlink=True),
            "NIXL; NVLink found; UCX_TLS=^ib",
        ),
        (
            {"cache_transceiver": {"backend": "DEFAULT"}},
            None,
            "DEFAULT, as this version reads it; NVLink not known",
        ),
        ({"env": {"UCX_TLS": None}}, Ways(nvlink=True), "UCX; NVLink found; UCX_TLS not set"),
        ({"env": {"UCX_TLS": "tcp,cuda"}}, Ways(own=frozenset({"UCX_TLS"})), "UCX_TLS=tcp,cuda"),
        ({}, Ways(own=frozenset({"UCX_TLS"})), "UCX_TLS as it was inherited"),
    ],
)
def test_what_is_told(options, ways, told, context):
    deployment = deployments.Disaggregated(**options)
    summary = summarise_transfer(deployment, context, ways)
    assert summary is not None
    assert told in kv_transfer.describe_transfer(summary)
    assert summarise_transfer(deployments.Aggregated(), context, ways) is None


def test_what_a_user_hands_on_is_not_set_anew(context, monkeypatch):
    monkeypatch.setenv("UCX_TLS", "cuda,tcp")
    monkeypatch.setenv("UCX_MM_ERROR_HANDLING", "n")
    nixl = {"cache_transceiver": {"backend": "NIXL"}}
    [first, *_] = trtllm_disaggregated.commands(
        context, trtllm_disaggregated.DisaggregatedOptions(pass_env=["UCX_TLS"], **nixl)
    )
    assert not [word for word in first if word.startswith("UCX_")]
    [first, *_] = trtllm_disaggregated.commands(
        context,
        trtllm_disaggregated.DisaggregatedOptions(
            pass_env=["UCX_TLS"], env={"UCX_TLS": "sm"}, **nixl
        ),
    )
    assert "UCX_TLS=sm" in first
    served = deployments.Disaggregated(pass_env=["UCX_TLS"], cache_transceiver={"backend": "NIXL"})
    [first, *_] = container.commands(
        context, container.ContainerOptions(image="i", trtllm_disaggregated=served)
    )
    assert [word for word in first if word.startswith("UCX_")] == [
        "UCX_MM_ERROR_HANDLING=y",
        "UCX_TLS",
    ]
    [first, *_] = slurm.commands(
        context, slurm.SlurmOptions(trtllm_disaggregated=served, nodes=["n1"], gpus_per_node=2)
    )
    assert not [word for word in first if word.startswith("UCX_")]


@pytest.mark.parametrize(
    ("names", "environ", "kept"),
    [
        ([], {"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "warn"}, {"UCX_LOG_LEVEL"}),
        (["UCX_TLS"], {"UCX_TLS": "tcp"}, {"UCX_TLS"}),
        (["UCX_*"], {"UCX_TLS": "tcp"}, {"UCX_TLS"}),
        ([], {"UCX_TLS": "tcp", "SERVE_EVAL_PASS_ENV": "A, UCX_TLS"}, {"UCX_TLS"}),
        (["UCX_TLS"], {"PATH": "/bin"}, set()),
    ],
)
def test_the_ways_of_a_cluster_are_kept_only_where_they_are_named(names, environ, kept):
    assert kv_transfer.list_inherited(names, environ) == kept
