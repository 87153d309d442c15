"""Test the messages about servers that ended, from their logs and from the kernel."""

import asyncio
import os
import re
import signal

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import llama_cpp, trtllm, vllm
from serve_eval.launchers._fleet import fleet, running
from serve_eval.launchers._logs.causes import TRTLLM, UNKNOWN_OPTION, guess_engine, read_causes
from serve_eval.launchers._logs.last_error import cause, explain
from serve_eval.launchers._machine.memory_kills import Kills, kills
from tests.launchers.conftest import process_number
from tests.launchers.failure_logs import (
    collected,
    every,
    held_out,
    name_cause,
    of_sglang,
    sound,
    told,
)

ENDINGS = {
    "trtllm": "[11/02/2026-09:50:{0:02}] [TRT-LLM] [I] Shutting down the executor, step {0}",
    "vllm": "(APIServer pid=12) INFO 11-30 00:53:{0:02} [core_client.py:770] [shutdown] step {0}",
    "sglang": "[2026-03-03 22:23:{0:02}] INFO:     Shutting down, step {0}",
    "llama_cpp": "srv    operator(): cleaning up before exit, step {0}",
}
WRAPPERS = """INFO:     Shutting down
INFO:     Waiting for application shutdown.
INFO:     Application shutdown complete.
Traceback (most recent call last):
  File "/usr/lib/python3.12/asyncio/runners.py", line 118, in run
asyncio.exceptions.CancelledError
RuntimeError: the engine's worker process died, see the stack trace above
/usr/lib/python3.12/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: leaked
  warnings.warn('resource_tracker: There appear to be %d '"""


def by_name(one):
    return one.name


@pytest.mark.parametrize("one", every(), ids=by_name)
@pytest.mark.parametrize("known", [True, False], ids=["engine_known", "engine_guessed"])
def test_the_cause_of_a_failed_start_is_named(one, known):
    found = explain(one.log, one.engine if known else None)
    assert name_cause(one, one.engine if known else None) == told()[one.cause]
    assert one.line == "" or (found is not None and one.line in found.line)


def test_the_fifth_that_was_drawn_first_is_named_as_often_as_the_others():
    rates = []
    for drawn in (True, False):
        logs = [one for one in collected() if (one.name in held_out()) is drawn]
        rates.append(sum(name_cause(one, None) == told()[one.cause] for one in logs) / len(logs))
    assert len(held_out()) == 33
    assert rates[0] >= rates[1]


@pytest.mark.parametrize("one", sound(), ids=by_name)
@pytest.mark.parametrize("known", [True, False], ids=["engine_known", "engine_guessed"])
def test_a_sound_start_with_warnings_has_no_cause(one, known):
    assert name_cause(one, one.engine if known else None) is None


def test_there_are_enough_logs_of_sound_starts_of_each_engine():
    assert len(sound()) >= 20
    assert {one.engine for one in sound()} == set(ENDINGS)


@pytest.mark.parametrize("one", [*collected(), *of_sglang()], ids=by_name)
def test_pages_of_shutdown_and_wrappers_below_it_hide_no_cause(one):
    pages = "\n".join(ENDINGS[one.engine].format(number) for number in range(40))
    found = explain(f"{one.log}\n{pages}\n{WRAPPERS}\n{pages}", one.engine)
    assert (found.cause.told if found and found.cause else None) == told()[one.cause]
    assert found is None or one.line in found.line


@pytest.mark.parametrize("one", [*collected(), *of_sglang()], ids=by_name)
def test_warnings_above_it_are_not_taken_for_the_cause(one):
    above = "\n".join(
        each.log
        for each in sound()
        # A driver that is too old is the reason why no GPU is found.
        if each.engine == one.engine and (one.cause, each.name) != ("no_gpu", "vllm_driver_warning")
    )
    # The lines by which the sound starts became ready are left out: these servers never were.
    above = "\n".join(
        line
        for line in above.splitlines()
        if not re.search(r"startup complete|Uvicorn running|server is listening|ERROR|\[E\]", line)
    )
    found = explain(f"{above}\n{one.log}", one.engine)
    assert (found.cause.told if found and found.cause else None) == told()[one.cause]


@pytest.mark.parametrize("one", sound(), ids=by_name)
def test_a_sound_server_that_is_ended_later_has_no_cause(one):
    pages = "\n".join(ENDINGS[one.engine].format(number) for number in range(20))
    assert name_cause(one._replace(log=f"{one.log}\n{pages}"), one.engine) is None


def test_every_row_has_a_log_of_its_own():
    assert {one.cause for one in every()} - {None} == {one.name for one in read_causes()}


def test_every_row_is_complete():
    rows = read_causes()
    names = [one.name for one in rows]
    assert len(set(names)) == len(names)
    assert UNKNOWN_OPTION in {one.told for one in rows}
    for one in rows:
        assert one.remedy(None), one.name
        assert set(one.engines) <= set(ENDINGS), one.name
        assert set(one.below) <= set(names), one.name
        assert isinstance(one.do, str) or set(one.do) <= {"any", *ENDINGS}, one.name
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", source) for source in one.seen), one.name


def test_forty_rows_come_from_public_threads():
    assert sum(bool(one.seen) for one in read_causes()) >= 40


@pytest.mark.parametrize("engine", [one for one in ENDINGS if one != TRTLLM])
def test_no_remedy_of_tensorrt_llm_is_given_for_another_engine(engine):
    for one in read_causes():
        if one.can_be_of(engine):
            words = re.findall(
                r"cache_transceiver|free_gpu_memory_fraction|trtllm|launcher\.config|max_seq_len",
                one.remedy(engine),
            )
            assert not words, (one.name, words)


@pytest.mark.parametrize("one", every(), ids=by_name)
def test_hints_are_in_the_options_of_the_engine(one):
    known = cause(one.log, one.engine)
    assert (known is None) == (one.cause is None)
    row = next((row for row in read_causes() if row.name == one.cause), None)
    assert row is None or known is None or known[1]


def test_an_engine_is_guessed_from_most_lines():
    assert guess_engine("nothing of any engine") is None
    for one in collected():
        assert guess_engine(one.log) in (None, one.engine), one.name


OPTIONS = {
    llama_cpp: llama_cpp.LlamaCppOptions,
    trtllm: trtllm.TrtllmOptions,
    vllm: vllm.VllmOptions,
}
SCRIPT = """#!/bin/bash
for word in "$@"; do [ "$word" = --help ] && {{
  echo "Usage: trtllm-serve serve [OPTIONS] MODEL"
  for o in --host --port --tp_size --pp_size --cp_size --ep_size --backend --config; do
    echo "  $o TEXT"
  done
  exit 0
}}; done
cat {log}
{end}
"""
EXIT, KILL = "exit {0}", "kill -9 $$"
SHUTDOWN = "\n".join(
    f"(APIServer pid=12) INFO 11-30 00:53:34 [core_client.py:{n}] [shutdown] MPClient: step {n}"
    for n in range(16)
)


def message(launcher, log, context, tmp_path, end):
    """Launch a server that prints a log and ends; return the error of the launch."""
    (tmp_path / "words.log").write_text(log)
    script = tmp_path / "server"
    script.write_text(SCRIPT.format(log=tmp_path / "words.log", end=end))
    script.chmod(0o755)
    command = str(script) if launcher is llama_cpp else f"{script} serve"
    options = OPTIONS[launcher](model="/models/m", command=command, ready_timeout_s=20.0)

    async def story():
        async with launcher.launch(context, options):
            raise AssertionError("it is not ready")

    with pytest.raises(LaunchError) as found:
        asyncio.run(story())
    return found.value


@pytest.mark.parametrize(
    ("launcher", "name", "told", "do"),
    [
        (trtllm, "trtllm_port", "its port is taken", "Leave `port` out"),
        (trtllm, "trtllm_heads", "does not divide the model's heads", "Set tp to"),
        (trtllm, "trtllm_nccl_shm", "too little shared memory (/dev/shm)", "--shm-size"),
        (vllm, "vllm_oom_core", "out of GPU memory", "--gpu-memory-utilization"),
        (vllm, "vllm_nixl", "NIXL could not move the KV cache", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
        (vllm, "vllm_disk", "the disk is full", "df -h"),
        (llama_cpp, "llama_cpu_then_magic", "its model is no GGUF file", "head -c 4"),
        (llama_cpp, "llama_oom_context", "out of GPU memory", "gpu_layers"),
    ],
)
def test_the_cause_is_in_the_message(
    launcher,
    name,
    told,
    do,
    context,
    tmp_path,
):
    [log] = [one.log for one in every() if one.name == name]
    error = message(launcher, log, context, tmp_path, EXIT.format(1))
    assert "ended with exit code 1" in str(error).splitlines()[0]
    assert told in str(error).splitlines()[0]
    assert do in str(error.hint)
    assert launcher is trtllm or "cache_transceiver" not in str(error.hint)


def test_a_server_that_ends_in_good_order_after_its_engine_died_tells_why(context, tmp_path):
    [log] = [one.log for one in every() if one.name == "vllm_worker_died"]
    error = message(vllm, f"{log}\n{SHUTDOWN}\n", context, tmp_path, EXIT.format(0))
    first, second, *_ = str(error).splitlines()
    assert first.endswith(": a GPU computation failed with a fault")
    assert "ended with exit code 0" in first
    assert "an illegal memory access was encountered" in second


def test_the_first_error_is_shown_if_no_cause_is_known(context, tmp_path):
    [one] = [one for one in every() if one.name == "vllm_unlisted"]
    error = message(vllm, f"{one.log}\n{SHUTDOWN}\n", context, tmp_path, EXIT.format(1))
    first, second, *_ = str(error).splitlines()
    assert "exit code 1" in first
    assert ": " not in first
    assert one.line in second


@pytest.mark.parametrize("name", ["trtllm_hang_detector", "trtllm_mpi_abort"])
def test_a_kill_by_the_engine_itself_is_blamed_on_nobody_else(name, context, tmp_path):
    [one] = [one for one in every() if one.name == name]
    error = message(trtllm, one.log, context, tmp_path, KILL)
    assert "signal 9" in str(error).splitlines()[0]
    assert "hang detector" in str(error) or "MPI_ABORT" in str(error).splitlines()[0]
    assert "watchdog" not in str(error.hint)
    assert "a person" not in str(error.hint)


def test_a_kill_that_the_log_does_not_explain_names_who_may_have_sent_it(context, tmp_path):
    log = "[11/02/2026-09:00:01] [TRT-LLM] [I] Loading weights"
    error = message(trtllm, log, context, tmp_path, KILL)
    assert "sent SIGKILL" in str(error.hint)


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 12\noom_kill 3\nnr_free 1\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    return tmp_path


def counted(machine):
    return kills(machine / "proc", machine / "cgroup")


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/a/b\n", "a/b/memory.events", "low 0\nmax 9\noom 5\noom_kill 2\noom_group_kill 7\n"),
        ("0::/seen/from/outside\n", "memory.events", "oom_kill 2\n"),
        (
            "9:name=x:/\n4:memory:/a\n0::/\n",
            "memory/a/memory.oom_control",
            "under_oom 0\noom_kill 2\n",
        ),
        ("4:cpu,memory:/seen/outside\n", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
)
def test_both_versions_of_cgroups_are_read(cgroup, file, text, machine):
    (machine / "proc/self/cgroup").write_text(cgroup)
    (machine / "cgroup" / file).parent.mkdir(parents=True, exist_ok=True)
    (machine / "cgroup" / file).write_text(text)
    assert counted(machine) == (2, 3)


def test_what_cannot_be_read_is_not_known(machine):
    assert counted(machine) == (None, 3)
    (machine / "proc/vmstat").write_text("pgfault 12\n")
    (machine / "proc/self/cgroup").unlink()
    assert counted(machine) == (None, None)
    assert not counted(machine).is_known()
    assert Kills(None, 3).is_known()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Kills(0, 0), Kills(0, 0), ""),
        (Kills(0, 0), Kills(1, 1), "The kernel killed it, or another process of its cgroup"),
        (Kills(0, 0), Kills(0, 1), "a process of this machine"),
        (Kills(None, 4), Kills(None, 5), "a process of this machine"),
        (Kills(None, 4), Kills(None, None), ""),
        (Kills(None, None), Kills(1, 1), ""),
    ],
)
def test_only_a_count_that_grew_is_evidence(before, after, told):
    assert after.since(before).startswith(told) if not told else told in after.since(before)
    assert bool(after.since(before)) == bool(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "told", "not_told"),
    [
        (
            [Kills(0, 7), Kills(0, 7)],
            "other than the kernel's out-of-memory killer",
            "The kernel killed",
        ),
        ([Kills(0, 7), Kills(1, 8)], "The kernel killed it", "sent SIGKILL"),
        ([Kills(None, None)] * 2, "dmesg on its machine shows", "The kernel killed"),
    ],
)
def test_memory_is_blamed_only_with_evidence(
    counts,
    told,
    not_told,
    context,
    standin,
    monkeypatch,
):
    """The kernel's counters are fake: a real lack of memory would hit other processes here."""
    standin()
    left = iter(counts)
    for module in (fleet, running):
        monkeypatch.setattr(module, "kills", lambda: next(left, counts[-1]))

    async def body():
        async with trtllm.launch(context, trtllm.TrtllmOptions()):
            os.kill(process_number(context, "trtllm"), signal.SIGKILL)
            await asyncio.sleep(60)

    with pytest.raises(LaunchError, match="trtllm ended with signal 9") as caught:
        asyncio.run(body())
    assert told in caught.value.hint
    assert not_told not in caught.value.hint
