"""Use an endpoint that already runs, at a base URL; start and stop nothing."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from serve_eval.errors import LaunchError, PlanError
from serve_eval.launchers._fleet import loading
from serve_eval.plugins.setting import Setting
from serve_eval.schema import Endpoint, LaunchContext, PerfMetricsFolders, ServerInfo

POLL_S = 0.5
SERVER_NAME = re.compile(r"(context|generation)_\d+")


@dataclass(frozen=True, kw_only=True)
class ExternalOptions:
    """Choose the endpoint and the request reports to read from a trtllm-serve orchestrator.

    `perf_metrics` needs return_perf_metrics in the orchestrator's file.
    """

    base_url: Annotated[str, Setting("Address of the endpoint, such as http://localhost:8000/v1.")]
    ready_timeout_s: Annotated[
        float, Setting("Seconds to wait until the endpoint answers. 0: do not wait.")
    ] = 0.0
    perf_metrics: Annotated[
        bool, Setting("Read from an orchestrator how it handled each request.")
    ] = False
    perf_metrics_dir: Annotated[
        str | None,
        Setting(
            "The orchestrator's perf_metrics_output_dir, as seen from here. Implies perf_metrics."
        ),
    ] = None
    request_trace_dir: Annotated[
        str | None,
        Setting(
            "The orchestrator's TRTLLM_REQUEST_TRACE_DIR, as seen from here. Implies perf_metrics."
        ),
    ] = None
    servers: Annotated[
        dict[str, str],
        Setting(
            "Addresses of the servers behind the endpoint, by names such as context_0 and"
            " generation_0: their counters are read."
        ),
    ] = field(default_factory=dict)


def commands(context: LaunchContext, options: ExternalOptions) -> list[list[str]]:
    """Return no command line, as nothing is started. Raise PlanError for a name of no role."""
    for name in options.servers:
        if not SERVER_NAME.fullmatch(name):
            raise PlanError(
                f"launcher.servers: {name!r} names no role: use context_0, generation_0, ..."
            )
    return []


@asynccontextmanager
async def launch(context: LaunchContext, options: ExternalOptions) -> AsyncIterator[Endpoint]:
    """Yield the endpoint at `base_url`.

    With `ready_timeout_s` (seconds), wait until it answers over HTTP and no longer reports that it
    is starting. Raises LaunchError after that time, or immediately if `base_url` is not an address.
    """
    base_url, outputs, traces = (
        options.base_url,
        options.perf_metrics_dir,
        options.request_trace_dir,
    )
    if options.ready_timeout_s > 0:
        await _wait_for_answer(
            base_url if "://" in base_url else f"http://{base_url}", options.ready_timeout_s
        )
    told = None
    if options.perf_metrics or outputs or traces:
        told = PerfMetricsFolders(output_dir=_full(outputs), trace_dir=_full(traces))
    yield Endpoint(
        base_url=base_url,
        model=context.model,
        info=ServerInfo(launcher="external", perf_metrics=told, servers=options.servers or None),
    )


def _refuses_tls(error: BaseException | None) -> bool:
    """Return True if a server answered, but refuses the connection: it may demand a certificate."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
        error = error.__cause__ or error.__context__
    return False


def _full(path: str | None) -> str | None:
    return path and str(Path(path).expanduser())


async def _wait_for_answer(url: str, timeout_s: float) -> None:
    import httpx

    last: object = None
    try:
        # The poll sends no data and trusts no answer. The client, which knows the ca_bundle, checks
        # certificates.
        async with (
            asyncio.timeout(timeout_s),
            httpx.AsyncClient(verify=False, trust_env=False) as client,  # noqa: S501
        ):
            while True:
                try:
                    # The body is left unread: it may be endless, or compressed a thousandfold.
                    async with client.stream("GET", url) as reply:
                        starting = loading.says_so(reply)
                except (httpx.TransportError, ssl.SSLError) as error:  # httpx leaks the latter
                    if isinstance(error, httpx.UnsupportedProtocol):
                        raise
                    if _refuses_tls(error):
                        return
                    last = error
                else:
                    if not starting:
                        return
                    last = "it reports that it is starting"
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        why = f": {last}" if last and str(last) else ""
        raise LaunchError(f"{url} does not answer within {timeout_s:g} s{why}") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise LaunchError(
            "base_url is not an address: expected http://host:port/v1 or https://host:port/v1"
        ) from error
