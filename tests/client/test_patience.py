"""Test for how long an endpoint has been silent."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from serve_eval.client.attempts import patience as patience_module
from serve_eval.client.attempts.patience import SAMPLE, STALL, Patience, Wait
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


@pytest.mark.parametrize(
    ("now", "held", "over"),
    [
        (109.99, False, None),
        (110.0, False, STALL),
        (110.0, True, None),
        (129.99, False, STALL),
        (130.0, False, SAMPLE),
        (130.0, True, SAMPLE),
    ],
)
def test_a_wait_is_over_at_its_limits_and_the_limit_of_the_sample_comes_first(
    monkeypatch: pytest.MonkeyPatch, now: float, held: bool, over: str | None
) -> None:
    """The sample has 30 s from second 100, and each piece of its answer 10 s."""
    clock = [100.0]
    monkeypatch.setattr(patience_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    async def main() -> tuple[str | None, bool]:
        patience = Patience(sample_s=30.0, stall_s=10.0)
        patience.held = held

        async def wait_for_ever() -> None:
            wait = patience.begin(clock[0])
            begun.append(wait)
            future = asyncio.get_running_loop().create_future()
            patience.expect(wait, Reply(future, limit=1, now=clock[0]))
            await future

        begun = list[Wait]()
        task = asyncio.create_task(wait_for_ever())
        await asyncio.sleep(0)
        clock[0] = now
        patience._look()
        patience.close()
        cancelled = bool(task.cancelling())
        task.cancel()
        return begun[0].over, cancelled

    assert asyncio.run(main()) == (over, over is not None)
