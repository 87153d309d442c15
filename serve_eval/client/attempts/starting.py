"""Requests wait while the endpoint says that it is starting: trtllm-serve since 2026 listens while
it loads its model, and answers every route with a 503 whose header says so. That is no attempt:
nothing has failed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from serve_eval.client.attempts.liveness import LivenessGuard

POLL_S = 1.0
"""Seconds between two looks at an endpoint that is starting; what such a server puts into
Retry-After."""
LOOK_S = 10.0
"""How long one look may take."""
SAID = "the endpoint is starting"
HINT = (
    "It listens and loads its model. Wait for it, or give it more time: --outage-timeout S, or "
    "--set launcher.ready_timeout_s=S with --base-url."
)


class Start:
    """Where requests wait for the start of an endpoint. One look serves all of them.

    `still` asks the endpoint whether it says so. The time is that of an outage, and shared with
    those that `liveness` knows, until an answer comes. `met` counts the requests that waited here.
    """

    def __init__(
        self, timeout_s: float, liveness: LivenessGuard, still: Callable[[], Awaitable[bool]]
    ) -> None:
        self._timeout_s, self._liveness, self._still = timeout_s, liveness, still
        self._looking: asyncio.Task[bool] | None = None
        self.met = self._waiting = 0

    async def over(self) -> bool:
        """Return True once the endpoint no longer says that it is starting, False when that takes
        too long.
        """
        self.met, self._waiting = self.met + 1, self._waiting + 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return await asyncio.shield(
            self._looking
        )  # one that is cancelled must not cancel what all wait for

    @property
    def in_vain(self) -> str:
        """What there is to say when it takes too long."""
        return (
            f"the endpoint is still starting after {self._timeout_s:g} s"
            if self._timeout_s
            else SAID
        )

    async def close(self) -> None:
        """Stops looking."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look(self) -> bool:
        began, left_s = time.monotonic(), self._timeout_s - self._liveness.spent_s
        if left_s > 0:
            self._liveness.notify(
                f"{SAID}: requests wait, for {left_s:.0f} s at most (--outage-timeout)"
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
            f"the endpoint says no more that it is starting, after {passed_s:.1f} s: {requests}"
        )
        return True
