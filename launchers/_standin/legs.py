"""Send the requests of an orchestrator to its workers, and relay their answers.

The status stays, the message is unwrapped, and the URL is left out.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from serve_eval.launchers._http.requests import encode
from serve_eval.launchers._standin import config as standin_config
from serve_eval.launchers._standin.cluster import Router
from serve_eval.launchers._standin.config import Orchestrator
from serve_eval.launchers._standin.fields import CompletionRequest, Request
from serve_eval.launchers._standin.metrics import RETURN, Stripped, Told
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.replies import Answer, ChatAnswer, TextAnswer

RETRY_S = 1.0
LOST_RETRIES = 5
"""Retries of main after a lost connection, independent of max_retries.

TRTLLM_DISAGG_NO_RETRY=1 disables them.
"""


class Legs:
    """Sends the legs of requests through one session; `asks_metrics`: each asks for metrics."""

    def __init__(self, config: Orchestrator, flavour: Flavour, *, asks_metrics: bool) -> None:
        self.config, self.flavour, self._asks_metrics = config, flavour, asks_metrics
        self.client: aiohttp.ClientSession

    async def whole(
        self,
        role: str,
        router: Router,
        url: str,
        request: Request,
        body: dict[str, Any],
        told: Told,
    ) -> Answer:
        """Return a worker's whole answer.

        Connection errors, and statuses that mean one, are retried.
        """
        for attempt in itertools.count():
            router.busy[url] = router.busy.get(url, 0) + 1
            try:
                async with self._post(url, request, body) as response:
                    if "text/event-stream" in response.headers.get("Content-Type", ""):
                        raise ValueError(
                            "Received an event-stream although request stream was False"
                        )
                    await self._raise_for_status(response)
                    raw = await response.read()
                    told.hear(role, url, response.headers)
                break
            except (aiohttp.ClientError, OSError) as error:
                if attempt >= self._retries(error):
                    raise
                router.retries += 1
                await asyncio.sleep(RETRY_S)
            finally:
                router.busy[url] -= 1
        kind: type[Answer] = TextAnswer if isinstance(request, CompletionRequest) else ChatAnswer
        return kind.model_validate_json(raw)

    async def relay(
        self, router: Router, url: str, request: Request, body: dict[str, Any], told: Told
    ) -> AsyncIterator[bytes]:
        """Relay a worker's stream.

        Broken connections are retried until the first byte. An answer of another type is not
        retried.
        """
        started = False
        for attempt in itertools.count():
            try:
                async with self._post(url, request, body) as response:
                    if "text/event-stream" not in response.headers.get("Content-Type", ""):
                        raise ValueError(
                            "Received no event-stream although request stream was True"
                        )
                    await self._raise_for_status(response)
                    stripped = Stripped()
                    async for part in response.content.iter_any():
                        started, told.first_token = True, told.first_token or time.monotonic()
                        if kept := stripped.feed(part):
                            yield kept
                    told.hear("gen", url, stripped.read_fields())
                return
            except (aiohttp.ClientError, OSError) as error:
                if started or attempt >= self._retries(error):
                    raise
                router.retries += 1
                await asyncio.sleep(RETRY_S)

    def _retries(self, error: Exception) -> int:
        """Return the number of retries after this error."""
        if self.flavour != "main":
            return self.config.max_retries
        if isinstance(error, aiohttp.ClientResponseError) and error.status < 500:
            return 0
        if os.environ.get("TRTLLM_DISAGG_NO_RETRY") == "1":
            return 0
        lost = isinstance(error, (aiohttp.ServerDisconnectedError, ConnectionResetError))
        return max(self.config.max_retries, LOST_RETRIES if lost else 0)

    def _post(self, url: str, request: Request, body: dict[str, Any]) -> Any:
        path = (
            "/v1/completions" if isinstance(request, CompletionRequest) else "/v1/chat/completions"
        )
        headers = {"Content-Type": "application/json"}
        if self.flavour != "main":
            return self.client.post(f"http://{url}{path}", data=encode(body), headers=headers)
        headers["X-TRTLLM-Msgpack"] = "1"
        if self._asks_metrics:
            headers[RETURN] = "1"
        headers |= standin_config.headers(
            self.config.auth_key, body.get("disaggregated_params") or {}
        )
        return self.client.post(
            f"http://{url}{path}", data=msgspec.msgpack.encode(body), headers=headers
        )

    async def _raise_for_status(self, response: aiohttp.ClientResponse) -> None:
        if self.flavour == "main" and response.status >= 400:
            text = (await response.text())[:2048]
            if response.status < 500:
                raise WorkerRefused(response.status, text)
            raise aiohttp.ClientResponseError(
                response.request_info,
                response.history,
                status=response.status,
                message=f"{response.reason}: {text}",
                headers=response.headers,
            )
        response.raise_for_status()


class WorkerRefused(Exception):
    """A worker answered with a status of 400 to 499. `told` is the message within its body."""

    def __init__(self, status: int, body: str) -> None:
        self.status, self.told = status, _message(body)
        super().__init__(f"{status}: {self.told}")


def _message(body: str) -> str:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body
    if not isinstance(found, dict):
        return body
    told = found.get("message", found.get("error", found.get("detail", body)))
    return told if isinstance(told, str) else body
