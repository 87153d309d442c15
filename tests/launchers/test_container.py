import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers import container
from serve_eval.launchers._trtllm import containers
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.containers import Container
from serve_eval.plugins import registry
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import process_number
from tests.root import ROOT

CONTEXT = LaunchContext(model="org/model", log_dir=Path("/runs/r/logs"))
SOURCE = "type=bind,source="


def checked(**options):
    return registry.check_options(container.launch, {"image": "image:1", **options}, "launcher")


def line(**options):
    return container.commands(CONTEXT, container.ContainerOptions(**checked(**options)))[0]


# Pure


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trtllm": {}, "trtllm_disaggregated": {}}, "give only one"),
        ({"network": "bridge", "trtllm_disaggregated": {}}, "need the network host"),
        ({"shm_size": "8g"}, "with ipc: host the size is that of the host"),
        ({"mounts": ["~/models:/models"]}, "give full paths"),
        ({"mounts": ["/models"]}, "give full paths"),
        ({"pass_env": ["HF_TOKEN=hf_secret"]}, "launcher.pass_env: HF_TOKEN: names only"),
        ({"run_args": ["-d"]}, "run_args: -d is set by the launcher"),
        ({"run_args": ["-itd"]}, "run_args: -itd is set by the launcher"),
        ({"run_args": ["--env=HF_TOKEN=x"]}, "run_args: --env is set by the launcher"),
        (
            {"trtllm": {"env": {"HF_TOKEN": "hf_x"}}},
            "env.HF_TOKEN: a plan must not contain a secret",
        ),
        ({"trtllm": {"model": "./model"}}, "full paths only"),
        (
            {"trtllm_disaggregated": {"context_servers": {"model": "./fp4"}}},
            "the model ./fp4: a container accepts full paths only",
        ),
        ({"trtllm": {"model": "/models/a,b"}}, "its name contains a comma"),
        ({"trtllm": {"gpus": [0]}}, "trtllm.gpus: unknown option. Did you mean launcher.gpus"),
        ({"engine": "lxc"}, "engine"),
        ({"image": ""}, "the name of an image is required"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(PlanError, match=message):
        line(**options)


@pytest.mark.parametrize(
    ("options", "mounted"),
    [
        ({}, []),
        ({"trtllm": {"model": "/models/x"}}, ["/models/x"]),
        ({"trtllm": {"model": "/models/x"}, "mounts": ["/data:/models:ro"]}, []),
        ({"trtllm": {"model": "/models/x"}, "mount_paths": False}, []),
        (
            {
                "trtllm": {
                    "model": "/h/hub/models--org--m/snapshots/abc",
                    "extra_args": ["--chat_template=/t/a.jinja"],
                }
            },
            ["/h/hub/models--org--m", "/t/a.jinja"],
        ),
        (
            {
                "trtllm": {
                    "model": "/models/x",
                    "extra_args": ["--tokenizer", "/models/x/tokenizer"],
                }
            },
            ["/models/x"],
        ),
    ],
)
def test_full_paths_are_mounted_once_and_read_only(options, mounted):
    found = [word for word in line(**options) if word.startswith(SOURCE)]
    assert found == [f"{SOURCE}{path},target={path},readonly=true" for path in mounted]


def test_a_config_of_the_users_own_is_mounted_and_one_of_ours_with_its_folder(
    tmp_path,
):
    (own := tmp_path / "own.yaml").write_text("max_num_tokens: 1\n")
    assert f"{SOURCE}{own},target={own},readonly=true" in line(trtllm={"config": str(own)})
    assert f"{SOURCE}/runs/r/logs,target=/runs/r/logs" in line(
        trtllm={"config": {"max_num_tokens": 1}}
    )


def test_what_tells_of_the_flags_is_the_same_in_every_launch():
    def probe(name, gpu, folder):
        server = Server(
            name=name,
            argv=("trtllm-serve", "serve", "m", "--config", f"{folder}/c.yaml"),
            probe=("trtllm-serve", "serve"),
            place=Place(host="127.0.0.1", port=1, gpus=(gpu,)),
            files={Path(folder) / "c.yaml": ""},
        )
        wrapped = containers.wrap(server, Container(image="image:1"), "launch")
        assert wrapped.options == server.options
        assert wrapped.at_end == ("docker", "rm", "-f", f"serve-eval-launch-{name}")
        return wrapped.probe

    assert probe("context_0", "0", "/a") == probe("generation_1", "3", "/b")
    assert probe("context_0", "0", "/a")[-3:] == ("image:1", "trtllm-serve", "serve")


REAL = shutil.which("docker")


@pytest.mark.skipif(REAL is None, reason="no client of Docker is installed")
@pytest.mark.parametrize(
    "options",
    [
        {"gpus": [0, 1], "trtllm": {"tp": 2, "model": "/models/x", "env": {"A": "b c", "B": None}}},
        {
            "network": "bridge",
            "ipc": "private",
            "shm_size": "8g",
            "user": "1000:1000",
            "run_args": ["-w", "/tmp"],
        },
        {"mounts": ["/data:/data:ro", "volume:/v"], "trtllm": {"config": {"max_num_tokens": 1}}},
    ],
)
def test_a_real_client_understands_the_run_line(options):
    words = line(**options)
    words[words.index("docker")] = str(REAL)

    def said(words):
        env = {**os.environ, "DOCKER_HOST": "unix:///nowhere.sock"}
        done = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 125
        return done.stderr

    assert "Cannot connect to the Docker daemon at unix:///nowhere.sock" in said(words)
    for good, bad in (("--gpus", "--gpu"), ("memlock=-1", "memlock=x")):
        assert "Cannot connect" not in said([bad if word == good else word for word in words])


# Lifecycle


def start(context, story, **options):
    async def tell():
        async with container.launch(
            context, container.ContainerOptions(**checked(ready_timeout_s=30.0, **options))
        ) as endpoint:
            return await story(endpoint)

    return asyncio.run(tell())


def test_containers_serve_and_are_gone_afterwards(engine, context):
    async def story(endpoint):
        return engine.names()

    names = start(context, story, trtllm_disaggregated={})
    kinds = ("context_0", "generation_0", "orchestrator")
    assert [name.rpartition("-")[2] for name in names] == list(kinds)
    (prefix,) = {name.rpartition("-")[0] for name in names}
    assert engine.names() == []
    said = json.dumps(engine.asked()) + "".join(
        file.read_text() for file in context.log_dir.iterdir()
    )
    assert "hf_not_to_be_seen" not in said
    assert sum("--help" in argv for argv in engine.asked()) == 2
    again = start(context, story, trtllm={})
    assert not again[0].startswith(prefix)


def test_the_environment_goes_in_by_name_and_by_value(engine, context):
    async def story(endpoint):
        pairs = Path(f"/proc/{process_number(context)}/environ").read_text().split("\0")
        return dict(pair.partition("=")[::2] for pair in pairs)

    found = start(context, story, trtllm={"env": {"MINE": "a b", "STANDIN_FLAVOUR": None}})
    assert (found["MINE"], found["HF_TOKEN"]) == ("a b", "hf_not_to_be_seen")
    assert not {"CUDA_VISIBLE_DEVICES", "STANDIN_FLAVOUR"} & set(found)


def test_a_deaf_container_is_removed(engine, context):
    async def story(endpoint):
        return engine.names()

    options = {
        "trtllm": {"env": {"STANDIN_FAULTS": '{"ignore_sigterm": true}'}},
        "stop_timeout_s": 0.3,
    }
    assert len(start(context, story, **options)) == 1
    assert engine.names() == []


def test_a_container_is_removed_whose_supervisor_was_killed(engine, context):
    async def killing(endpoint):
        (client,) = [
            folder for folder in Path("/proc").glob("[0-9]*") if _is_client(folder, engine)
        ]
        status = (client / "status").read_text().split()
        os.kill(int(status[status.index("PPid:") + 1]), signal.SIGKILL)
        await asyncio.sleep(60)

    with pytest.raises(LaunchError, match="trtllm ended with signal 9"):
        start(context, killing, trtllm={})
    assert engine.names() == []


def _is_client(folder, engine):
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return str(engine.socket).encode() in words and b"--name" in words


def test_an_engine_that_does_not_run_is_told(context, tmp_path, monkeypatch):
    (client := tmp_path / "bin/docker").parent.mkdir()
    said = (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon"
        " running?"
    )
    client.write_text(f'#!/bin/sh\necho "{said}" >&2\nexit 125\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:{os.environ['PATH']}")
    with pytest.raises(LaunchError, match="exit code 125") as caught:
        start(context, None)
    assert "Start it" in caught.value.hint


@pytest.mark.parametrize(
    ("loading", "inside"),
    [(True, {"STANDIN_LOAD_S": "60"}), (False, {"STANDIN_FAULTS": '{"ignore_sigterm": true}'})],
    ids=["loading", "asking"],
)
def test_a_run_that_is_killed_leaves_no_container(loading, inside, engine, tmp_path, data_root):
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        f"model: org/model\ntasks: [gsm8k]\ndataset_root: {data_root}\nno_reference: true\nlimits:"
        " {rate_limit: 1}\nlauncher: {name: container, image: 'image:1', stop_timeout_s: 1,"
        f" trtllm: {{env: {json.dumps(inside)}}}}}\n"
    )
    with subprocess.Popen(
        [sys.executable, "-m", "serve_eval", "run", str(plan), "-o", str(tmp_path / "run")],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        try:
            assert run.stderr is not None
            assert any(
                ("started" if loading else "first completion") in text for text in run.stderr
            )
            deadline = time.monotonic() + 20
            while len(engine.names()) != 1:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            run.kill()
    assert engine.empty()
