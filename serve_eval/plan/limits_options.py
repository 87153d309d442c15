"""Declare the options of the section `limits`: the rate of requests and their time limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from serve_eval.plan import shared_options
from serve_eval.plan.shared_options import (
    MaxTime,
    MaxTokensTotal,
    Order,
    OrderSeed,
    PaceOption,
    PageSamples,
    RateLimit,
    RequestsPerMinute,
    Stream,
)
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class LimitsOptions:
    """Choose the rate of requests and their time limits: the section `limits`."""

    title: ClassVar[str] = "Requests"
    concurrency: Annotated[
        str | None,
        Setting(
            "Requests in flight (default 64), one per conversation; auto finds what the"
            " endpoint can handle.",
            "N|auto",
            "limits.concurrency",
            parse=shared_options.number_or_word,
        ),
    ] = None
    max_tokens_total: MaxTokensTotal = None
    max_time: MaxTime = None
    rate_limit: RateLimit = None
    requests_per_minute: RequestsPerMinute = None
    order: Order = None
    order_seed: OrderSeed = None
    stream: Stream = None
    pace: PaceOption = None
    max_attempts: Annotated[
        int | None,
        Setting("Maximum attempts per sample (default 4).", "N", "limits.max_attempts", flag=False),
    ] = None
    retry_budget: Annotated[
        int | None,
        Setting(
            "Maximum retries per session, over all samples (default: a quarter of the samples).",
            "N",
            "limits.retry_budget",
            flag=False,
        ),
    ] = None
    max_error_rate: Annotated[
        float | None,
        Setting(
            "Stop if more than this share of 50 or more samples failed (default .10).",
            "SHARE",
            "limits.max_error_rate",
            flag=False,
        ),
    ] = None
    connect_timeout: Annotated[
        float | None,
        Setting(
            "Time limit to connect, per attempt (default 60).",
            "SECONDS",
            "limits.connect_timeout_s",
            flag=False,
        ),
    ] = None
    stall_timeout: Annotated[
        float | None,
        Setting(
            "Time limit without data, per attempt (default 900).",
            "SECONDS",
            "limits.stall_timeout_s",
            flag=False,
        ),
    ] = None
    sample_timeout: Annotated[
        float | None,
        Setting(
            "Time limit of a sample with all attempts (default 3600).",
            "SECONDS",
            "limits.sample_timeout_s",
            flag=False,
        ),
    ] = None
    outage_timeout: Annotated[
        float | None,
        Setting(
            "Time to wait while no server listens or it is starting (default 60; 0: end the run).",
            "SECONDS",
            "limits.outage_timeout_s",
            flag=False,
        ),
    ] = None
    max_response_bytes: Annotated[
        int | None,
        Setting(
            "Maximum bytes to read of a response (default 16777216).",
            "BYTES",
            "limits.max_response_bytes",
            flag=False,
        ),
    ] = None
    max_request_bytes: Annotated[
        int | None,
        Setting(
            "Maximum bytes of a request, media included (default 134217728).",
            "BYTES",
            "limits.max_request_bytes",
            flag=False,
        ),
    ] = None
    scorer_timeout: Annotated[
        float | None,
        Setting(
            "Time limit of a scorer per answer (default 10).",
            "SECONDS",
            "limits.scorer_timeout_s",
            flag=False,
        ),
    ] = None
    known_finish_reasons: Annotated[
        list[str] | None,
        Setting(
            "A finish_reason of your server that ends a whole answer. Repeatable.",
            "REASON",
            "limits.known_finish_reasons",
            flag=False,
        ),
    ] = None
    page_samples: PageSamples = None
