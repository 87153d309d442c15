"""Test for how long an endpoint has been silent."""

from __future__ import annotations

import asyncio
import time

from serve_eval.client.attempts.patience import Patience
from serve_eval.client.wire_format.reply import Reply


def test_silence_counts_only_while_something_is_expected() -> None:
    async def main() -> None:
        patience = Patience(sample_s=60.0, stall_s=60.0)
        waits = [patience.begin(time.monotonic()) for _ in range(2)]
        assert patience.silent_s() == 0.0
        for wait in waits:
            patience.expect(
                wait,
                Reply(asyncio.get_running_loop().create_future(), limit=1, now=time.monotonic()),
            )
        await asyncio.sleep(0.02)
        for wait in waits:
            assert patience.silent_s() > 0.0
            patience.expect_no_more(wait, time.monotonic())
            patience.end(wait)
        assert patience.silent_s() == 0.0
        patience.close()

    asyncio.run(main())
