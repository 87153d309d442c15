"""Test attribution with the files and response headers of main's orchestrator.

Lines may be cut, foreign or huge. Each record must be matched to its request.
"""

import asyncio
import json
import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve_eval.errors import PlanError
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.launch import _write_answers
from serve_eval.evaluation.prepare import prepare
from serve_eval.evidence.attribution import trace_files
from serve_eval.evidence.attribution.clock_offset import record
from serve_eval.evidence.attribution.matching import METRICS, TRACES
from serve_eval.evidence.attribution.trace_files import (
    LONGEST_LINE,
    Records,
    Trace,
    join_exactly,
    read_traces,
)
from serve_eval.launchers._standin import metrics
from serve_eval.plugins import registry
from serve_eval.schema import Attempt, Limits, Plan, ServerTiming, Spec
from serve_eval.storage.journal import Journal
from tests.standin.deployments import deployed

ARRIVAL = 12345.123456789
TIMING = {"arrival_time": 12345.2, "last_token_time": 12346.0}
TRANSFER = {"kv_cache_transfer_start": 12345.25, "kv_cache_transfer_end": 12345.5}
LINE = {
    "ctx_server": "a:8001",
    "gen_server": "b:8003",
    "disagg_server_arrival_time": ARRIVAL,
    "disagg_ctx_dispatch_time": 12345.13,
    "disagg_server_first_token_time": 12345.9,
    "status": "complete",
    "disagg_request_id": 1099511627777,
    "ctx_perf_metrics": {"request_id": 7, "perf_metrics": {"timing_metrics": TIMING}},
    "gen_perf_metrics": {
        "request_id": 9,
        "perf_metrics": {"timing_metrics": {**TIMING, **TRANSFER}},
    },
}
"""A record as main writes it: with the times of a transfer but without its size."""
NAME = "perf_metrics-disagg-node-17-20260923T120000Z.jsonl"


def _record(**more):
    found = record({**LINE, **more}, 0.0, 0.0)
    assert found is not None
    return found


def _read(folder):
    found = Records(folder)
    found.read(1.0)
    return found


def _attempt(name, arrival=None, transfer=None):
    timing = None if arrival is None else ServerTiming(arrival=arrival, kv_transfer_s=transfer)
    return Attempt(start_s=1.0, end_s=2.0, failure=None, status=200, request_id=name, timing=timing)


def test_a_line_is_read_with_the_time_of_its_transfer(tmp_path):
    (tmp_path / NAME).write_text(json.dumps(LINE) + "\n")
    [found] = _read(tmp_path).found
    assert (found.servers, found.arrival_s, found.kv_transfer_s, found.kv_bytes) == (
        ("a:8001", "b:8003"),
        ARRIVAL,
        0.25,
        None,
    )


@pytest.mark.parametrize(
    ("size", "start", "known"), [(None, 0.0, None), (0, 12345.25, None), (1024, 12345.25, 0.25)]
)
def test_what_was_not_transferred_took_no_time(size, start, known):
    told = {**TIMING, **TRANSFER, "kv_cache_transfer_start": start} | (
        {} if size is None else {"kv_cache_size": size}
    )
    assert (
        _record(gen_perf_metrics={"perf_metrics": {"timing_metrics": told}}).kv_transfer_s == known
    )


def test_lines_that_cannot_be_read_cost_nothing_but_themselves(tmp_path):
    good = json.dumps(LINE)
    odd = [
        "not json",
        "[]",
        "7",
        "\xff",
        '{"request_id": 5, "perf_metrics": {}}',
        "[" * 100_000,
        "x" * LONGEST_LINE * 2,
    ]
    (tmp_path / NAME).write_text("\n".join([good, *odd, good, good[:50]]), encoding="latin-1")
    (tmp_path / "other.jsonl").write_text(good + "\n")
    (tmp_path / "perf_metrics-dir.jsonl").mkdir()
    assert len(_read(tmp_path).found) == 2


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path):
    text = json.dumps(LINE) + "\n"
    found = Records(tmp_path)
    with (tmp_path / NAME).open("w") as file:
        for piece, count in ((text, 1), (text[:30], 1), (text[30:], 2), ("", 2), (text * 3, 5)):
            file.write(piece)
            file.flush()
            found.read(1.0)
            assert len(found.found) == count


def test_a_link_is_not_followed_and_what_may_not_be_read_is_passed_over(tmp_path):
    (tmp_path / "secret").write_text(json.dumps(LINE) + "\n")
    (folder := tmp_path / "metrics").mkdir()
    (folder / NAME).symlink_to(tmp_path / "secret")
    assert _read(folder).found == _read(tmp_path / "missing").found == []


@settings(max_examples=30)
@given(
    st.lists(
        st.sampled_from([json.dumps(LINE).encode(), b"\n", b"\r", b"{", b"\xff\xfe", b"null"]),
        max_size=12,
    )
)
def test_no_file_is_too_odd(tmp_path_factory, pieces):
    folder = tmp_path_factory.getbasetemp() / f"odd-{os.getpid()}"
    for name in (NAME, "requests-1.jsonl", "responses-1.jsonl"):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"".join(pieces))
    _read(folder)
    read_traces(folder)


# ---------------------------------------------------------------------------------------------------------  # noqa: E501
# traces


def _traced(folder, *requests, responses):
    hour = folder / "2026-09-23T12"
    hour.mkdir()
    for name, lines in (("requests-17", requests), ("responses-17", responses)):
        (hour / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_traces(folder)


def test_traces_are_found_by_the_header_that_was_sent(tmp_path):
    request = {
        "event": "request",
        "status": "accepted",
        "body": {"prompt": "x"},
        "server_arrival_time": ARRIVAL,
    }
    found = _traced(
        tmp_path,
        {**request, "trace_id": "t1", "headers": [["host", "h"], ["x-request-id", "one"]]},
        {
            **request,
            "trace_id": "t2",
            "headers": [["X-Request-ID", "two"]],
            "server_arrival_time": None,
        },
        {**request, "trace_id": "t3", "headers": [["x-request-id", "twice"]]},
        {**request, "trace_id": "t4", "headers": [["x-request-id", "twice"]]},
        {**request, "trace_id": "t5", "headers": {"x-request-id": "odd"}},
        {**request, "trace_id": "t6", "headers": []},
        responses=[
            {"trace_id": "t1", "disagg_request_id": None},
            {"trace_id": "t2", "disagg_request_id": 2**41},
        ],
    )
    assert found == {"one": Trace(ARRIVAL, None), "two": Trace(None, str(2**41))}


# -----------------------------------------------------------------------------------------------------------  # noqa: E501
# joins


def test_each_request_has_the_record_that_its_answer_or_its_trace_names():
    records = [
        _record(
            gen_server=f"g{i}",
            disagg_server_arrival_time=ARRIVAL + i * 2e-6,
            disagg_request_id=2**41 + i,
        )
        for i in range(4)
    ]
    attempts = [_attempt("a", f"{ARRIVAL:.9f}", 0.5), *(_attempt(name) for name in "bcde")]
    named = {
        "b": Trace(ARRIVAL + 2e-6, "nobody"),
        "c": Trace(None, str(2**41 + 2)),
        "d": Trace(1.5, "nobody"),
    }
    named |= {"a": Trace(ARRIVAL + 6e-6, None)}  # its answer comes first
    found = join_exactly(attempts, records, named)
    assert {name: (one.record.generation, one.how) for name, one in found.items()} == {
        "a": ("g0", METRICS),
        "b": ("g1", TRACES),
        "c": ("g2", TRACES),
    }
    assert (found["a"].kv_transfer_s, found["b"].kv_transfer_s) == (0.5, 0.25)


def test_an_arrival_with_fewer_decimals_joins_as_long_as_it_names_one():
    records = [
        _record(disagg_server_arrival_time=ARRIVAL),
        _record(disagg_server_arrival_time=ARRIVAL + 3e-7),
    ]
    assert list(join_exactly([_attempt("a", "12345.1234568")], records, {})) == ["a"]
    assert not join_exactly([_attempt("a", "12345.123")], records, {})
    both = [_attempt("a", "12345.1234568"), _attempt("b", f"{ARRIVAL + 3e-7:.9f}")]
    assert list(join_exactly(both, records, {})) == ["a", "b"]


def test_what_names_two_joins_nothing():
    arrival = f"{ARRIVAL:.9f}"
    assert not join_exactly([_attempt("a", arrival)], [_record(), _record()], {})
    assert not join_exactly([_attempt("a", arrival), _attempt("b", arrival)], [_record()], {})
    assert not join_exactly(
        [_attempt("a", arrival), _attempt("b")], [_record()], {"b": Trace(ARRIVAL, None)}
    )


@given(st.integers(1, 10**15), st.integers(0, 10**6))
def test_a_time_is_told_and_written_alike(ticks, fraction):
    """The file has the shortest text of the number, the header has nine decimals."""
    arrival = ticks / 1e9 + fraction / 7.0
    again = json.loads(json.dumps(arrival))
    assert list(
        join_exactly(
            [_attempt("a", f"{arrival:.9f}")], [_record(disagg_server_arrival_time=again)], {}
        )
    ) == ["a"]


N = 60


@pytest.fixture(scope="module")
def plan(data_root):
    return Plan(
        model="m",
        launcher=Spec(name="external", options={}),
        tasks=(Spec(name="gsm8k", options={"max_tokens": 64}),),
        dataset_roots=(str(data_root),),
        limit=N,
        no_reference=True,
        limits=Limits(concurrency=32),
    )


def run(
    plan,
    folder,
    options,
    *,
    flavour="main",
    contexts=2,
    **more,
):
    """Return the report of a run against a deployment that another user started."""

    async def story():
        async with deployed(
            contexts,
            2,
            flavour=flavour,
            metrics_dir=folder / "metrics",
            greeted=False,
            **more,
        ) as there:
            spec = Spec(name="external", options={"base_url": there.url, **options})
            return (
                await evaluate(replace(plan, launcher=spec), folder / "run", environ=os.environ),
                there,
            )

    return asyncio.run(story())


def lines(folder):
    return [json.loads(line) for line in (folder / "run/served.jsonl").read_text().splitlines()]


def warned(report):
    return [line for line in report.warnings if "perf metrics" in line]


@pytest.mark.parametrize("stream", [False, True])
def test_a_corrupt_server_of_a_running_orchestrator_is_named(plan, tmp_path, stream):
    answers = tmp_path / "answers.jsonl"
    _write_answers(answers, prepare(plan), lambda task, sample: 1.0)
    asked = replace(plan, limits=Limits(concurrency=32, stream=stream))
    options = {"perf_metrics_dir": str(tmp_path / "metrics")}
    faults = {"generation_1": {"corrupt_after": 0}}
    # With as many servers of each kind, turns may form pairs, which no answers tell apart.
    report, there = run(asked, tmp_path, options, contexts=3, answers=answers, faults=faults)
    told = report.tasks[0].attribution
    assert (told.how, told.joined) == (METRICS, N)
    [row] = [row for row in told.rows if row.accused]
    assert (row.worker, row.bad, row.others_bad) == (there.host("generation_1"), row.answers, 0)
    assert not warned(report)


def test_without_the_options_nothing_is_asked_for_and_nothing_said(plan, tmp_path):
    report, _ = run(replace(plan, limit=5), tmp_path, {})
    assert not warned(report)
    assert not (tmp_path / "run/served.jsonl").exists()
    assert b'"timing"' not in (tmp_path / "run/samples/gsm8k.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("options", "front", "said"),
    [
        ({"perf_metrics": True}, {}, "set launcher.perf_metrics_dir"),
        ({"perf_metrics": True}, {"return_perf_metrics": False}, "needs return_perf_metrics: true"),
        ({"perf_metrics_dir": "elsewhere"}, {}, "as seen from this machine"),
        (
            {"perf_metrics_dir": "elsewhere"},
            {"return_perf_metrics": False},
            "nothing was written to",
        ),
        ({"perf_metrics_dir": "metrics"}, {"return_perf_metrics": False}, "requests in"),
    ],
)
def test_that_nothing_is_known_is_said(
    plan,
    tmp_path,
    monkeypatch,
    options,
    front,
    said,
):
    monkeypatch.setattr(trace_files, "WAIT_S", 0.3)
    given = {
        key: str(tmp_path / value) if isinstance(value, str) else value
        for key, value in options.items()
    }
    report, _ = run(replace(plan, limit=5), tmp_path, given, front=front)
    [line] = warned(report)
    assert said in line
    assert "the servers of none of 5 answers are known" in line
    assert not (tmp_path / "run/served.jsonl").exists()


@pytest.mark.slow
def test_what_the_1_2_line_tells_at_its_route_counts_as_known(plan, tmp_path):
    one_by_one = replace(plan, limit=30, limits=Limits(concurrency=1))
    pace = {f"generation_{i}": {"latency_s": 0.01 * (i + 1)} for i in (0, 1)}
    report, _ = run(one_by_one, tmp_path, {"perf_metrics": True}, flavour="v12", faults=pace)
    told = report.tasks[0].attribution
    assert told.joined > 0
    assert not warned(report)


def test_lines_that_come_after_the_answers_are_waited_for(plan, tmp_path, monkeypatch):
    append = metrics.Lines._append

    def late(*given):
        time.sleep(0.4)
        append(*given)

    monkeypatch.setattr(metrics.Lines, "_append", late)
    report, _ = run(
        replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")}
    )
    told = report.tasks[0].attribution
    assert told.joined == 5


def test_files_that_cannot_be_read_never_cost_a_run(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "WAIT_S", 0.3)
    (odd := tmp_path / "odd").mkdir()
    (odd / "perf_metrics-1.jsonl").write_text('{"ctx_server": "a:1"}\n{"ctx_server": 7}\n\x00\n')
    (odd / "requests-1.jsonl").write_text("not json\n")
    options = {"perf_metrics_dir": str(odd), "request_trace_dir": str(odd)}
    report, _ = run(replace(plan, limit=5), tmp_path, options)
    assert report.tasks[0].result.scored == 5
    assert len(warned(report)) == 1


def test_what_is_joined_is_not_added_again(plan, tmp_path):
    out = tmp_path / "run"
    run(replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")})
    with Journal(out / "samples/gsm8k.jsonl") as journal:
        assert len(list(trace_files._list_unjoined({"gsm8k": journal}, tmp_path))) == 5
        assert not list(trace_files._list_unjoined({"gsm8k": journal}, out))


@pytest.mark.parametrize(
    ("start_s", "answered", "choices", "said"),
    [
        (2.0, True, None, True),
        (0.5, True, None, False),
        (2.0, False, None, False),
        (2.0, True, [], False),
    ],
)
def test_only_plain_answers_of_this_session_can_be_unknown(
    start_s, answered, choices, said, tmp_path
):
    attempt = Attempt(start_s=start_s, end_s=3.0, failure=None, status=200, request_id="r")
    result = SimpleNamespace(attempts=[attempt], choice_logprobs=choices)
    kept = SimpleNamespace(
        id="1", response=result if answered else None, failure=None if answered else result
    )
    journals = {"t": SimpleNamespace(records=lambda part: [kept])}
    nothing = trace_files._Found({}, [], {})
    told = trace_files._why_none(
        trace_files.Folders(None, None), nothing, journals, tmp_path, began=1.0
    )
    assert (told is not None) == said


def test_an_option_that_is_no_folder_is_refused():
    start = registry.load("serve_eval.launchers", "external")
    with pytest.raises(PlanError, match="perf_metrics_dir"):
        registry.check_options(
            start, {"base_url": "http://h/v1", "perf_metrics_dir": 7}, "launcher.external"
        )


def test_a_key_that_files_tell_is_not_written_down(plan, tmp_path, monkeypatch):
    """The orchestrator, which has the key, chooses the names of servers."""
    key = "sk-of-the-front-door"
    named = {"gen_server": f"{key}:1"}
    monkeypatch.setattr(
        trace_files, "record", lambda told, *times: record({**told, **named}, *times)
    )
    monkeypatch.setenv("OPENAI_API_KEY", key)
    report, _ = run(
        replace(plan, limit=5), tmp_path, {"perf_metrics_dir": str(tmp_path / "metrics")}
    )
    assert [one["generation"] for one in lines(tmp_path)] == ["***:1"] * 5
    assert key not in str(report)
