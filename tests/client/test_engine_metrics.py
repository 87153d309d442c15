"""Test the counters in Prometheus texts as vLLM 0.32 and trtllm-serve write them."""

from __future__ import annotations

import pytest

from serve_eval.client.engine_metrics import (
    MOST_CHARACTERS,
    EngineReading,
    add,
    read_metrics,
    subtract,
)
from serve_eval.schema import EngineCounts

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


def _counts(text: str, model: str | None = "m") -> EngineCounts | None:
    reading = read_metrics(text.encode(), model)
    return None if reading is None else reading.counts


def test_every_counter_of_vllm_is_read() -> None:
    reading = read_metrics(VLLM.encode(), "m")
    assert reading == EngineReading(READ, 1.79570340965e9)
    assert reading.counts.moved_tokens == 44263
    assert reading.counts.acceptance_length == pytest.approx(1 + 2704 / 12103)


def test_every_counter_of_trtllm_serve_is_read() -> None:
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
def test_texts_of_servers(text: str, model: str | None, tokens: int | None) -> None:
    found = _counts(text, model)
    assert (None if found is None else found.prompt_tokens) == tokens


def test_a_text_with_endless_names_takes_no_memory() -> None:
    of_models = "".join(f'{P}{{model_name="{i}"}} 1\n' for i in range(1000))
    assert _counts(of_models) is None
    name = "vllm:prompt_tokens_by_source_total"
    found = _counts("".join(f'{name}{{source="{i}"}} 1\n' for i in range(1000)))
    assert found is not None
    assert found.prompt_tokens_by_source is not None
    assert len(found.prompt_tokens_by_source) == 100
    assert _counts(f'{name}{{source="{50 * "w"}"}} 1\n{P} 1') == EngineCounts(prompt_tokens=1)


def _reading(start_s: float | None = None, **counts: int) -> EngineReading:
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
def test_a_server_that_started_again_counted_nothing_known(
    before: EngineReading, after: EngineReading, counted: EngineCounts | None
) -> None:
    assert subtract(before, after) == counted


def test_differences_and_sums_go_by_the_keys() -> None:
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
def test_an_acceptance_length_needs_drafts(
    drafts: int | None, accepted: int | None, length: float | None
) -> None:
    assert EngineCounts(drafts=drafts, accepted_tokens=accepted).acceptance_length == length
