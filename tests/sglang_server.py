"""A server that answers in SGLang's forms: its models, health, options, counters and errors.

The names are those of its main branch in 2026: the routes of http_server.py, the models of
openai/protocol.py and the metrics of observability/metrics_collector.py.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.scripted_server import ScriptedServer, answer, json_reply, raw

VERSION, SECRET = "0.5.23", "a key of the server"
PROMPT, ANSWER = 70, 12
"""Tokens of a prompt and of an answer."""
RANKS, END_OF_TEXT = 2, 151645
NOT_FOUND = raw(b'{"detail":"Not Found"}', 404)


@dataclass
class SglangServer:
    """One engine of RANKS tensor-parallel ranks.

    `metrics`: it was started with --enable-metrics. `older`: it has /get_server_info alone.
    `verified` are the verifications of drafts for an answer (None: no speculation), `cached` the
    tokens of a prompt that its cache has, `sends` whether it sends the KV cache of each prompt.
    """

    engine_type: str = "unified"
    metrics: bool = True
    older: bool = False
    healthy: bool = True
    load_format: str = "auto"
    verified: int | None = None
    cached: int = 0
    sends: bool = False
    failed_transfers: int = 0
    stop: int | str | None = END_OF_TEXT
    counts: Counter[str] = field(default_factory=Counter)
    server: ScriptedServer = field(init=False)

    def __post_init__(self):
        card = {"id": "m", "object": "model", "owned_by": "sglang", "root": "m"}
        listed = [{**card, "max_model_len": 32768}]
        health = raw(b"", 200 if self.healthy else 503)
        told = json_reply(
            {
                "model_path": "m",
                "load_format": self.load_format,
                "api_key": SECRET,
                "speculative_algorithm": None if self.verified is None else "EAGLE",
                "internal_states": [{}],
                "version": VERSION,
            }
        )
        self.server = ScriptedServer(
            self.reply,
            routes={
                "/v1/models": json_reply({"object": "list", "data": listed}),
                "/health": raw(b""),
                "/health_generate": health,
                "/server_info": NOT_FOUND if self.older else told,
                "/get_server_info": told,
                "/version": NOT_FOUND,
                "/metrics": self._metrics,
            },
        )

    def reply(self, request):
        """Answer and count a request, or refuse it in the flat form of SGLang's errors."""
        if request.max_tokens <= 0:
            told = {"message": "max_tokens must be positive", "type": "Bad Request", "code": 400}
            return json_reply({"object": "error", "param": None, **told}, 400)
        tokens = min(ANSWER, request.max_tokens)
        self.counts["requests"] += 1
        self.counts["generated"] += tokens
        self.counts["verified"] += min(self.verified or 0, tokens - 1)
        if self.sends:
            self.counts["transfers"] += 1
        choice = {"matched_stop": self.stop, "logprobs": None}
        usage = {
            "prompt_tokens": PROMPT,
            "completion_tokens": tokens,
            "total_tokens": PROMPT + tokens,
            "prompt_tokens_details": None,
            "reasoning_tokens": 0,
        }
        body = {"id": f"cmpl-{len(self.server.requests)}", "usage": usage}
        return answer("#### 1", choice=choice, body={**body, "metadata": {"weight_version": "1"}})

    def _metrics(self, request):
        if not self.metrics:
            return NOT_FOUND
        own = f'engine_type="{self.engine_type}",model_name="m"'
        n, generated = self.counts["requests"], self.counts["generated"]
        lines = [
            "# HELP sglang:num_requests_total Number of requests processed.",
            "# TYPE sglang:num_requests_total counter",
            f'sglang:num_requests_total{{{own},is_streaming="false"}} {n}.0',
            f'sglang:num_requests_total{{{own},is_streaming="true"}} 0.0',
            f'sglang:prompt_tokens_total{{{own},is_streaming="false"}} {PROMPT * n}.0',
            f'sglang:generation_tokens_total{{{own},is_streaming="false"}} {generated}.0',
            f'sglang:cached_tokens_total{{{own},cache_source="device"}} {self.cached * n}.0',
            f'sglang:cached_tokens_total{{{own},cache_source="host"}} 0.0',
        ]
        if self.verified is not None:
            lines.append(f"sglang:spec_verify_calls_total{{{own}}} {self.counts['verified']}.0")
        for rank in range(RANKS):
            ranked = f'{own},moe_ep_rank="0",pp_rank="0",tp_rank="{rank}"'
            lines += [
                f"sglang:max_total_num_tokens{{{ranked}}} 4096.0",
                f"sglang:num_running_reqs{{{ranked}}} 1.0",
                f"sglang:num_retracted_requests_total{{{ranked}}} 0.0",
                f"sglang:num_transfer_failed_reqs_total{{{ranked}}} {self.failed_transfers * n}.0",
            ]
            if self.engine_type == "prefill":
                sent = self.counts["transfers"]
                lines.append(f"sglang:kv_transfer_latency_ms_count{{{ranked}}} {sent}.0")
        return raw("\n".join(lines).encode() + b"\n")
