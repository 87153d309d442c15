"""Test how logs of servers are read: growing lines, words, last errors and refusals."""

import re

import pytest

from serve_eval.launchers._logs import lines as logs_lines
from serve_eval.launchers._logs.causes import (
    TRTLLM,
    VLLM,
    Refusals,
    WordIndex,
    find_known,
    find_required_words,
    read_causes,
)
from serve_eval.launchers._logs.last_error import LONGEST, Explanation, cause, explain
from serve_eval.launchers._logs.lines import Line, LogLines, clean
from tests.launchers.failure_logs import every, sound


@pytest.fixture
def log(tmp_path):
    (path := tmp_path / "server.log").touch()
    return path


def add(log, data):
    with log.open("ab") as file:
        file.write(data)


def texts(lines):
    return [line.text for line in lines]


def test_only_what_was_added_is_read_and_a_partial_line_waits(log):
    add(log, b"of an earlier launch\n")
    lines = LogLines(log, start=log.stat().st_size)
    assert lines.read() == []
    add(log, b"one\ntw")
    assert texts(lines.read()) == ["one"]
    add(log, b"o\r\n")
    assert [text for text in texts(lines.read()) if text] == ["two"]
    add(log, b"three")
    assert texts(lines.read()) == []
    assert texts(lines.rest()) == ["three"]
    add(log, b" and its end\nfour\n")
    assert texts(lines.read()) == ["four"]


def test_a_progress_bar_ends_its_lines_by_carriage_returns(log):
    add(log, b"Loading: 10%\rLoading: 20%\rLoading: 30%")
    assert texts(LogLines(log).read()) == ["Loading: 10%", "Loading: 20%"]


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"3: ValueError: no", Line("3", "ValueError: no")),
        (b"12: ", Line("12", "")),
        (b"[1,2]<stderr>:ValueError: no", Line("1,2", "ValueError: no")),
        (b"[TRT-LLM] [RANK 5] [E] no", Line("5", "[TRT-LLM] [RANK 5] [E] no")),
        (b"08:13:00 WARNING", Line("", "08:13:00 WARNING")),
        (b"\x1b[31mValueError\x1b[0m: no\x1b[K", Line("", "ValueError: no")),
        (b"0: \x1b[1mno\x1b[0m", Line("0", "no")),
        (b"caf\xc3\xa9 \xff\xfe", Line("", "caf\u00e9 \ufffd\ufffd")),
        (b"a\0b   ", Line("", "ab")),
    ],
)
def test_a_line_loses_its_label_and_its_colours(raw, line):
    assert clean(raw) == line


def test_a_log_that_was_cut_is_read_from_its_beginning(log):
    add(log, b"one\ntwo\nthr")
    lines = LogLines(log)
    lines.read()
    log.write_bytes(b"new\n")
    assert texts(lines.read()) == ["new"]


def test_a_log_that_is_gone_or_not_there_yet_holds_no_line(log):
    log.unlink()
    lines = LogLines(log)
    assert lines.read() == []
    add(log, b"one\n")
    assert texts(lines.read()) == ["one"]


def test_memory_is_bounded_for_a_line_without_an_end(log):
    lines = LogLines(log)
    for _ in range(40):
        add(log, b"x" * 50_000)
        assert lines.read() == []
        assert len(lines._partial) <= logs_lines.LONGEST_LINE
    add(log, b"\nafter\n")
    found = texts(lines.read())
    assert [len(found[0]), found[1]] == [logs_lines.LONGEST_LINE, "after"]


def test_of_a_log_that_grows_too_fast_the_end_is_read(log):
    add(log, b"first\n" + b"y" * 99 + b"\n")
    add(log, (b"z" * 99 + b"\n") * (logs_lines.MOST_AT_ONCE // 100) + b"last\n")
    lines = LogLines(log)
    found = texts(lines.read())
    assert found[-1] == "last"
    assert set(found[:-1]) == {"z" * 99}
    assert lines.read() == []


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("CUDA out of memory", ("cuda out of memory",)),
        ("ab?cdef|x(foos|bars)yyy", ("cdef", "foos", "bars")),
        (r"(?i)\b(heads?|layers)\b[^.]{0,80}divides", ("divides",)),
        (r"\[type=(a|b)", ("[type=",)),
        (r"Only \d+ GPUs? (is|are) available", (" available",)),
        (r"a[]x]bcde", ("bcde",)),
        (r"[^]]abcd", ("abcd",)),
        (r"(foos|bars)?wxyz", ("wxyz",)),
        (r"(?!abcd)def(ghij)+", ("ghij",)),
        (r"ab{2,3}cdef", ("cdef",)),
        (r"(?P<name>abcd)ef", ("abcd",)),
        ("abc|defgh", ()),
        (r"\d+", ()),
    ],
)
def test_the_words_that_a_match_must_have(pattern, words):
    re.compile(pattern)
    assert find_required_words(pattern) == words


def test_a_pattern_without_words_is_always_a_candidate():
    index = WordIndex([r"\d+", "abcdef", "uvwxyz"])
    assert index.candidates("some ABCDEF") == [0, 1]
    assert index.candidates("ab") == [0]


def test_the_index_finds_the_row_that_a_search_of_all_finds():
    for one in (*every(), *sound()):
        for line in one.log.splitlines():
            slow = next(
                (row for row in read_causes() if row.can_be_of(one.engine) and row.shows_in(line)),
                None,
            )
            assert find_known(line, one.engine) == slow, line


E, W, INFO = (f"[11/02/2026-09:00:01] [TRT-LLM] [{one}] " for one in "EWI")
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/serve.py", line 8, in <module>\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
HEADS = "ValueError: num_attention_heads (14) must be divisible by tp_size (4)"
PORT = "OSError: [Errno 98] Address already in use"
MISSING = "ModuleNotFoundError: No module named 'flashinfer.comm'"
UNKNOWN = "ValueError: the ring of layer 7 has an odd stride"
GAVE_UP = "RuntimeError: Executor worker returned error"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
READY = "INFO:     Application startup complete."
CORE = "(EngineCore_DP0 pid=15) ERROR 11-05 12:19:32 [core.py:708] "
API = "(APIServer pid=12) "
OUT_OF_MEMORY, TAKEN = "out of GPU memory", "its port is taken"
TENSOR = "its tensor parallelism does not divide the model's heads or layers"


def lines(*each):
    return "\n".join(each)


@pytest.mark.parametrize(
    ("log", "told", "line"),
    [
        # levels
        (lines(f"{W}Failed when profiling: {OOM}", f"{TRACEBACK}{PORT}"), TAKEN, PORT),
        (lines(f"{INFO}tried: {OOM}", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{W}{OOM}", f"{TRACEBACK}{UNKNOWN}", GAVE_UP), None, UNKNOWN),
        (lines(f"x.py:1: UserWarning: {OOM}", "  warnings.warn(", UNKNOWN), None, UNKNOWN),
        (f"[11/02/2026-09:00:01] [TRT-LLM] [F] {HEADS}", TENSOR, HEADS),
        (
            lines(f"{INFO}first", f"{E}an error of its own", f"{E}a later one"),
            None,
            "an error of its",
        ),
        # words by which an error is survived
        (lines(f"{E}{OOM}, retrying with half of it", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{E}caught {OOM}", UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM} (ignored)", f"{E}{UNKNOWN}"), None, UNKNOWN),
        (lines("CUDA out of memory, falling back to the CPU", UNKNOWN), None, UNKNOWN),
        # what a process writes later
        (lines(f"{TRACEBACK}{MISSING}", f"{W}slower", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{TRACEBACK}{MISSING}", f"{TRACEBACK}{UNKNOWN}"), None, UNKNOWN),
        (lines(f"{TRACEBACK}{MISSING}"), "a Python package is missing", MISSING),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(5)], UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(5)]), OUT_OF_MEMORY, OOM),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(50)]), None, ""),
        (
            lines(f"{E}{OOM}", *[f"{INFO}Releasing block {n}" for n in range(99)]),
            OUT_OF_MEMORY,
            OOM,
        ),
        (lines(f"{E}{OOM}", READY, UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM}", READY), None, ""),
        # an exception that was being handled when another was raised
        (f"{TRACEBACK}{OOM}\n{HANDLING}{TRACEBACK}{UNKNOWN}", None, UNKNOWN),
        (f"{TRACEBACK}KeyError: 'x'\n{HANDLING}{TRACEBACK}{HEADS}\n{GAVE_UP}", TENSOR, HEADS),
        # the first reason, not what follows from it
        (lines(f"{E}{OOM}", f"{E}{HEADS}", GAVE_UP), OUT_OF_MEMORY, OOM),
        (lines(f"{E}{OOM}", f"{E}MPI_ABORT was invoked on rank 0"), OUT_OF_MEMORY, OOM),
        (
            lines(f"{E}an error of its own", "MPI_ABORT was invoked on rank 0 in communicator"),
            "one of its ranks called MPI_ABORT, which ends all of them",
            "an error of its own",
        ),
        (GAVE_UP, None, GAVE_UP),
        # a warning stands above it, and nothing below
        (lines(f"{W}failed to find a config", f"{TRACEBACK}{HEADS}"), TENSOR, HEADS),
        (lines(f"{W}failed to import:", f"{TRACEBACK}{OOM}", f"{INFO}next"), None, ""),
        # ranks
        (lines(f"3: {E}{OOM}", *[f"0: {INFO}layer {n}" for n in range(9)]), OUT_OF_MEMORY, OOM),
        (
            lines("[rank0]: Traceback (most recent call last):", f"[rank0]: {OOM}"),
            OUT_OF_MEMORY,
            OOM,
        ),
        # a thread that does not matter
        (f"Exception in thread Thread-3 (poll):\n{TRACEBACK}KeyError: 'x'", None, ""),
        ("", None, ""),
    ],
)
def test_the_error_that_ended_a_trtllm_server(log, told, line):
    found = explain(log, TRTLLM) or Explanation("")
    assert (found.cause and found.cause.told) == told
    assert line in found.line
    assert bool(line) == bool(found.line)


@pytest.mark.parametrize(
    ("log", "told", "line"),
    [
        # the code in a traceback is no error
        (
            lines(
                f"{CORE}EngineCore failed to start.",
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}    raise ValueError('CUDA out of memory')",
                f"{CORE}{UNKNOWN}",
            ),
            None,
            UNKNOWN,
        ),
        (
            lines(
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}{OOM}",
                f"{CORE}",
                f"{CORE}During handling of the above exception, another exception occurred:",
                f"{CORE}",
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}{HEADS}",
            ),
            TENSOR,
            HEADS,
        ),
        # other processes write on
        (
            lines(f"{CORE}{OOM}", *[f"{API}INFO 11-05 12:19:{n} [x.py:1] waits" for n in range(9)]),
            OUT_OF_MEMORY,
            OOM,
        ),
        # requests that were refused
        (
            lines(
                f"{API}ERROR 11-05 12:19:32 [serving_chat.py:300] {UNKNOWN}",
                f'{API}INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 400 Bad',
                f"{API}INFO:     Shutting down",
            ),
            None,
            "",
        ),
        (
            lines(
                f"{API}WARNING 11-05 12:19:32 [x.py:1] The NVIDIA driver on your system is too"
                " old (found version 11040)",
                f"{API}RuntimeError: No CUDA GPUs are available",
            ),
            "the NVIDIA driver is too old for its CUDA",
            "too old",
        ),
    ],
)
def test_the_error_that_ended_a_vllm_server(log, told, line):
    found = explain(log, VLLM) or Explanation("")
    assert (found.cause and found.cause.told) == told
    assert line in found.line
    assert bool(line) == bool(found.line)


def test_a_hint_belongs_to_the_engine():
    log = f"{CORE}nixl_cu13._bindings.nixlBackendError: NIXL_ERR_BACKEND"
    named = [cause(log, engine) for engine in (TRTLLM, VLLM, None)]
    assert all(one is not None and one[0] == "NIXL could not move the KV cache" for one in named)
    trtllm, vllm, guessed = (one[1] for one in named if one is not None)
    assert "cache_transceiver" in trtllm
    assert "cache_transceiver" not in vllm
    assert guessed == vllm


def test_a_row_of_one_engine_is_not_found_in_the_log_of_another():
    hang = "Hang detected on rank 0 in PyExecutor; hard-killing and propagating to peer ranks."
    assert find_known(hang, TRTLLM) is not None
    assert find_known(hang, VLLM) is None


def test_a_long_line_is_cut_and_many_errors_are_bounded():
    found = explain(f"{E}{OOM} {'x' * 5000}", TRTLLM)
    assert len(found.line) < LONGEST + 10
    many = explain(lines(f"{E}{OOM}", *[f"{E}{UNKNOWN} {n}" for n in range(6000)]), TRTLLM)
    assert many.cause is not None


KEY = (500, '{"detail": "Internal disaggregated authentication key is required"}')
TRANSCEIVER = (400, "kv_cache_transceiver is disabled, please set")
FORM = (400, "[{'type': 'extra_forbidden', 'loc': ('body', 'x')}]")
OTHER_KEY = (500, "ValueError: Invalid internal disaggregated request authentication")
LOADING = (503, "kv_cache_transceiver is disabled")


def counted(*answers):
    refusals = Refusals()
    return [refusals.permanent(*answer) for answer in answers]


@pytest.mark.parametrize(
    "answer", [KEY, TRANSCEIVER, OTHER_KEY, FORM, (422, "x"), (405, "Method Not Allowed")]
)
def test_the_third_of_one_kind_is_the_last(answer):
    assert counted(answer, answer, answer) == [False, False, True]


@pytest.mark.parametrize(
    "answer",
    [
        (503, "starting"),
        LOADING,
        (500, "Internal server error No 0 servers available"),
        (500, '{"detail": "Internal server error "}'),
        (500, ""),
        (429, "extra inputs are not permitted"),
        (400, "Generation failed"),
        (500, "OSError: [Errno 98] Address already in use"),
        (200, "CUDA out of memory"),
        (404, "Not Found"),
        (500, "RuntimeError: Etcd3 error in set: ConnectionFailedError"),
    ],
)
def test_others_are_asked_for_again(answer):
    assert not any(counted(*[answer] * 9))


def test_they_must_be_alike_and_follow_each_other():
    assert counted(KEY, KEY, (503, ""), KEY, KEY) == [False] * 5
    assert counted(KEY, TRANSCEIVER, KEY, TRANSCEIVER) == [False] * 4
    assert (
        counted((400, "field required: a"), (400, "field required: b"), (400, "field required: c"))
        == [False] * 3
    )


def test_numbers_in_a_refusal_with_a_known_cause_do_not_matter():
    assert counted(*[(500, f"request {i}: {KEY[1]}") for i in range(3)])[-1]
