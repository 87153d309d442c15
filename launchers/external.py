"""An endpoint that is already running, at a base URL; nothing is started or stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from launchers import _meanings
from launchers._fleet import loading
from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint, LaunchContext, PerfMetricsFolders, ServerInfo

POLL_S = 0.5
MEANINGS = _meanings.EXTERNAL


def commands(context: LaunchContext, **options: object) -> list[list[str]]:
    """None: nothing is started."""
    return []


@asynccontextmanager
async def launch(
    context: LaunchContext,
    *,
    base_url: str,
    ready_timeout_s: float = 0.0,
    perf_metrics: bool = False,
    perf_metrics_dir: str | None = None,
    request_trace_dir: str | None = None,
) -> AsyncIterator[Endpoint]:
    """Yields the endpoint at `base_url`. With `ready_timeout_s` (seconds), waits until it answers over HTTP, and no
    longer that it is starting.

    `perf_metrics`: an orchestrator of trtllm-serve is asked to tell in its answers how each request went, which needs
    return_perf_metrics in its file. `perf_metrics_dir` and `request_trace_dir`, which ask for the same, are where its
    perf_metrics_output_dir and its TRTLLM_REQUEST_TRACE_DIR can be read from here. Raises LaunchError when the time is
    over, or at once when the address is none.
    """
    if ready_timeout_s > 0:
        await _answering(base_url if "://" in base_url else f"http://{base_url}", ready_timeout_s)
    told = None
    if perf_metrics or perf_metrics_dir or request_trace_dir:
        told = PerfMetricsFolders(output_dir=_full(perf_metrics_dir), trace_dir=_full(request_trace_dir))
    yield Endpoint(base_url=base_url, model=context.model, info=ServerInfo(launcher="external", perf_metrics=told))


def _full(path: str | None) -> str | None:
    return path and str(Path(path).expanduser())


async def _answering(url: str, timeout_s: float) -> None:
    import httpx

    last: object = None
    try:
        # The poll sends nothing and trusts nothing; certificates are the client's business, which knows the ca_bundle.
        async with asyncio.timeout(timeout_s), httpx.AsyncClient(verify=False, trust_env=False) as client:  # noqa: S501
            while True:
                try:
                    reply = await client.get(url)
                except httpx.TransportError as error:
                    if isinstance(error, httpx.UnsupportedProtocol):
                        raise
                    last = error
                else:
                    if not loading.says_so(reply):
                        return
                    last = "it says that it is starting"
                await asyncio.sleep(POLL_S)
    except TimeoutError as error:
        why = f": {last}" if last and str(last) else ""
        raise LaunchError(f"{url} does not answer within {timeout_s:g} s{why}") from error
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise LaunchError(f"{url} is not an address: {error}") from error
