"""Test the table of start failures on logs of its own wording and on those of sound starts."""

from __future__ import annotations

import re

import pytest

from serve_eval.launchers._logs.causes import TRTLLM, UNKNOWN_OPTION, guess_engine, read_causes
from serve_eval.launchers._logs.last_error import cause, explain
from tests.launchers.failure_logs import (
    FailureLog,
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


def by_name(one: FailureLog) -> str:
    return one.name


@pytest.mark.parametrize("one", every(), ids=by_name)
@pytest.mark.parametrize("known", [True, False], ids=["engine_known", "engine_guessed"])
def test_the_cause_of_a_failed_start_is_named(one: FailureLog, known: bool) -> None:
    found = explain(one.log, one.engine if known else None)
    assert name_cause(one, one.engine if known else None) == told()[one.cause]
    assert one.line == "" or (found is not None and one.line in found.line)


def test_the_fifth_that_was_drawn_first_is_named_as_often_as_the_others() -> None:
    rates = []
    for drawn in (True, False):
        logs = [one for one in collected() if (one.name in held_out()) is drawn]
        rates.append(sum(name_cause(one, None) == told()[one.cause] for one in logs) / len(logs))
    assert len(held_out()) == 33
    assert rates[0] >= rates[1]


@pytest.mark.parametrize("one", sound(), ids=by_name)
@pytest.mark.parametrize("known", [True, False], ids=["engine_known", "engine_guessed"])
def test_a_sound_start_with_warnings_has_no_cause(one: FailureLog, known: bool) -> None:
    assert name_cause(one, one.engine if known else None) is None


def test_there_are_enough_logs_of_sound_starts_of_each_engine() -> None:
    assert len(sound()) >= 20
    assert {one.engine for one in sound()} == set(ENDINGS)


@pytest.mark.parametrize("one", [*collected(), *of_sglang()], ids=by_name)
def test_pages_of_shutdown_and_wrappers_below_it_hide_no_cause(one: FailureLog) -> None:
    pages = "\n".join(ENDINGS[one.engine].format(number) for number in range(40))
    found = explain(f"{one.log}\n{pages}\n{WRAPPERS}\n{pages}", one.engine)
    assert (found.cause.told if found and found.cause else None) == told()[one.cause]
    assert found is None or one.line in found.line


@pytest.mark.parametrize("one", [*collected(), *of_sglang()], ids=by_name)
def test_warnings_above_it_are_not_taken_for_the_cause(one: FailureLog) -> None:
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
def test_a_sound_server_that_is_ended_later_has_no_cause(one: FailureLog) -> None:
    pages = "\n".join(ENDINGS[one.engine].format(number) for number in range(20))
    assert name_cause(one._replace(log=f"{one.log}\n{pages}"), one.engine) is None


def test_every_row_has_a_log_of_its_own() -> None:
    assert {one.cause for one in every()} - {None} == {one.name for one in read_causes()}


def test_every_row_is_complete() -> None:
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


def test_forty_rows_come_from_public_threads() -> None:
    assert sum(bool(one.seen) for one in read_causes()) >= 40


@pytest.mark.parametrize("engine", [one for one in ENDINGS if one != TRTLLM])
def test_no_remedy_of_tensorrt_llm_is_given_for_another_engine(engine: str) -> None:
    for one in read_causes():
        if one.can_be_of(engine):
            words = re.findall(
                r"cache_transceiver|free_gpu_memory_fraction|trtllm|launcher\.config|max_seq_len",
                one.remedy(engine),
            )
            assert not words, (one.name, words)


@pytest.mark.parametrize("one", every(), ids=by_name)
def test_hints_are_in_the_options_of_the_engine(one: FailureLog) -> None:
    known = cause(one.log, one.engine)
    assert (known is None) == (one.cause is None)
    row = next((row for row in read_causes() if row.name == one.cause), None)
    assert row is None or known is None or known[1]


def test_an_engine_is_guessed_from_most_lines() -> None:
    assert guess_engine("nothing of any engine") is None
    for one in collected():
        assert guess_engine(one.log) in (None, one.engine), one.name
