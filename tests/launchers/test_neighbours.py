"""Test GPUs in use: an error that names the process, or left out by `gpus: auto`.

nvidia-smi is a fake.
"""

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError, NoRoomError, PlanError
from serve_eval.launchers import container, llama_cpp, trtllm, trtllm_disaggregated
from serve_eval.launchers._fleet import fleet, session
from serve_eval.launchers._machine import local_gpus, lock_files
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.schema import LaunchContext
from tests.launchers.conftest import gone, smi
from tests.launchers.test_other_engines import FAKE

__all__ = ["smi"]
CONTEXT = LaunchContext(model="org/model", log_dir=Path("logs"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Shorten the wait for memory that is freed late."""
    monkeypatch.setattr(local_gpus, "BACK_S", 0.3)
    monkeypatch.setattr(local_gpus, "PAUSE_S", 0.02)


@pytest.fixture
def neighbour():
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


@asynccontextmanager
async def launched(context, gpus=None, count=1):
    """Start a process that serves nothing on this number of GPUs.

    The GPUs are taken and the process is started as the launchers do it.
    """
    [shown] = local_gpus.blocks([("one", count)], gpus, os.environ)
    async with session.reserve(gpus, [_server(shown)], context.notify) as taken:
        [found] = local_gpus.blocks([("one", count)], taken.gpus, os.environ)
        async with fleet.fleet(
            [_server(found)],
            log_dir=context.log_dir,
            notify=context.notify,
            stop_timeout_s=2.0,
            held=taken.locks,
        ):
            yield


def _server(gpus):
    [port] = fleet.free_ports("127.0.0.1", None)
    place = Place(host="127.0.0.1", port=port, gpus=gpus)
    return Server(name="one", argv=("sleep", "60"), probe=(), place=place)


def launch(context, gpus=None, count=1):
    async def story():
        async with launched(context, gpus, count):
            pass

    asyncio.run(story())


def refused(context, gpus=None, count=1, error=NoRoomError):
    with pytest.raises(error) as caught:
        launch(context, gpus, count)
    assert not context.log_dir.exists(), "something was started"
    return f"{caught.value}\n{getattr(caught.value, 'hint', '')}"


# GPUs in use


def test_a_gpu_in_use_is_refused_with_who_uses_it(context, smi, neighbour):
    me = pwd.getpwuid(os.getuid()).pw_name
    unseen = 2**22 + 1
    smi.tells(
        "0, GPU-a, 1024",
        "1, GPU-b, 70000",
        processes=(
            f"GPU-b, {neighbour.pid}, 69000, sleep",
            f"GPU-b, {unseen}, [N/A], /opt/a,b/python3",
            "GPU-a, 1, 5, x",
        ),
    )
    told = refused(context, gpus=[1])
    assert told.startswith(
        f"GPU 1 has 70000 MiB in use: process {neighbour.pid} (sleep of {me}, 69000 MiB), "
        f"process {unseen} (/opt/a,b/python3 of an unknown user)\n"
    )
    assert "launcher.gpus: auto" in told
    launch(context, gpus=[0])


def test_a_process_of_another_container_is_unknown(context, smi, neighbour):
    """Its number may also be that of a process here."""
    smi.tells("0, GPU-a, 1025", processes=(f"GPU-a, {neighbour.pid}, 900, python3",))
    assert f"process {neighbour.pid} (python3 of an unknown user, 900 MiB)" in refused(context)
    smi.tells("0, GPU-a, 1025")
    assert "nvidia-smi shows no process here" in refused(context)


def test_where_no_memory_is_told_that_of_the_processes_counts(context, smi):
    smi.tells("0, GPU-a, [N/A]", processes=("GPU-a, 1, 1000, x", "GPU-a, 2, 25, y"))
    assert "GPU 0 has 1025 MiB in use" in refused(context)
    smi.tells("0, GPU-a, [N/A]", processes=("GPU-a, 1, [Insufficient Permissions], x",))
    launch(context)


def test_a_launch_that_just_ended_is_not_taken_for_a_neighbour(context, smi, said):
    smi.does(
        f'[ "${{1#--query-gpu}}" = "$1" ] || {{ cat {smi.folder}/gpus; echo 0, GPU-a, 3 >'
        f" {smi.folder}/gpus; }}"
    )
    smi.tells("0, GPU-a, 70000")
    launch(context)
    assert said[0].startswith("one: started on GPU 0, log ")


WAITS = "GPU 0: no process that is seen here uses the memory; waiting up to 0.3 s for its release"
WAITS_LONGER = WAITS.replace("0.3 s", "60 s")


@pytest.fixture
def patient(monkeypatch):
    """Wait longer for memory than a busy machine needs for the queries."""
    monkeypatch.setattr(local_gpus, "BACK_S", 60.0)


def _comes_back(smi, looks, then="0, GPU-a, 3"):
    """Make the memory of GPU 0 change at that query."""
    smi.does(
        f'case "$1" in --query-gpu=*) ;; *) cat {smi.folder}/processes; exit ;; esac\necho >>'
        f' {smi.folder}/looks\nif [ "$(wc -l < {smi.folder}/looks)" -ge {looks} ]; then echo'
        f" {then}; else cat {smi.folder}/gpus; fi"
    )


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("gpus", [None, "auto"])
def test_memory_that_comes_back_late_is_waited_for(gpus, context, smi, said):
    """The servers of the previous run of a suite had the same GPU."""
    smi.tells("0, GPU-a, 70000", processes=("GPU-a, 4194305, 69000, trtllm-serve",))
    _comes_back(smi, 4)
    launch(context, gpus)
    assert said[0] == WAITS_LONGER
    assert said[1].startswith("one: started on GPU 0, log ")
    assert said.count(WAITS_LONGER) == 1


@pytest.mark.usefixtures("patient")
def test_free_gpus_are_let_go_while_memory_is_late(context, smi, said):
    """Auto needs both; the free one is not held meanwhile, but taken in the end."""
    smi.tells("0, GPU-a, 70000", "1, GPU-b, 3")
    _comes_back(smi, 4, "0, GPU-a, 3; echo 1, GPU-b, 3")
    launch(context, "auto", 2)
    assert said[0] == WAITS_LONGER
    assert said[1].startswith("one: started on GPU 0,1, log ")


@pytest.mark.parametrize("gpus", [None, "auto"])
def test_memory_that_does_not_come_back_is_refused(gpus, context, smi, said):
    smi.tells("0, GPU-a, 70000")
    began = time.monotonic()
    assert f"GPU 0 has 70000 MiB in use: {local_gpus.NOBODY_TOLD}" in refused(context, gpus)
    assert said == [WAITS]
    assert time.monotonic() - began >= 0.3


def test_memory_of_another_launch_is_not_waited_for(context, smi, said):
    smi.tells("0, GPU-a, 70000")
    with lock_files.lock_names(["GPU-a"]):
        for gpus in (None, "auto"):
            assert (
                f"GPU 0 is used by another launch of serve-eval (process {os.getpid()})"
                in refused(context, gpus)
            )
    assert not said


@pytest.mark.parametrize("gpus", [None, "auto"])
@pytest.mark.parametrize("mib", ["69000", "[N/A]"])
def test_memory_of_a_neighbour_is_not_waited_for(
    mib,
    gpus,
    context,
    smi,
    said,
    neighbour,
):
    smi.tells(
        "0, GPU-a, 70000", "1, GPU-b, 70000", processes=(f"GPU-a, {neighbour.pid}, {mib}, sleep",)
    )
    assert f"process {neighbour.pid} (sleep" in refused(context, gpus, 2)
    assert not said


# nvidia-smi in trouble


@pytest.mark.parametrize(
    "does", ["echo 0, GPU-a, 0; exit 9", "echo No devices were found", "sleep 60; echo 0, GPU-a, 0"]
)
def test_nvidia_smi_in_trouble_breaks_no_launch(does, context, smi, said, monkeypatch):
    smi.does(f"echo $$ > {smi.folder}/pid; {does}")
    monkeypatch.setattr(local_gpus, "SMI_S", 0.3)
    monkeypatch.setattr(local_gpus, "SIGNS", ("proc/self",))
    launch(context)
    assert (
        said[0]
        == "warning: nvidia-smi reports no GPUs: cannot check whether another process uses them"
    )
    assert said[1].startswith("one: started on GPU 0, log ")
    deadline = time.monotonic() + 5
    while not gone(int((smi.folder / "pid").read_text())):
        assert time.monotonic() < deadline, "nvidia-smi was left"
        time.sleep(0.02)


def test_no_gpu_is_named_where_there_is_none(context, smi, said):
    smi.does("exit 9")
    launch(context)
    assert said[0].startswith("warning: this machine shows no GPU ")
    assert said[1].startswith("one: started, log ")
    with lock_files.lock_names(["GPU-0"]):
        launch(context, gpus=[0])
    assert not [line for line in said if "GPU 0" in line]


# Auto


async def test_auto_takes_free_gpus(context, smi, said):
    smi.tells("0, GPU-a, 70000", "1, GPU-b, 3", "2, GPU-c, 1024", "3, GPU-d, 3", "4, GPU-e, 3")
    with lock_files.lock_names(["GPU-b"]):
        async with launched(context, "auto", 2):
            with pytest.raises(NoRoomError) as caught:
                async with launched(context, "auto", 2):
                    pass
    assert str(caught.value).splitlines() == [
        "launcher.gpus: auto: 2 GPUs are needed, and 1 of 5 free",
        f"GPU 0 has 70000 MiB in use: {local_gpus.NOBODY_TOLD}",
        *(
            f"GPU {n} is used by another launch of serve-eval (process {os.getpid()})"
            for n in (1, 2, 3)
        ),
    ]
    assert said[0].startswith("one: started on GPU 2,3, log ")
    with lock_files.lock_names(["GPU-c", "GPU-d", "GPU-e"]):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("how", ["trtllm", "trtllm_disaggregated", "llama_cpp"])
async def test_every_launcher_takes_free_ones(how, context, standin, smi, said):
    standin()
    smi.tells("0, GPU-a, 70000", "1, GPU-b, 3", "2, GPU-c, 70000", "3, GPU-d, 3")
    options = {"gpus": "auto", "ready_timeout_s": 20.0}
    if how == "llama_cpp":
        async with llama_cpp.launch(
            context,
            llama_cpp.LlamaCppOptions(
                command=[sys.executable, str(FAKE)], model="m.gguf", **options
            ),
        ):
            pass
    elif how == "trtllm":
        async with trtllm.launch(context, trtllm.TrtllmOptions(**options)):
            pass
    else:
        async with trtllm_disaggregated.launch(
            context, trtllm_disaggregated.DisaggregatedOptions(**options)
        ):
            pass
    places = [
        line.partition("started on GPU ")[2].partition(",")[0]
        for line in said
        if "started on" in line
    ]
    assert places == (["1", "3"] if how == "trtllm_disaggregated" else ["1"])
    with lock_files.lock_names(["GPU-b", "GPU-d"]):
        pass


def test_auto_takes_of_those_that_are_visible(context, smi, said, monkeypatch):
    smi.tells("0, GPU-a, 3", "1, GPU-b, 70000", "2, GPU-c, 3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,GPU-c")
    launch(context, gpus="auto")
    assert said[0].startswith("one: started on GPU GPU-c, log ")
    shutil.rmtree(context.log_dir)
    assert "2 GPUs are needed, and 1 of 2 free\nGPU 1 has 70000 MiB" in refused(context, "auto", 2)


def test_auto_needs_to_know(context, smi):
    assert "nvidia-smi reports no GPU on this machine" in refused(context, gpus="auto")


async def test_auto_holds_what_it_took_until_the_end(context, smi, said):
    """Two launches at the same time get different GPUs and leave none locked."""
    smi.tells("0, GPU-a, 3", "1, GPU-b, 3")

    async def one(name):
        async with launched(
            LaunchContext(model="m", log_dir=context.log_dir / name, notify=said.append), "auto"
        ):
            pass

    await asyncio.gather(one("a"), one("b"))
    started = sorted(line.partition(",")[0] for line in said if "started" in line)
    assert started == ["one: started on GPU 0", "one: started on GPU 1"]
    with lock_files.lock_names(["GPU-a", "GPU-b"]):
        pass


def test_a_dry_run_shows_gpus_in_the_place_of_auto(own_machine, monkeypatch):
    assert (
        "CUDA_VISIBLE_DEVICES=0,1"
        in trtllm.commands(CONTEXT, trtllm.TrtllmOptions(gpus="auto", tp=2))[0]
    )
    assert (
        "CUDA_VISIBLE_DEVICES=0"
        in llama_cpp.commands(CONTEXT, llama_cpp.LlamaCppOptions(gpus="auto", model="m.gguf"))[0]
    )
    assert (
        '"device=0"'
        in container.commands(CONTEXT, container.ContainerOptions(gpus="auto", image="x"))[0]
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert (
        "CUDA_VISIBLE_DEVICES=4" in trtllm.commands(CONTEXT, trtllm.TrtllmOptions(gpus="auto"))[0]
    )


# Names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it hides the GPUs"),
        (" ", "it hides the GPUs"),
        ("-1", "it hides the GPUs"),
        ("0,-1", "-1 is among the names"),
        ("0,,1", "nothing is among the names"),
        ("all", "all is a value of NVIDIA_VISIBLE_DEVICES"),
        ("void", "void is a value"),
        ("None", "None is a value"),
        ("NoDevFiles", "NoDevFiles is a value of NVIDIA_VISIBLE_DEVICES or of a scheduler"),
        ("cuda:0", "cuda:0 is not the name of a GPU"),
        ("0;1", "0;1 is not the name of a GPU"),
        ("gpu-a", "gpu-a is not the name of a GPU"),
        ("GPU-", "GPU- is not the name of a GPU"),
    ],
)
def test_what_names_no_gpu_is_refused(text, why, own_machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    for gpus in (None, "auto"):
        with pytest.raises(PlanError) as caught:
            trtllm.commands(CONTEXT, trtllm.TrtllmOptions(gpus=gpus))
        assert f"CUDA_VISIBLE_DEVICES={text}: {why}" in str(caught.value)
        assert "Unset CUDA_VISIBLE_DEVICES" in caught.value.hint
    trtllm.commands(CONTEXT, trtllm.TrtllmOptions(gpus=[3]))
    if "," in text:
        return
    with pytest.raises(PlanError) as caught:
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions(gpus=[text]))
    assert f"launcher.gpus: {why}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"), [("0, 1", "0,1"), (" 2 ,3,", "2,3"), ("GPU-a,MIG-b/0/0", "GPU-a,MIG-b/0/0")]
)
def test_what_cuda_takes_is_taken(text, named, own_machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", text)
    assert (
        f"CUDA_VISIBLE_DEVICES={named}" in trtllm.commands(CONTEXT, trtllm.TrtllmOptions(tp=2))[0]
    )


def test_doubles_are_refused(own_machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,0")
    with pytest.raises(PlanError, match="CUDA_VISIBLE_DEVICES names 0 twice"):
        trtllm.commands(CONTEXT, trtllm.TrtllmOptions())


def test_gpus_that_are_not_there_are_refused(context, smi, monkeypatch):
    smi.tells(
        "0, GPU-a, 3", listed="GPU 0: H200 (UUID: GPU-a)\n  MIG 1g.18gb Device  0: (UUID: MIG-c1)"
    )
    for gpus in ([1], ["GPU-b"], ["00"]):
        assert (
            f"this machine has 1 GPU, numbered 0, and the plan needs number {gpus[0]}"
            in refused(context, gpus=gpus)
        )
    assert "this machine has no MIG-d; its MIG parts: MIG-c1" in refused(context, gpus=["MIG-d"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    for gpus in (None, "auto"):
        assert "needs number 7" in refused(context, gpus=gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-a")
    assert "0 and GPU-a name the same GPU" in refused(context, None, 2, LaunchError)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-c")
    launch(context)


def test_a_launcher_that_names_no_gpus_looks_at_none(smi, own_machine):
    assert "CUDA_VISIBLE_DEVICES" not in " ".join(
        llama_cpp.commands(CONTEXT, llama_cpp.LlamaCppOptions(model="m.gguf"))[0]
    )
    assert not smi.asked()
