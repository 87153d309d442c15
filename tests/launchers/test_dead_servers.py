"""Test servers that hang or are dead while their processes live."""

import asyncio
from collections.abc import Callable

import httpx
import pytest

from serve_eval.errors import EndpointError, LaunchError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import trtllm
from serve_eval.launchers._fleet import running
from serve_eval.schema import Plan
from tests.launchers.dead_servers import DEAD, FRAMES, WARNINGS, measured

slow = pytest.mark.slow
TWO = "trtllm_disaggregated"
UNKNOWN = f"{FRAMES}IndexError: tuple index out of range"
MEMORY = DEAD[0]
LIMIT = {"ready_timeout_s": 60.0}
"""Ends the wait if a dead server goes unnoticed."""

Standin, PlanOf = Callable[..., None], Callable[..., Plan]


def run(plan, folder, said=None):
    return asyncio.run(evaluate(plan, folder, notify=(said if said is not None else []).append))


def refused(plan, folder):
    with pytest.raises(LaunchError) as caught:
        run(plan, folder)
    return caught.value


@pytest.fixture
def soon(monkeypatch):
    for name, seconds in {
        "SETTLE_S": 0.1,
        "CONFIRM_S": 0.2,
        "CAUGHT_S": 0.3,
        "STILL_S": 1.0,
        "UNSEEN_S": 2.0,
    }.items():
        monkeypatch.setattr(running, name, seconds)
    monkeypatch.setattr(running, "SAMPLE_S", 0.1)


# Dead


@slow
@pytest.mark.parametrize("one", DEAD, ids=lambda one: one.name)
def test_a_known_cause_is_named_at_once(one, tmp_path):
    seconds, code, said = measured(one.words, tmp_path)
    assert code == 4, said
    assert "trtllm is dead, though its process lives, after" in said
    assert one.told in said
    assert seconds < 30, said  # 5 s on an idle machine


def test_a_dead_server_ends_the_wait(standin, plan_of, soon, tmp_path):
    standin(faults={"hang_at_start": True, "ignore_sigterm": True, "last_words": MEMORY.words})
    error = refused(plan_of("trtllm", LIMIT), tmp_path / "run")
    assert str(error).startswith("trtllm is dead, though its process lives, after ")
    assert str(error).splitlines()[0].endswith(": out of GPU memory")
    assert "torch.OutOfMemoryError" in str(error)
    assert "nvidia-smi shows" in error.hint
    assert str(tmp_path / "run/logs/trtllm.log") in error.hint
    assert error.exit_code == 4


@slow
@pytest.mark.parametrize("side", ["0", "1"])
def test_one_dead_server_of_several_is_named(side, standin, plan_of, soon, tmp_path):
    standin(faults={"hang_at_start": True, "last_words": MEMORY.words, "when": {"gpus": side}})
    error = refused(plan_of(TWO, LIMIT), tmp_path / "run")
    assert str(error).startswith(
        f"{('context_0', 'generation_0')[int(side)]} is dead, though its process lives"
    )


@slow
def test_a_traceback_ends_it_when_nothing_follows(standin, plan_of, soon, tmp_path):
    standin(faults={"hang_at_start": True, "last_words": UNKNOWN})
    error = refused(plan_of("trtllm", LIMIT), tmp_path / "run")
    assert str(error).startswith("trtllm is dead, though its process lives")
    assert "IndexError: tuple index out of range" in str(error)


@slow
def test_a_known_cause_ends_it_while_a_rank_spins(standin, plan_of, soon, tmp_path):
    standin(faults={"spin_at_start": True, "last_words": MEMORY.words})
    assert "is dead, though its process lives" in str(
        refused(plan_of("trtllm", LIMIT), tmp_path / "run")
    )


@slow
@pytest.mark.parametrize("launcher", ["trtllm", TWO])
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (MEMORY.words, "out of GPU memory"),
        (
            f"Exception in thread Thread-1 (_manager_spawn):\n{FRAMES}OSError: no",
            "MPI did not start its ranks",
        ),
        (UNKNOWN, "IndexError: tuple index out of range"),
    ],
    ids=["memory", "mpi", "unknown"],
)
def test_a_server_of_main_that_answers_starting_for_ever_is_dead(
    launcher,
    words,
    told,
    standin,
    plan_of,
    soon,
    tmp_path,
):
    """The thread that loads is dead; the one that answers 503 is not."""
    faults = {"hang_at_start": True, "last_words": words, "when": {"gpus": "0"}}
    standin("main", faults, STANDIN_STARTING="1")
    error = refused(
        plan_of(launcher, {**LIMIT, "gpus": [0]} if launcher == "trtllm" else LIMIT),
        tmp_path / "run",
    )
    name = "trtllm" if launcher == "trtllm" else "context_0"
    assert str(error).startswith(f"{name} is dead, though its process lives, after ")
    assert told in str(error)


@slow
def test_a_server_that_never_gets_ready_is_said_to_be_starting(standin, plan_of, tmp_path):
    faults = {"hang_at_start": True, "last_words": "INFO:     Loading"}
    standin("main", faults, STANDIN_STARTING="1")
    error = refused(plan_of("trtllm", {"ready_timeout_s": 8.0}), tmp_path / "run")
    assert str(error).startswith("trtllm not ready after 8 s, it reports that it is starting")


# Healthy


@slow
@pytest.mark.parametrize("flavour", ["v12", "main"])
@pytest.mark.parametrize("discovery", [False, True])
def test_a_server_that_is_ready_waits_for_another_after_a_traceback(
    flavour, discovery, standin, plan_of, soon, tmp_path
):
    loads = {"says": "INFO:     Loading", "says_s": 4.0, "when": {"gpus": "1"}}
    standin(flavour, [{"says": UNKNOWN, "when": {"gpus": "0"}}, loads])
    assert (
        run(plan_of(TWO, {"discovery": discovery}), tmp_path / "run").tasks[0].result.scored == 20
    )


@slow
@pytest.mark.parametrize("launcher", ["trtllm", TWO])
def test_a_healthy_server_that_prints_all_of_them_as_warnings_goes_on(
    launcher, standin, plan_of, tmp_path
):
    """Timestamps are as users have them, and the silence exceeds the limit for a known cause."""
    standin(faults={"says": WARNINGS, "says_s": running.CAUGHT_S + 3})
    assert run(plan_of(launcher), tmp_path / "run").tasks[0].result.scored == 20


@slow
def test_warnings_end_nothing(standin, plan_of, soon, tmp_path):
    one_by_one = "\n".join(one.warning for one in DEAD if "Traceback" not in one.warning)
    standin(faults={"says": one_by_one, "says_s": 0.7})
    assert run(plan_of("trtllm"), tmp_path / "run").tasks[0].result.scored == 20


@slow
@pytest.mark.parametrize("words", [UNKNOWN, f"{FRAMES}ModuleNotFoundError: No module named 'nixl'"])
def test_a_server_that_works_on_after_a_traceback_goes_on(words, standin, plan_of, soon, tmp_path):
    standin(faults={"says": words, "says_s": 6.0, "says_busy": True})
    assert run(plan_of("trtllm"), tmp_path / "run").tasks[0].result.scored == 20


@slow
def test_a_server_that_writes_on_after_a_traceback_goes_on(standin, plan_of, tmp_path, monkeypatch):
    monkeypatch.setattr(running, "STILL_S", 0.8)
    standin(faults={"says": MEMORY.warning + "\n" + UNKNOWN}, STANDIN_LOAD_S="2")
    assert run(plan_of("trtllm"), tmp_path / "run").tasks[0].result.scored == 20


@slow
async def test_a_log_ends_nothing_once_its_server_is_ready(context, standin, soon):
    standin()
    async with (
        trtllm.launch(context, trtllm.TrtllmOptions()) as endpoint,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        with (context.log_dir / "trtllm.log").open("a") as log:
            log.write(f"{MEMORY.words}\n")
        await asyncio.sleep(1.0)
        answer = await client.post(
            f"{endpoint.base_url}/completions", json={"model": "x", "prompt": "Hello"}
        )
        assert answer.status_code == 200


# Refusals and SIGKILL


@slow
@pytest.mark.parametrize(
    ("status", "says", "told"),
    [
        pytest.param(
            500,
            "Internal disaggregated authentication key is required",
            "authentication key",
            id="key",
        ),
        pytest.param(
            400, "1 validation error: max_tokens: Input should be 3", "Input should be 3", id="form"
        ),
    ],
)
def test_a_refusal_that_stays_is_asked_for_three_times(
    status, says, told, standin, plan_of, tmp_path
):
    standin(faults={"error_after": 0, "error_status": status, "error_says": says})
    error = refused(plan_of("trtllm", {"answer_timeout_s": 300.0}), tmp_path / "run")
    assert "trtllm is healthy but returns no completion refused 3 times in the same way" in str(
        error
    )
    assert told in str(error)


@slow
def test_the_orchestrator_of_main_is_not_asked_for_ten_minutes_without_a_transceiver(
    standin, plan_of, tmp_path
):
    standin("main", {"no_transceiver": True, "when": {"command": "serve"}})
    error = refused(plan_of(TWO, {"answer_timeout_s": 300.0}), tmp_path / "run")
    assert "cache transceiver is disabled" in str(error)
    assert "3 times" in str(error)


@slow
def test_a_refusal_that_passes_is_asked_for_again(standin, plan_of, tmp_path):
    standin(faults={"refuse_first": 5})
    assert run(plan_of("trtllm"), tmp_path / "run").tasks[0].result.scored == 20


ONE_AND_ONE = "trtllm_disaggregated"
SOON = {"stop_timeout_s": 0.5}
"""Short, because open requests keep a hung server from ending on its own."""
FAULT_AT = 26
"""The request that meets the fault: the questions about the server's sampling come first, then 20
samples."""


@pytest.mark.parametrize(
    ("flavour", "launcher", "where", "told"),
    [
        pytest.param(
            "v12",
            ONE_AND_ONE,
            {"gpus": "1"},
            ["generation_0 hangs", "context_0 answered", "orchestrator does"],
        ),
        *(
            pytest.param(flavour, launcher, where, told, marks=pytest.mark.slow)
            for flavour in ("v12", "main")
            for launcher, where, told in [
                (ONE_AND_ONE, {"gpus": "0"}, ["context_0 hangs", "generation_0 answered"]),
                (
                    ONE_AND_ONE,
                    {"command": "disaggregated"},
                    ["orchestrator hangs", "generation_0 answered"],
                ),
                ("trtllm", {}, ["trtllm hangs"]),
            ]
        ),
    ],
)
def test_a_server_that_hangs_ends_the_run_which_goes_on_later(
    flavour,
    launcher,
    where,
    told,
    standin,
    plan_of,
    tmp_path,
):
    plan = plan_of(launcher, SOON, concurrency=4, stall_timeout_s=1.0)
    standin(flavour, {"hang_after": FAULT_AT, "when": where})
    with pytest.raises(EndpointError) as caught:
        asyncio.run(evaluate(plan, tmp_path / "run"))
    for words in [*told, "the log of", "Uvicorn running"]:
        assert words in str(caught.value)
    assert caught.value.exit_code == 4
    had = (tmp_path / "run/samples/gsm8k.jsonl").read_text().splitlines()
    assert 1 < len([line for line in had if '"response":' in line]) < 20
    lost = [line for line in had if '"failure":{' in line]
    assert all("the server ended while the request was in flight" in line for line in lost)
    standin(flavour)
    report = asyncio.run(evaluate(plan, tmp_path / "run"))
    assert (report.tasks[0].result.scored, report.tasks[0].traffic.retries) == (20, {})


@pytest.mark.parametrize(
    ("flavour", "options", "again"),
    [
        pytest.param("v12", {}, None, id="v12"),
        pytest.param("main", {}, None, id="main"),
        pytest.param("v12", {"orchestrator": {"max_retries": 1}}, 1, id="v12 told to"),
        pytest.param(
            "main", {"env": {"TRTLLM_DISAGG_NO_RETRY": None}}, 1, id="main without the variable"
        ),
    ],
)
@pytest.mark.slow
def test_what_an_orchestrator_asks_again_is_told(
    flavour,
    options,
    again,
    standin,
    plan_of,
    tmp_path,
):
    standin(flavour, {"lose": FAULT_AT, "when": {"gpus": "1"}})
    report = asyncio.run(evaluate(plan_of(ONE_AND_ONE, options), tmp_path / "run"))
    assert report.tasks[0].result.scored == 20
    assert report.endpoint.info.hidden_retries == {"context": 0, "generation": again or 0}
    found = [line for line in report.warnings if "retried requests to its servers" in line]
    assert len(found) == bool(again)
    assert sum(report.tasks[0].traffic.retries.values()) == (0 if again else 1)
    finished = asyncio.run(evaluate(plan_of(ONE_AND_ONE, options), tmp_path / "run"))
    assert finished.warnings[0].startswith("nothing was asked: ")
    assert finished.warnings[1:] == report.warnings
