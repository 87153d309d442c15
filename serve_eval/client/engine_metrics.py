"""Read an engine's counters from the Prometheus text of its server; subtract and add. Pure.

The text is vLLM's and SGLang's at /metrics or trtllm-serve's at /prometheus/metrics. The route
/metrics of trtllm-serve is another one: it hands out its statistics only once, so that a reader
takes them from its other readers. /metrics is therefore asked only of servers that are known to be
vLLM or SGLang, which has it if it was started with --enable-metrics.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from serve_eval.schema import EngineCounts

VLLM_ROUTE, SGLANG_ROUTE, TRTLLM_ROUTE = "/metrics", "/metrics", "/prometheus/metrics/"
"""trtllm-serve mounts an application: without the last slash it answers with a redirect."""
MOST_BYTES = 8 * 1024 * 1024
"""Size limit of a text; that of vLLM has 50 kB for each engine."""
MOST_CHARACTERS = 2000
"""Length of a line beyond which it is ignored."""
MOST_FIELDS, MOST_MODELS = 100, 100
"""Numbers of fields with their keys, and of models, that are read from one text."""

_COUNTERS = {
    "vllm:request_success_total": "requests",
    "vllm:prompt_tokens_total": "prompt_tokens",
    "vllm:generation_tokens_total": "generated_tokens",
    "vllm:prefix_cache_queries_total": "prefix_cache_queries",
    "vllm:prefix_cache_hits_total": "prefix_cache_hits",
    "vllm:num_preemptions_total": "preemptions",
    "vllm:spec_decode_num_drafts_total": "drafts",
    "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens",
    "sglang:num_requests_total": "requests",
    "sglang:prompt_tokens_total": "prompt_tokens",
    "sglang:generation_tokens_total": "generated_tokens",
    "sglang:cached_tokens_total": "prefix_cache_hits",
    "sglang:spec_verify_calls_total": "drafts",
    "trtllm_request_success_total": "requests",
    "trtllm_prompt_tokens_total": "prompt_tokens",
    "trtllm_generation_tokens_total": "generated_tokens",
    "trtllm_prompt_cached_tokens_total": "prefix_cache_hits",
    "trtllm_spec_decode_drafted_tokens_total": "draft_tokens",
    "trtllm_spec_decode_accepted_tokens_total": "accepted_tokens",
}
_FAULTS = {
    "vllm:nixl_num_failed_transfers_total": "failed transfers",
    "vllm:nixl_num_kv_expired_reqs_total": "expired requests",
    "vllm:nixl_num_notifications_after_expiry_total": "notifications after expiry",
}
"""Failures of NIXL. After an expiry, blocks may have been used again before they were read."""
_Place = tuple[str, str]
"""A field of EngineCounts, with the key if the field is a mapping."""
_ROOM: _Place = ("cache_tokens", "")
_BY_RANK: Mapping[str, _Place] = {
    "sglang:num_retracted_requests_total": ("preemptions", ""),
    "sglang:kv_transfer_latency_ms_count": ("transfers", ""),
    "sglang:num_transfer_failed_reqs_total": ("transfer_faults", "failed transfers"),
    "sglang:num_bootstrap_failed_reqs_total": ("transfer_faults", "failed bootstraps"),
    "sglang:max_total_num_tokens": _ROOM,
}
"""Samples of SGLang's schedulers. Each rank of a replica counts the same requests, so that the
largest count of its ranks is that of the replica. Replicas have a dp_rank of their own."""
_SOURCES = "vllm:prompt_tokens_by_source_total"
_POSITIONS = "trtllm_spec_decode_drafted_tokens_total"
"""Draft tokens by their position; every draft has a token at the first position, 0."""
_START = "process_start_time_seconds"
_CACHE = "vllm:cache_config_info"
"""Its labels have the size of the KV cache of an engine."""
_WANTED = {*_COUNTERS, *_FAULTS, *_BY_RANK, _SOURCES, _START, _CACHE}
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([^ ]+)(?: -?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_NAME = re.compile(r"[\w.-]{1,40}")


class EngineReading(NamedTuple):
    """The counts of an engine since its start, and when its process started (None: not told).

    The start is in seconds since 1970 on the server's clock. `cache_tokens` is the number of tokens
    for which its KV cache has room (None: not told).
    """

    counts: EngineCounts
    start_s: float | None = None
    cache_tokens: int | None = None


@dataclass(slots=True)
class _Counted:
    """The counts of one model: sums over its engines, and those of ranks by the replica."""

    sums: Counter[_Place] = field(default_factory=Counter)
    by_replica: dict[_Place, dict[str, int]] = field(default_factory=dict)

    def add(self, name: str, labels: Mapping[str, str], value: int) -> None:
        """Add a sample; of more than MOST_FIELDS fields, or replicas, the others are left out."""
        if (ranked := _BY_RANK.get(name)) is not None:
            counts = self.by_replica.setdefault(ranked, {})
            replica = labels.get("dp_rank", "")
            if replica in counts or len(counts) < MOST_FIELDS:
                counts[replica] = max(value, counts.get(replica, 0))
            return
        for place in _fields(name, labels):
            if place in self.sums or len(self.sums) < MOST_FIELDS:
                self.sums[place] += value

    def total(self) -> dict[_Place, int]:
        """Return the count of each field."""
        ranked = {place: sum(counts.values()) for place, counts in self.by_replica.items()}
        return {**self.sums, **ranked}


def read_metrics(body: bytes, model: str | None) -> EngineReading | None:
    """Return the counters for a model, the sum of its engines, or None if there are none.

    A server of one model has the name of that model, whatever it was asked for.
    """
    by_model: dict[str, _Counted] = {}
    start_s, cache_tokens = None, 0
    for name, labels, value in _samples(body.decode(errors="replace")):
        if not 0 <= value < 2**53:
            return None
        if name == _START:
            start_s = value
            continue
        if name == _CACHE:
            cache_tokens += _count_room(labels)
            continue
        name_of_model = labels.get("model_name", "")
        if name_of_model not in by_model and len(by_model) >= MOST_MODELS:
            return None
        by_model.setdefault(name_of_model, _Counted()).add(name, labels, int(value))
    chosen = by_model.get(model or "")
    if chosen is None and len(by_model) == 1:
        [chosen] = by_model.values()
    if chosen is None:
        return None
    counts = chosen.total()
    cache_tokens += counts.pop(_ROOM, 0)
    return EngineReading(_build(counts), start_s, cache_tokens or None)


def _count_room(labels: Mapping[str, str]) -> int:
    """Return the tokens for which a KV cache has room; 0 if the labels do not say."""
    told = [labels.get(name, "") for name in ("num_gpu_blocks", "block_size")]
    if not all(one.isdecimal() and len(one) < 12 for one in told):
        return 0
    return int(told[0]) * int(told[1])


def _samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Yield the wanted samples with their labels. A value that is not a number is NaN."""
    for line in text.split("\n"):
        if len(line) > MOST_CHARACTERS or line.partition("{")[0].partition(" ")[0] not in _WANTED:
            continue
        if (sample := _SAMPLE.fullmatch(line.rstrip())) is None:
            continue
        name, labels, value = sample.groups()
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        yield name, dict(_LABEL.findall(labels or "")), number


def _fields(name: str, labels: Mapping[str, str]) -> Iterator[_Place]:
    """Yield the fields to which a sample belongs, each with its key if it is a mapping."""
    if name in _COUNTERS:
        yield _COUNTERS[name], ""
    if name in _FAULTS:
        yield "transfer_faults", _FAULTS[name]
    if name == _SOURCES and _NAME.fullmatch(labels.get("source", "")):
        yield "prompt_tokens_by_source", labels["source"]
    if name == _POSITIONS and labels.get("token_position") == "0":
        yield "drafts", ""


def subtract(before: EngineReading, after: EngineReading) -> EngineCounts | None:
    """Return what was counted between two readings, or None if they are not of one process.

    That shows by another start of the process, or by a counter that became smaller.
    """
    if None not in (before.start_s, after.start_s) and before.start_s != after.start_s:
        return None
    first, last = _flatten(before.counts), _flatten(after.counts)
    if any(last.get(place, 0) < count for place, count in first.items()):
        return None
    return _build({place: count - first.get(place, 0) for place, count in last.items()})


def add(parts: Iterable[EngineCounts]) -> EngineCounts:
    """Return the sums of the counters that all parts have."""
    flat = [_flatten(part) for part in parts]
    fields = [{name for name, _ in part} for part in flat]
    common = set.intersection(*fields) if fields else set()
    total: dict[_Place, int] = {}
    for part in flat:
        for place, count in part.items():
            if place[0] in common:
                total[place] = total.get(place, 0) + count
    return _build(total)


def _flatten(counts: EngineCounts) -> dict[_Place, int]:
    found: dict[_Place, int] = {}
    for name in EngineCounts.__struct_fields__:
        value = getattr(counts, name)
        if isinstance(value, Mapping):
            found |= {(name, key): count for key, count in value.items()}
        elif value is not None:
            found[name, ""] = value
    return found


def _build(flat: Mapping[_Place, int]) -> EngineCounts:
    found: dict[str, int | dict[str, int]] = {}
    for (name, key), count in flat.items():
        if key:
            mapping = found.setdefault(name, {})
            assert isinstance(mapping, dict)
            mapping[key] = count
        else:
            found[name] = count
    return msgspec.convert(found, EngineCounts)
