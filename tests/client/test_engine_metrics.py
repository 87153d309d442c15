"""Test the counters of an engine and the traffic that they show."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve_eval.client.engine_metrics import (
    MOST_CHARACTERS,
    EngineReading,
    add,
    read_metrics,
    subtract,
)
from serve_eval.client.traffic import (
    MOST_FINGERPRINTS,
    RESOLUTION,
    Times,
    TokenSteps,
    TrafficCounter,
)
from serve_eval.schema import (
    Acceptance,
    Attempt,
    EngineCounts,
    Failure,
    FailureKind,
    Response,
    Usage,
)

VLLM = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79570340965e+09
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 10662.0
# TYPE vllm:prefix_cache_queries_created gauge
vllm:prefix_cache_queries_created{engine="0",model_name="m"} 1.795703477087541e+09
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 9216.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 7.0
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 44264.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 0.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 1.0
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 44263.0
vllm:generation_tokens_total{engine="0",model_name="m"} 1.7957034e+09
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 190.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 10.0
vllm:request_success_total{engine="0",finished_reason="abort",model_name="m"} 1.0
vllm:request_prompt_tokens_sum{engine="0",model_name="m"} 44264.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 12103.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 36309.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 2704.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 2000.0
vllm:nixl_num_failed_transfers_total{engine="0",model_name="m"} 2.0
vllm:nixl_num_failed_notifications_total{engine="0",model_name="m"} 0.0
vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 1.0
vllm:nixl_num_notifications_after_expiry_total{engine="0",model_name="m"} 3.0
"""
READ = EngineCounts(
    requests=201,
    prompt_tokens=44264,
    generated_tokens=1795703400,
    prompt_tokens_by_source={
        "local_compute": 0,
        "local_cache_hit": 1,
        "external_kv_transfer": 44263,
    },
    prefix_cache_queries=10662,
    prefix_cache_hits=9216,
    preemptions=0,
    transfer_faults={"failed transfers": 2, "expired requests": 1, "notifications after expiry": 3},
    drafts=12103,
    draft_tokens=36309,
    accepted_tokens=2704,
)
TRTLLM = """\
# TYPE trtllm_request_success_total counter
trtllm_request_success_total{engine_type="trtllm",finished_reason="stop",model_name="m"} 18.0
trtllm_request_success_total{engine_type="trtllm",finished_reason="length",model_name="m"} 2.0
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 900.0
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 300.0
trtllm_prompt_cached_tokens_total{engine_type="trtllm",model_name="m"} 128.0
trtllm_spec_decode_drafted_tokens_total{model_name="m",token_position="0"} 100.0
trtllm_spec_decode_drafted_tokens_total{model_name="m",token_position="1"} 90.0
trtllm_spec_decode_accepted_tokens_total{model_name="m",token_position="0"} 60.0
trtllm_spec_decode_accepted_tokens_total{model_name="m",token_position="1"} 20.0
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm",model_name="m"} 5.0
"""


def _counts(text, model="m"):
    reading = read_metrics(text.encode(), model)
    return None if reading is None else reading.counts


def test_every_counter_of_vllm_is_read():
    reading = read_metrics(VLLM.encode(), "m")
    assert reading == EngineReading(READ, 1.79570340965e9)
    assert reading.counts.moved_tokens == 44263
    assert reading.counts.acceptance_length == pytest.approx(1 + 2704 / 12103)


def test_every_counter_of_trtllm_serve_is_read():
    found = _counts(TRTLLM)
    assert found == EngineCounts(
        requests=20,
        prompt_tokens=900,
        generated_tokens=300,
        prefix_cache_hits=128,
        drafts=100,
        draft_tokens=190,
        accepted_tokens=80,
    )
    assert (found.moved_tokens, found.acceptance_length) == (None, 1.8)


P = "vllm:prompt_tokens_total"


@pytest.mark.parametrize(
    ("text", "model", "tokens"),
    [
        # Engines are summed, and models are told apart.
        (f'{P}{{engine="0",model_name="m"}} 2\n{P}{{engine="1",model_name="m"}} 3', "m", 5),
        (f'{P}{{model_name="m"}} 2\n{P}{{model_name="n"}} 3', "m", 2),
        (f'{P}{{model_name="m"}} 2\n{P}{{model_name="n"}} 3', "o", None),
        (f'{P}{{model_name="m"}} 2\n{P}{{model_name="n"}} 3', None, None),
        (f'{P}{{model_name="m"}} 2', "alias", 2),
        (f"{P} 2", "m", 2),
        (f'{P} 2\n{P}{{model_name="n"}} 3', None, 2),
        # Forms of the text.
        (f'{P}{{model_name="a \\"}} b"}} 2\r\n{P}{{model_name="n"}} 3', 'a \\"}} b', None),
        (f'{P}{{model_name="m"}} 2.0 1795703477087', "m", 2),
        (f"{P}_created 2\nx{P} 7\n{P} 1", "m", 1),
        (f"  {P} 2", "m", None),
        # No counters.
        ("", "m", None),
        ("process_start_time_seconds 1", "m", None),
        ('[{"cpuMemUsage": 1}]', "m", None),
        (f"{P} NaN", "m", None),
        (f"{P} -1", "m", None),
        (f"{P} 1e300", "m", None),
        (f"{P} +Inf", "m", None),
        (f"{P} many", "m", None),
        (f'{P}{{model_name="m",x="{MOST_CHARACTERS * "w"}"}} 2', "m", None),
    ],
)
def test_texts_of_servers(text, model, tokens):
    found = _counts(text, model)
    assert (None if found is None else found.prompt_tokens) == tokens


def test_a_text_with_endless_names_takes_no_memory():
    of_models = "".join(f'{P}{{model_name="{i}"}} 1\n' for i in range(1000))
    assert _counts(of_models) is None
    name = "vllm:prompt_tokens_by_source_total"
    found = _counts("".join(f'{name}{{source="{i}"}} 1\n' for i in range(1000)))
    assert len(found.prompt_tokens_by_source) == 100
    assert _counts(f'{name}{{source="{50 * "w"}"}} 1\n{P} 1') == EngineCounts(prompt_tokens=1)


def _reading(start_s=None, **counts):
    return EngineReading(EngineCounts(**counts), start_s)


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        (_reading(drafts=3), _reading(drafts=5), EngineCounts(drafts=2)),
        (_reading(7.0, drafts=3), _reading(7.0, drafts=3), EngineCounts(drafts=0)),
        (_reading(drafts=3, requests=1), _reading(drafts=2, requests=2), None),
        (_reading(drafts=3, requests=1), _reading(requests=2), None),
        (_reading(7.0, drafts=3), _reading(8.0, drafts=5), None),
        (_reading(7.0, drafts=3), _reading(drafts=5), EngineCounts(drafts=2)),
        # A counter appears when it first counts.
        (_reading(), _reading(drafts=2), EngineCounts(drafts=2)),
    ],
)
def test_a_server_that_started_again_counted_nothing_known(before, after, counted):
    assert subtract(before, after) == counted


def test_differences_and_sums_go_by_the_keys():
    more = add([READ, READ])
    assert subtract(EngineReading(READ), EngineReading(more)) == READ
    assert more.prompt_tokens_by_source == {
        "local_compute": 0,
        "local_cache_hit": 2,
        "external_kv_transfer": 88526,
    }
    assert add([READ, EngineCounts(requests=1)]) == EngineCounts(requests=202)
    assert add([]) == EngineCounts()


@pytest.mark.parametrize(
    ("drafts", "accepted", "length"), [(None, 1, None), (0, 0, None), (4, None, None), (4, 2, 1.5)]
)
def test_an_acceptance_length_needs_drafts(drafts, accepted, length):
    assert EngineCounts(drafts=drafts, accepted_tokens=accepted).acceptance_length == length


def _attempt(failure=None, status=200, **more):
    return Attempt(start_s=0.0, end_s=1.0, failure=failure, status=status, request_id="r", **more)


@given(st.lists(st.floats(1e-5, 1e4), min_size=1, max_size=300))
def test_percentiles_are_those_of_the_sorted_times_to_the_resolution(times):
    counted = Times()
    for seconds in times:
        counted.add(seconds)
    found = counted.percentiles()
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        exact = sorted(times)[math.ceil(share * len(times)) - 1]
        assert found[name] == pytest.approx(exact, rel=RESOLUTION / 2, abs=1e-6)
    assert found["max"] == max(times)


@pytest.mark.parametrize("seconds", [0.001, 1.0, 1.001, 77.7])
def test_a_percentile_is_the_middle_of_its_class(seconds):
    counted = Times()
    counted.add(seconds, 99)
    counted.add(100.0)
    assert counted.percentiles()["p99"] == pytest.approx(seconds, rel=RESOLUTION / 2, abs=1e-6)


def test_times_that_are_taken_back_leave_no_trace_but_a_rounded_maximum():
    counted = Times()
    for seconds, times in ((1.0, 1), (3.0, 1), (3.0, -1)):
        counted.add(seconds, times)
    assert counted.percentiles() == pytest.approx(
        dict.fromkeys(("p50", "p90", "p99", "max"), 1.0), rel=RESOLUTION
    )
    counted.add(1.0, -1)
    assert counted.percentiles() == {}


def test_the_steps_of_all_answers_are_added_and_taken_back():
    """Ten tokens in five steps, and thirty in ten."""
    steps = TokenSteps()
    assert steps.acceptance() is None
    steps.add(10, 2.0)
    steps.add(30, 3.0)
    assert steps.acceptance() == Acceptance(
        answers=2, length=38 / 13, all_steps=40 / 15, per_answer=2.5
    )
    steps.add(10, 2.0, -1)
    assert steps.acceptance() == Acceptance(answers=1, length=29 / 9, all_steps=3.0, per_answer=3.0)


def test_no_time_gives_no_percentile_and_none_at_all_is_a_time():
    assert Times().percentiles() == {}
    counted = Times()
    counted.add(0.0)
    assert counted.percentiles() == {"p50": 0.0, "p90": 0.0, "p99": 0.0, "max": 0.0}


def test_retries_are_counted_by_what_had_gone_wrong():
    counter = TrafficCounter()
    busy, lost = _attempt(FailureKind.HTTP_ERROR, 429), _attempt(FailureKind.DISCONNECTED, 200)
    usage = Usage(prompt_tokens=3, completion_tokens=5)
    counter.see(
        Response(
            text="",
            finish_reason="stop",
            usage=usage,
            latency_s=2.0,
            attempts=(busy, lost, _attempt()),
        )
    )
    counter.see(Failure(kind=FailureKind.HTTP_ERROR, message="", attempts=(busy, busy)))
    odd = (_attempt(FailureKind.HTTP_ERROR, 400), _attempt(FailureKind.HTTP_ERROR, 399), busy)
    counter.see(Failure(kind=FailureKind.HTTP_ERROR, message="", attempts=odd))
    counter.see(
        Response(
            text="",
            finish_reason="stop",
            latency_s=1.0,
            ttft_s=0.5,
            tpot_s=0.1,
            attempts=(_attempt(),),
        )
    )
    traffic = counter.traffic()
    assert (traffic.attempts, traffic.not_streamed) == (9, 0)
    assert traffic.retries == {
        "disconnected": 1,
        "http_error": 1,
        "http_error 400": 1,
        "http_error 429": 2,
    }
    assert (traffic.prompt_tokens, traffic.completion_tokens) == (3, 5)
    assert traffic.latency_s["max"] == 2.0
    assert (traffic.ttft_s["max"], traffic.tpot_s["max"]) == (0.5, 0.1)


def test_an_answer_that_a_stream_lost_is_counted():
    counter = TrafficCounter()
    lost = _attempt(FailureKind.INVALID_RESPONSE, streamed=True)
    counter.see(
        Response(
            text="", finish_reason="stop", latency_s=1.0, attempts=(lost, _attempt(streamed=False))
        )
    )
    assert counter.traffic().not_streamed == 1


def _named(fingerprint, start_s, end_s):
    given = Attempt(start_s=start_s, end_s=end_s, failure=None, status=200, request_id="r")
    return Response(
        text="", finish_reason="stop", attempts=(given,), system_fingerprint=fingerprint
    )


def test_the_answers_of_each_configuration_are_counted_with_their_times():
    counter = TrafficCounter()
    for one in (_named("b", 4.0, 5.0), _named("a", 1.0, 2.0), _named("a", 3.0, 7.0)):
        counter.see(one)
    counter.see(Response(text="", finish_reason="stop", attempts=(_attempt(),)))
    found = counter.traffic().system_fingerprints
    assert [(name, one.answers, one.first_s, one.last_s) for name, one in found.items()] == [
        ("a", 2, 1.0, 7.0),
        ("b", 1, 4.0, 5.0),
    ]
    counter.see(_named("b", 4.0, 5.0), -1)
    assert list(counter.traffic().system_fingerprints) == ["a"]


def test_a_server_that_names_each_answer_differently_takes_no_memory():
    counter = TrafficCounter()
    for number in range(1000):
        counter.see(_named(str(number), 0.0, 1.0))
    assert len(counter.traffic().system_fingerprints) == MOST_FINGERPRINTS
