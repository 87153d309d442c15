"""Test each failure of servers once through the stand-in: how the run ends, and its message."""

import asyncio
import json
import socket
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from serve_eval.errors import EndpointError, LaunchError, PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers._fleet import readiness, running
from serve_eval.launchers._logs import lines
from serve_eval.schema import Plan

slow = pytest.mark.slow
TWO = "trtllm_disaggregated"
GENERATION = {"when": {"gpus": "1"}}
ORCHESTRATOR = {"when": {"command": "disaggregated"}}
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"

Standin, PlanOf = Callable[..., None], Callable[..., Plan]


def run(plan, folder, said=None):
    return asyncio.run(evaluate(plan, folder, notify=(said if said is not None else []).append))


def refused(
    plan,
    folder,
    kind=LaunchError,
    said=None,
):
    with pytest.raises(kind) as caught:
        run(plan, folder, said)
    return caught.value


def records(folder):
    return [json.loads(line) for line in (folder / "samples/gsm8k.jsonl").read_text().splitlines()]


@contextmanager
def waiting_port():
    """Yield a port in TIME_WAIT: it looks free but cannot be bound without SO_REUSEADDR."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            client.recv(1)
    yield port


# Does not start


@pytest.mark.parametrize(
    ("faults", "options", "told"),
    [
        pytest.param(
            {"crash_at_start": 1, "last_words": OUT_OF_MEMORY}, {}, "out of GPU memory", id="memory"
        ),
        pytest.param(
            {"crash_at_start": 0, "last_words": OUT_OF_MEMORY},
            {},
            "out of GPU",
            id="with 0",
            marks=slow,
        ),
        pytest.param({"no_gpu": True}, {}, "it found too few GPUs", id="GPUs", marks=slow),
        pytest.param({"no_model": True}, {}, "its model was not found", id="model", marks=slow),
        pytest.param(
            {},
            {"extra_args": ["--log_level", "INFO"]},
            "it does not accept the value of an option",
            id="value",
            marks=slow,
        ),
        pytest.param(
            {},
            {"config": {"max_sequence": 1}},
            "its config has a key that",
            id="key",
            marks=slow,
        ),
    ],
)
def test_a_server_that_does_not_start(
    faults,
    options,
    told,
    standin,
    plan_of,
    tmp_path,
):
    standin(faults=faults)
    error = refused(plan_of("trtllm", options), tmp_path / "run")
    assert str(error).startswith("trtllm ended with exit code ")
    assert f": {told}" in str(error).splitlines()[0]
    assert str(tmp_path / "run/logs/trtllm.log") in error.hint
    assert error.exit_code == 4


@pytest.mark.parametrize("launcher", ["trtllm", pytest.param(TWO, marks=slow)])
def test_a_port_that_cannot_be_bound(launcher, standin, plan_of, tmp_path):
    """The 1.2 line binds without SO_REUSEADDR, and only the server notices that it cannot."""
    standin("v12")
    with waiting_port() as port:
        error = refused(plan_of(launcher, {"port": port}), tmp_path / "run")
    assert "ended with exit code 1" in str(error)
    assert "its port is taken" in str(error)


@slow
def test_an_option_that_this_version_lacks(standin, plan_of, tmp_path):
    standin("v12")
    error = refused(
        plan_of("trtllm", {"extra_args": ["--served_model_name", "x"]}), tmp_path / "run", PlanError
    )
    assert "of this version has no option --served_model_name" in str(error)
    assert error.exit_code == 2
    assert not list((tmp_path / "run/logs").glob("*.log"))


@slow
@pytest.mark.parametrize(
    ("flavour", "limit_s", "how", "told"),
    [
        pytest.param("v12", 2.0, "within 2 s", "HTTP 500", id="v12-HTTP 500"),
        pytest.param(
            *("main", 60.0, "refused 3 times in the same way", "cache transceiver is disabled"),
            id="main-cache transceiver is disabled",
        ),
    ],
)
def test_a_transceiver_that_is_disabled(
    flavour,
    limit_s,
    how,
    told,
    standin,
    plan_of,
    tmp_path,
):
    """Both servers are healthy; the orchestrator of the 1.2 line loses their error."""
    standin(flavour, {"no_transceiver": True, "when": {"command": "serve"}})
    error = refused(plan_of(TWO, {"answer_timeout_s": limit_s}), tmp_path / "run")
    assert f"orchestrator is healthy but returns no completion {how}" in str(error)
    assert told in str(error)


# Loading


@slow
@pytest.mark.parametrize("side", ["0", "1"])
def test_an_end_while_it_loads(side, standin, plan_of, tmp_path):
    standin(faults={"crash_at_start": 9, "when": {"gpus": side}}, STANDIN_LOAD_S="1")
    error = refused(plan_of(TWO), tmp_path / "run")
    name = ("context_0", "generation_0")[int(side)]
    assert str(error).startswith(f"{name} ended with exit code 9 after ")
    assert "could not be created, as told" in str(error)


@slow
def test_a_load_that_never_ends(standin, plan_of, tmp_path):
    standin(STANDIN_LOAD_S="60")
    error = refused(plan_of(TWO, {"ready_timeout_s": 4.0, "stop_timeout_s": 1.0}), tmp_path / "run")
    assert str(error).startswith("context_0, generation_0, orchestrator not ready after 4 s")
    assert "Loading my-org/my-model" in str(error)


def test_a_slow_load_is_told_as_it_goes_on(
    standin,
    plan_of,
    tmp_path,
    said,
    monkeypatch,
):
    monkeypatch.setattr(readiness, "TELL_S", 0.2)
    standin(STANDIN_LOAD_S="1")
    assert run(plan_of("trtllm"), tmp_path / "run", said).tasks[0].result.scored == 20
    assert [
        line
        for line in said
        if "its log: INFO:     Loading my-org/my-model: " in line and line.endswith("0%")
    ]


@pytest.mark.parametrize(
    ("launcher", "faults", "told"),
    [
        pytest.param("trtllm", {"hang_after": 0}, "no answer at all", marks=slow),
        pytest.param(TWO, {"hang_after": 0, **GENERATION}, "no answer at all", marks=slow),
        pytest.param(
            "trtllm", {"error_after": 0}, "HTTP 400 .*Generation failed, as told", marks=slow
        ),
        (TWO, {"error_after": 0, **GENERATION}, "HTTP 500 .*400, message='Bad Request'"),
    ],
)
def test_health_without_a_completion(
    launcher,
    faults,
    told,
    standin,
    plan_of,
    tmp_path,
    said,
    monkeypatch,
):
    monkeypatch.setattr(readiness, "TELL_S", 0.2)
    standin(faults=faults)
    error = refused(
        plan_of(launcher, {"answer_timeout_s": 1.0, "stop_timeout_s": 0.5}),
        tmp_path / "run",
        said=said,
    )
    assert [line for line in said if ": no completion after " in line]
    with pytest.raises(
        LaunchError, match=rf"is healthy but returns no completion within 1 s: {told}"
    ):
        raise error


# The run

PROBES = 14
"""Requests of the probe of sampling defaults, which a server counts before the run's own."""


@pytest.mark.parametrize(
    ("where", "name"),
    [pytest.param(GENERATION, "generation_0", marks=slow), (ORCHESTRATOR, "orchestrator")],
)
def test_an_end_in_the_run(where, name, standin, plan_of, tmp_path):
    standin(faults={"crash_after": 10 + PROBES, **where})
    error = refused(plan_of(TWO, concurrency=2), tmp_path / "run")
    assert str(error).startswith(f"{name} ended with exit code 1 after ")
    assert f"crashing after {10 + PROBES} requests, as told" in str(error)
    had = [record for record in records(tmp_path / "run") if "response" in record]
    assert len(had) >= 5


@pytest.mark.parametrize(
    ("launcher", "where"),
    [("trtllm", {}), pytest.param(TWO, GENERATION, marks=slow)],
)
def test_an_engine_that_fails_for_good_ends_the_run_before_requests_fail(
    launcher, where, standin, plan_of, tmp_path
):
    """The server lingers for 20 s, and each request in that time fails."""
    standin("main", {"executor_crash_after": 10, "lingers_s": 20.0, "latency_s": 0.1, **where})
    plan = plan_of(launcher, limit=400, concurrency=4, max_attempts=1, max_error_rate=1.0)
    error = refused(plan, tmp_path / "run")
    first, line = str(error).splitlines()
    name = "generation_0" if where else "trtllm"
    assert first.startswith(f"the engine of {name} failed after ")
    assert "[E] CppExecutorError: CUDA error: an illegal memory access" in line
    failed = [record for record in records(tmp_path / "run") if "failure" in record]
    assert len(failed) < 200


@pytest.mark.parametrize(
    ("line", "fatal"),
    [
        ("[TRT-LLM] [E] CppExecutorError: CUDA error: an illegal memory access", True),
        ("[11/28/2026-10:00:00] [TRT-LLM] [RANK 0] [E] CppExecutorError: boom", True),
        ("ERROR 11-29 [core.py:1] EngineCore encountered a fatal error.", True),
        ("[TRT-LLM] [W] CppExecutorError: seen in a test prompt", False),
        ("INFO: 'CUDA error: an illegal memory access' was the prompt", False),
        ("[TRT-LLM] [E] RequestError: the prompt has 9000 tokens", False),
    ],
)
def test_only_an_error_after_which_an_engine_computes_nothing_is_fatal(line, fatal):
    found = lines.level(line) in ("E", "C", "F") and running.FATAL.search(line) is not None
    assert found is fatal


@slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
def test_streams_that_are_dropped(flavour, standin, plan_of, tmp_path):
    """None of them is scored.

    Answers of two tokens arrive, such as the one to the first short request.
    """
    standin(flavour, {"drop_stream": 3, **GENERATION})
    error = refused(plan_of(TWO, stream=True, max_attempts=2), tmp_path / "run", EndpointError)
    assert "samples in a row failed, the last with: the connection ended within the answer" in str(
        error
    )
    assert not [record for record in records(tmp_path / "run") if "response" in record]


@slow
@pytest.mark.parametrize(("flavour", "status"), [("v12", 500), ("main", 400)])
def test_a_refusal_of_a_worker_is_not_tried_again(flavour, status, standin, plan_of, tmp_path):
    standin(flavour, {"error_after": 12 + PROBES, **GENERATION})
    report = run(plan_of(TWO, concurrency=1), tmp_path / "run")
    result = report.tasks[0].result
    assert (result.scored, result.failed) == (10, 10)
    assert report.tasks[0].traffic.retries == {}
    failed = [record["failure"] for record in records(tmp_path / "run") if "failure" in record]
    assert {(failure["status"], len(failure["attempts"])) for failure in failed} == {(status, 1)}
