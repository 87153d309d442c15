"""Make requests wait while the endpoint reports that it is starting.

Since 2026 trtllm-serve listens while it loads its model, and answers every route with a 503 whose
header says so. This does not count as an attempt, because nothing has failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from serve_eval.client.attempts.liveness import LivenessGuard

POLL_S = 1.0
"""Seconds between two probes of a starting endpoint; also the Retry-After of such a server."""
LOOK_S = 10.0
"""Seconds that one probe may take."""
SAID = "the endpoint is starting"
HINT = (
    "The server is loading its model. Wait, or allow more time: --set limits.outage_timeout_s=S, or"
    " this key of a plan, or --set launcher.ready_timeout_s=S with --base-url."
)


class Start:
    """Holds requests back until the endpoint has started. One probe serves all of them.

    `still` asks the endpoint if it is still starting. The time limit is that of outages, shared
    with those of `liveness` until an answer comes. `met` counts the requests that waited here.
    """

    def __init__(
        self, timeout_s: float, liveness: LivenessGuard, still: Callable[[], Awaitable[bool]]
    ) -> None:
        self._timeout_s, self._liveness, self._still = timeout_s, liveness, still
        self._looking: asyncio.Task[bool] | None = None
        self.met = self._waiting = 0

    async def over(self) -> bool:
        """Return True once the endpoint no longer reports that it is starting.

        Returns False if that takes longer than the limit.
        """
        self.met, self._waiting = self.met + 1, self._waiting + 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(
            self._looking
        )  # a cancelled request must not cancel the probe that all requests wait for

    @property
    def in_vain(self) -> str:
        """The message for a start that takes too long."""
        return (
            f"the endpoint is still starting after {self._timeout_s:g} s"
            if self._timeout_s
            else SAID
        )

    async def close(self) -> None:
        """Stop probing."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> bool:
        began, left_s = time.monotonic(), self._timeout_s - self._liveness.spent_s
        if left_s > 0:
            self._liveness.notify(
                f"{SAID}: requests wait up to {left_s:.0f} s (limits.outage_timeout_s)"
            )
        while (passed_s := time.monotonic() - began) < left_s:
            await asyncio.sleep(min(POLL_S, left_s - passed_s))
            if not await self._still():
                break
        else:
            self._liveness.spent_s = self._timeout_s
            return False
        passed_s = time.monotonic() - began
        self._liveness.spent_s += passed_s
        waited, self._waiting = self._waiting, 0
        requests = "1 request goes on" if waited == 1 else f"{waited} requests go on"
        self._liveness.notify(
            f"the endpoint no longer reports a start after {passed_s:.1f} s: {requests}"
        )
        return True
