"""Test that no started process has a secret of ours in its environment.

The environment is read from the machine.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from serve_eval.errors import PlanError
from serve_eval.launchers import container, simulated, trtllm
from serve_eval.launchers._machine import local_gpus
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.supervisor import descendants
from serve_eval.schema import Endpoint, LaunchContext
from tests.launchers.conftest import Engine
from tests.launchers.processes import process_number
from tests.launchers.test_container import checked

SECRETS = {
    "SECRET_XYZ": "secret-1",
    "OPENAI_API_KEY": "secret-2",
    "AWS_SECRET_ACCESS_KEY": "secret-3",
    "VLLM_API_KEY": "secret-4",
    "DOCKER_AUTH_CONFIG": "secret-5",
    "CI_JOB_TOKEN": "secret-6",
    "NVIDIA_APIKEY": "secret-7",
    "DOCKER_CREDENTIAL": "secret-8",
    "PODMAN_PASSPHRASE": "secret-9",
}
NEEDED = {
    "HF_TOKEN": "hf-1",
    "HF_HOME": "/models",
    "TRTLLM_X": "1",
    "NCCL_DEBUG": "INFO",
    "https_proxy": "http://p:1",
}
MEMORY_USED = local_gpus.memory_used


@pytest.fixture
def around(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that sets secrets and the variables that servers need."""

    def put() -> None:
        for name, value in {**SECRETS, **NEEDED, "TEAM_KEY": "team"}.items():
            monkeypatch.setenv(name, value)

    return put


def _environment_of(pid: int | str) -> dict[str, str]:
    return dict(
        pair.partition("=")[::2]
        for pair in Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
        if "=" in pair
    )


def _below_us() -> dict[int, Mapping[str, str]]:
    """Return the processes of the launch: our descendants that have its mark."""
    found = {
        pid: _environment_of(pid)
        for pid in descendants(os.getpid())
        if Path(f"/proc/{pid}/exe").exists()
    }
    return {pid: env for pid, env in found.items() if environment.MARK in env}


def _check(env: Mapping[str, str]) -> None:
    assert not set(SECRETS) & set(env)
    assert not set(SECRETS.values()) & set(env.values())


def test_a_server_gets_what_it_needs_and_what_is_named(
    context: LaunchContext, standin: Callable[..., None], around: Callable[[], None]
) -> None:
    standin()
    around()

    async def story() -> tuple[dict[str, str], dict[int, Mapping[str, str]]]:
        async with trtllm.launch(
            context, trtllm.TrtllmOptions(ready_timeout_s=20.0, pass_env=["TEAM_KEY"])
        ):
            return _environment_of(process_number(context)), _below_us()

    server, all_of_them = asyncio.run(story())
    assert {name: server.get(name) for name in NEEDED} == NEEDED
    assert server["TEAM_KEY"] == "team"
    assert server["STANDIN_FLAVOUR"] == "v12", "named by SERVE_EVAL_PASS_ENV"
    assert len(all_of_them) >= 2, "the supervisor and the server"
    for env in (server, *all_of_them.values()):
        _check(env)


def test_a_container_and_its_client_get_no_more(
    engine: Engine, context: LaunchContext, around: Callable[[], None]
) -> None:
    around()

    async def story() -> tuple[dict[str, str], dict[int, Mapping[str, str]]]:
        async with container.launch(
            context,
            container.ContainerOptions(
                **checked(ready_timeout_s=30.0, trtllm={"pass_env": ["TEAM_KEY"]})
            ),
        ):
            return _environment_of(process_number(context)), _below_us()

    inside, all_of_them = asyncio.run(story())
    assert (inside["TEAM_KEY"], inside["HF_TOKEN"]) == ("team", "hf-1")
    assert all_of_them
    for env in (inside, *all_of_them.values()):
        _check(env)
    assert any("TEAM_KEY" in words for words in map(str, engine.asked()))
    assert "=team" not in str(engine.asked())


def test_a_server_of_ours_gets_what_any_program_needs(
    tmp_path: Path, around: Callable[[], None]
) -> None:
    around()
    context = LaunchContext(
        model="m",
        log_dir=tmp_path,
        write_answer_file=lambda path, chance: path.write_text("") and None,
    )

    async def story() -> Endpoint:
        async with simulated.launch(context, simulated.SimulatedOptions()) as endpoint:
            _check(env := _environment_of(str(endpoint.info.pid)))
            assert "HF_TOKEN" not in env
            assert env["PATH"] == os.environ["PATH"]
        return endpoint

    asyncio.run(story())


def test_a_command_that_tells_of_the_machine_gets_no_secret(
    tmp_path: Path, around: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    around()
    (smi := tmp_path / "nvidia-smi").write_text(
        f"#!/bin/sh\nenv > {tmp_path}/seen\necho 0, GPU-1, 5\n"
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    assert MEMORY_USED() == {local_gpus.Gpu("0", "GPU-1"): 5}
    _check(
        env := dict(
            line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines()
        )
    )
    assert env["SLURM_CONF"] == "/etc/slurm.conf"


@pytest.mark.parametrize("names", [["A=b"], ["CUDA_VISIBLE_DEVICES"], ["A B"], [""]])
def test_what_is_no_name_of_a_variable_is_refused(context: LaunchContext, names: list[str]) -> None:
    with pytest.raises(PlanError, match=r"launcher\.pass_env"):
        trtllm.commands(context, trtllm.TrtllmOptions(pass_env=names))


def test_a_secret_in_a_plan_is_refused_with_what_to_do(context: LaunchContext) -> None:
    with pytest.raises(PlanError) as hub:
        trtllm.commands(context, trtllm.TrtllmOptions(env={"HF_TOKEN": "x"}))
    assert hub.value.hint == "Export HF_TOKEN: servers inherit it."
    with pytest.raises(PlanError) as other:
        trtllm.commands(context, trtllm.TrtllmOptions(env={"TEAM_KEY": "x"}))
    assert other.value.hint == "Export TEAM_KEY, and name it in pass_env."


def test_whose_names_are_given_are_passed_all_the_same() -> None:
    environ = {"UCX_TLS": "tcp", "SITE_A": "1", "SITE_B": "2", "SLURM_PROCID": "0"}
    assert environment.inherit(environ) == {"UCX_TLS": "tcp"}
    assert environment.inherit(environ, ["SITE_*"]) == {
        k: v for k, v in environ.items() if k != "SLURM_PROCID"
    }
    by_variable = {**environ, "SERVE_EVAL_PASS_ENV": "SITE_A, SITE_B"}
    assert {"SITE_A", "SITE_B"} <= environment.inherit(by_variable).keys()
    assert sys.platform != "linux" or "PATH" in environment.inherit(dict(os.environ))
