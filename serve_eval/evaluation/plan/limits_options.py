"""Declare the options of the section `limits`: how fast requests are sent, and how patiently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from serve_eval.evaluation.plan import flag_values
from serve_eval.evaluation.plan.shared_options import Order, OrderSeed, RateLimit, Stream
from serve_eval.plugins.setting import Setting


@dataclass(frozen=True, kw_only=True)
class LimitsOptions:
    """Choose how fast requests are sent and how patiently: the section `limits`."""

    title: ClassVar[str] = "How the requests are sent"
    concurrency: Annotated[
        str | None,
        Setting(
            "Requests in flight (default 64), or auto: as many as the endpoint carries.",
            metavar="N|auto",
            key="limits.concurrency",
            parse=flag_values.number_or_word,
        ),
    ] = None
    rate_limit: RateLimit = None
    order: Order = None
    order_seed: OrderSeed = None
    stream: Stream = None
    max_attempts: Annotated[
        int | None,
        Setting("Attempts per sample (default 4).", metavar="N", key="limits.max_attempts"),
    ] = None
    retry_budget: Annotated[
        int | None,
        Setting(
            "Retries of all samples of a session (default: a quarter of the samples).",
            metavar="N",
            key="limits.retry_budget",
        ),
    ] = None
    max_error_rate: Annotated[
        float | None,
        Setting(
            "Stop when a larger share of 50 or more samples failed (default .10).",
            metavar="SHARE",
            key="limits.max_error_rate",
        ),
    ] = None
    connect_timeout: Annotated[
        float | None,
        Setting(
            "Time to connect, per attempt (default 60).",
            metavar="SECONDS",
            key="limits.connect_timeout_s",
        ),
    ] = None
    stall_timeout: Annotated[
        float | None,
        Setting(
            "Time without data, per attempt (default 900).",
            metavar="SECONDS",
            key="limits.stall_timeout_s",
        ),
    ] = None
    sample_timeout: Annotated[
        float | None,
        Setting(
            "Time for a sample with all attempts (default 3600).",
            metavar="SECONDS",
            key="limits.sample_timeout_s",
        ),
    ] = None
    outage_timeout: Annotated[
        float | None,
        Setting(
            "Time for which requests wait while no server listens, or it is starting (default 60;"
            " 0: the run ends).",
            metavar="SECONDS",
            key="limits.outage_timeout_s",
        ),
    ] = None
    max_response_bytes: Annotated[
        int | None,
        Setting(
            "Bytes read of an answer (default 16777216).",
            metavar="BYTES",
            key="limits.max_response_bytes",
        ),
    ] = None
    scorer_timeout: Annotated[
        float | None,
        Setting(
            "Time that a scorer may take for one answer (default 10).",
            metavar="SECONDS",
            key="limits.scorer_timeout_s",
        ),
    ] = None
